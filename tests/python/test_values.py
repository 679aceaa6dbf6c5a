# SPDX-License-Identifier: Apache-2.0
"""Values without torch: every kind comes back equal and of the same type."""

import collections
import enum
import math
import random
import struct
import sys
import warnings

import pytest
from dlrover_slurm import _state

Point = collections.namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Plain:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Plain and other.value == self.value


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(10**100),
    0.1,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    1 + 2j,
    complex(math.inf, -0.0),
    "",
    "text with \0, \ud800 and ü",
    "long " * 5000,
    b"",
    b"\0\xff",
    b"long" * 1000,
    bytearray(b"abc"),
    bytearray(b"abc" * 100),
    [],
    [1, [2, [3]]],
    (),
    (1, (2,)),
    {},
    {"a": {"b": 1}},
    {1: "one", "1": "text one", None: 0, (1, 2): "tuple", 2.5: 1, True is False: 3},
    {"$": "looks like a tag"},
    {"": 0, "a.b": 1, "a": {"b": 2}},
    {1, 2, 3},
    frozenset({"a", (1, 2)}),
    collections.OrderedDict([("z", 1), ("a", 2)]),
    Point(1, [2]),
]


def same(a, b):
    """Equal, of one type, in one order, the sign of zero included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items())
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(v, w) for v, w in zip(a, b))
    return a == b


@pytest.mark.parametrize("value", VALUES, ids=[f"{type(v).__name__}-{i}" for i, v in enumerate(VALUES)])
def test_value(round_trip, value):
    assert same(round_trip(value), value)
    assert same(round_trip({"inside": [value, (value,)]}), {"inside": [value, (value,)]})


def test_nan_keeps_its_bits(round_trip):
    nan = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]
    assert struct.pack(">d", round_trip([nan])[0]).hex() == "fff8000000000abc"


LONG = int("8" * 4000) ** 5  # 20,000 digits
LONG_INTS = [LONG, -LONG, 2**2048, 2**2048 - 1, -(2**2048), 1 - 2**2048]


@pytest.fixture(params=["default", "strictest"])
def digits(request):
    """How many digits of an int Python 3.11 and later write and read: 4300, and the fewest that a program may choose."""
    if not hasattr(sys, "set_int_max_str_digits"):
        yield
        return
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits({"default": 4300, "strictest": 640}[request.param])
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("number", range(len(LONG_INTS)))
def test_long_ints(round_trip, digits, number):
    value = LONG_INTS[number]
    for state in (value, [(value, {value}), collections.Counter({"n": value})], {value: "key", (value, 1): value},
                  {value: b"x" * 100, -value: b"y" * 100}):  # fmt: skip
        assert same(round_trip(state), state)


def test_ints_of_before_are_read(dlrover):
    """All were decimal numbers."""
    skeleton = f'{{"version":1,"ledger":"none","state":[{10**4299},{-(10**4299)}]}}'
    assert _state.decode(skeleton.encode(), {}) == [10**4299, -(10**4299)]


def test_ordered_dict_keeps_its_attributes(round_trip):
    state = collections.OrderedDict(a=1)
    state._metadata = {"": {"version": 1}}
    back = round_trip(state)
    assert back._metadata == {"": {"version": 1}}


def test_other_objects_go_by_pickle_and_say_so_once(round_trip):
    with pytest.warns(UserWarning, match="model.thing.*Plain.*pickle"):
        assert round_trip({"model": {"thing": Plain(3)}}) == {"model": {"thing": Plain(3)}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert round_trip([Plain(4)]) == [Plain(4)]
        back = round_trip([Colour.RED, collections.Counter("aab")], allow_pickle=True)
    assert back == [Colour.RED, collections.Counter("aab")]
    assert type(back[0]) is Colour


def test_what_can_not_be_saved_is_named(dlrover):
    Local = collections.namedtuple("Local", "x")
    Local.__qualname__ = "test.<locals>.Local"
    for state in ({"f": {"g": lambda: 0}}, {"f": {"g": Local(1)}}):
        with pytest.raises(dlrover.UnsupportedError, match="f.g"):
            dlrover.save(1, state)
    circle = []
    circle.append(circle)
    with pytest.raises(dlrover.UnsupportedError, match="contains itself"):
        dlrover.save(1, {"x": circle})
    assert dlrover.load() is None


def test_the_same_list_twice_is_no_circle(round_trip):
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


def test_ledger(dlrover):
    for ledger in (None, b"raw \0", {"epoch": 3, "samples": [1, 2]}, "text"):
        dlrover.save(1, {}, ledger=ledger)
        assert dlrover.load().ledger == ledger
    with pytest.raises(dlrover.InvalidError, match="64 KiB"):
        dlrover.save(2, {}, ledger=b"x" * 65537)
    assert dlrover.load().step == 1
    assert dlrover.save(3, {})


def test_nothing_saved_is_none(dlrover):
    assert dlrover.load() is None
    assert dlrover.world().restore_step is None


def test_newest_step_and_world(dlrover):
    for step in (5, 6, 7):
        assert dlrover.save(step, {"step": step})
    assert dlrover.load() == dlrover.Checkpoint(7, {"step": 7}, None, saved_by=1)
    world = dlrover.world()
    assert (world.restore_step, world.rank, world.world_size, world.managed) == (7, 0, 1, False)


def test_a_checkpoint_is_told_in_a_line(dlrover):
    np = pytest.importorskip("numpy")
    dlrover.save(3, {"w": np.zeros(100_000), "b": [0] * 100_000}, ledger={"at": 5})
    checkpoint = dlrover.load()
    assert repr(checkpoint) == "Checkpoint(step=3, state=<dict of 2>, ledger=<dict of 1>, saved_by=1)"


def test_a_step_is_an_int(dlrover):
    np = pytest.importorskip("numpy")
    for wrong in (True, np.array(4), np.bool_(1), 4.0, "4", None):
        with pytest.raises(dlrover.InvalidError, match="a step is an int"):
            dlrover.save(wrong, {})
    assert dlrover.save(np.int32(4), {}) and dlrover.load().step == 4


def random_value(rng, depth):
    kinds = ["int", "float", "text", "bytes", "none"] + (["list", "tuple", "dict", "map"] if depth else [])
    kind = rng.choice(kinds)
    count = rng.randrange(5)
    if kind == "int":
        return rng.randrange(-(2**70), 2**70)
    if kind == "float":
        return struct.unpack("d", rng.getrandbits(64).to_bytes(8, "little"))[0]
    if kind == "text":
        return "".join(chr(rng.randrange(0x500)) for _ in range(count))
    if kind == "bytes":
        return rng.randbytes(rng.choice([0, 10, 64, 65, 5000]))
    if kind == "list":
        return [random_value(rng, depth - 1) for _ in range(count)]
    if kind == "tuple":
        return tuple(random_value(rng, depth - 1) for _ in range(count))
    if kind == "dict":
        return {f"k{i}.{rng.randrange(3)}": random_value(rng, depth - 1) for i in range(count)}
    if kind == "map":
        return {rng.choice([i, str(i), (i, "t"), i + 0.5]): random_value(rng, depth - 1) for i in range(count)}
    return None


@pytest.mark.parametrize("seed", range(60))
def test_random_structures(round_trip, seed):
    value = random_value(random.Random(seed), 5)
    assert same(round_trip(value), value)


def test_equal_states_make_equal_files(dlrover, tmp_path):
    state = {"a": [1, 2.5, b"x" * 100], "s": {3, 1, 2}}
    files = []
    for step in (4, 4):
        dlrover.save(step, state, ledger=b"l")
        files.append((tmp_path / "rank-0" / "step-4.dlrover").read_bytes())
    assert files[0] == files[1]


def test_corruption_is_told(dlrover, tmp_path):
    dlrover.save(1, {"data": b"x" * 1000})
    path = tmp_path / "rank-0" / "step-1.dlrover"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(dlrover.CorruptError, match="chunk \"data\""):
        dlrover.load()


def test_a_save_that_is_to_go_to_storage(round_trip):
    assert round_trip({"a": 1}, storage=True) == {"a": 1}  # plain files are there already
