# SPDX-License-Identifier: Apache-2.0
"""What is worked out for one save and used again by the next: nothing of it may show."""

import ctypes
import weakref
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
from dlrover_slurm import _chunks, _share, _state, _torch  # noqa: E402


def described(state):
    """All that an encoding says: skeleton, and of each chunk its line in the table and its bytes."""
    encoded = _state.encode(state)
    assert encoded.gpu == []
    chunks = []
    for batch in encoded.host:
        for struct, address, size in zip(batch.structs, batch.addresses, batch.sizes):
            line = (struct.name, struct.dtype, struct.ndim, *struct.global_shape, *struct.global_offset, *struct.local_shape, struct.replica)
            chunks.append((line, ctypes.string_at(address, size) if size else b""))
    return encoded.skeleton, chunks, encoded.bound()


def plain_state():
    model = OrderedDict((f"layer{i}", torch.arange(6.0).reshape(2, 3) + i) for i in range(4))
    return {"model": model, "tied": model["layer0"], "rate": 0.1, "extra": b"x" * 100}


def nothing(state):
    pass


def values(state):
    state["model"]["layer1"].add_(1)
    state["rate"] = 0.2
    state["extra"] = b"y" * 100


def swapped(state):
    model = state["model"]
    model["layer0"], model["layer1"] = model["layer1"], model["layer0"]


def renamed(state):
    state["model"]["layer9"] = state["model"].pop("layer3")


def name_taken_by_other(state):
    state["model.layer0"] = b"z" * 100


def seen_as(change):
    def apply(state):
        state["model"]["layer2"] = change(state["model"]["layer2"])

    apply.__name__ = change.__name__
    return apply


def another_shape(tensor):
    return tensor.reshape(3, 2)


def another_type(tensor):
    return tensor.view(torch.int32)


def transposed(tensor):
    return tensor.t()


def column_by_column(tensor):
    return tensor.as_strided((2, 3), (1, 2))


def parameter(tensor):
    return torch.nn.Parameter(tensor)


def frozen_parameter(tensor):
    return torch.nn.Parameter(tensor, requires_grad=False)


def fewer_rows(tensor):
    return tensor[:1]


def wants_grad(tensor):
    return tensor.requires_grad_()


def a_part(tensor):
    return tensor[0]


def copied(tensor):
    return tensor.clone()


def empty(tensor):
    return tensor[:0]


def negated(tensor):
    return torch._neg_view(tensor)


def one_object_twice(state):
    state["again"] = state["model"]["layer1"]


def two_objects(state):
    state["again"] = state["model"]["layer1"].detach()


def tied_as_another_object(state):
    state["tied"] = state["tied"].detach()


def overlapping(state):
    state["again"] = state["model"]["layer1"][1]


CHANGES = [nothing, values, swapped, renamed, name_taken_by_other, one_object_twice, two_objects, tied_as_another_object, overlapping] + [
    seen_as(change)
    for change in (another_shape, another_type, transposed, column_by_column, parameter, frozen_parameter, fewer_rows, wants_grad, a_part, copied, empty, negated)
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_was_planned_for_the_save_before_does_not_show(monkeypatch, change):
    monkeypatch.setattr(_torch, "_last_plan", None)
    state = plain_state()
    described(state)
    planned = _torch._last_plan
    assert planned is not None
    change(state)
    for turn in range(2):  # with the plan of the state as it was, then with its own
        seen = described(state)
        assert turn != 0 or change not in (nothing, values) or _torch._last_plan is planned
        monkeypatch.setattr(_torch, "_last_plan", None)
        assert described(state) == seen
        with torch.no_grad():
            state["model"]["layer2"].mul_(2)


def test_a_plan_of_the_save_before_holds_no_tensor(monkeypatch):
    monkeypatch.setattr(_torch, "_last_plan", None)
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    described({"a": tensor})
    del tensor
    assert gone() is None and _torch._last_plan is not None


@pytest.fixture
def dealt(monkeypatch):
    """As if rank 1 kept every second of the large tensors that are said to be the same, and this rank 0 the others."""

    def deal(context, chunks, ranks=()):
        for number, chunk in enumerate(chunks):
            chunk.keeper, chunk.replica = number % 2, number % 2

    monkeypatch.setattr(_share, "deal", deal)
    monkeypatch.setattr(_torch, "_last_plan", None)
    state = {name: torch.full((20000,), float(i)) for i, name in enumerate("abcd")}
    state["small"] = torch.ones(10)

    def encoded(replicated):
        return _state.encode(state, dealer=_share.Dealer(replicated, lambda: None, 0))

    return encoded


def saved_here(encoded):
    return [struct.name.decode() for batch in encoded.host for struct in batch.structs]


def named(encoded):
    return [(struct.name.decode(), keeper) for lines in encoded.shared._lines for struct, keeper in zip(lines.structs, lines.keepers)]


def test_what_others_keep_is_only_named(dealt):
    seen = dealt(True)
    assert saved_here(seen) == ["a", "c", "small"]
    assert named(seen) == [("a", 0), ("b", 1), ("c", 0), ("d", 1)]
    assert 2 * 80000 < seen.bound() < 2 * 80000 + 5000 + _chunks.FIXED_TABLE_BYTES


def test_a_plan_knows_what_was_dealt(dealt):
    first = dealt(True)
    planned = _torch._last_plan
    assert planned is not None
    second = dealt(True)
    assert _torch._last_plan is planned and named(second) == named(first) and saved_here(second) == saved_here(first)
    some = dealt(lambda name: name in "bcd")
    assert saved_here(some) == ["a", "b", "d", "small"] and named(some) == [("b", 0), ("c", 1), ("d", 0)]
    assert saved_here(dealt(lambda name: name == "d")) == ["a", "b", "c", "d", "small"]
    assert saved_here(dealt(True)) == saved_here(first)
    assert saved_here(dealt(False)) == ["a", "b", "c", "d", "small"]


def test_what_others_keep_is_not_copied_from_a_gpu(dealt, monkeypatch):
    monkeypatch.setattr(_torch._cuda, "device_of", lambda tensor: 0)
    seen = dealt(True)
    assert [chunk.name for chunk in seen.gpu] == ["a", "c", "small"] and saved_here(seen) == []
    assert named(seen) == [("a", 0), ("b", 1), ("c", 0), ("d", 1)]


def separate(model):
    return {"model": model, "note": "x" * 10, "epoch": 3}


ALONE = {
    "plain": lambda: OrderedDict((f"layer{i}", torch.arange(6.0).reshape(2, 3) + i) for i in range(4)),
    "types": lambda: {str(i): torch.ones(2, 3).to(t) for i, t in enumerate([torch.bool, torch.int64, torch.bfloat16, torch.float64, torch.complex64])},
    "parameters": lambda: {"p": torch.nn.Parameter(torch.ones(3)), "g": torch.ones(2, requires_grad=True), "scalar": torch.tensor(7)},
    "a dimension of one": lambda: {"w": torch.ones(4, 1).t(), "v": torch.ones(1, 1, 5)},
    "names that are taken": lambda: {"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2), "\0": torch.ones(1), "ä": torch.ones(5)},
    "neighbours in one storage": lambda: dict(zip("ab", torch.arange(8.0).split(4))),
}
CLOSER_LOOK = {
    "the same object twice": lambda: dict.fromkeys("ab", torch.ones(3)),
    "two views of one memory": lambda: (lambda t: {"a": t, "b": t.view(3, 2)})(torch.ones(2, 3)),
    "an overlap": lambda: (lambda t: {"a": t[:4], "b": t[2:]})(torch.arange(6.0)),
    "not contiguous": lambda: {"a": torch.ones(2, 3).t(), "b": torch.ones(1)},
    "empty": lambda: {"a": torch.ones(0, 3), "b": torch.ones(1)},
    "one element for all": lambda: {"a": torch.ones(1).expand(2), "b": torch.ones(1)},
    "a type that the table has not": lambda: {"a": torch.zeros(2, dtype=torch.complex32), "b": torch.ones(1)},
    "many dimensions": lambda: {"a": torch.ones([1] * 17)},
}


@pytest.mark.parametrize("name", [*ALONE, *CLOSER_LOOK])
def test_in_columns_or_one_by_one_is_the_same(monkeypatch, name):
    """The short way of tensors that have nothing in common says of them what the long one says, and takes no others."""
    state = separate({**ALONE, **CLOSER_LOOK}[name]())
    taken, columns = [], _torch.TensorEncoder._columns
    monkeypatch.setattr(_torch.TensorEncoder, "_columns", lambda *given: taken.append(columns(*given)) or taken[-1])
    monkeypatch.setattr(_torch, "_last_plan", None)
    short = described(state)
    assert [found is not None for found in taken] == [name in ALONE]
    monkeypatch.setattr(_torch.TensorEncoder, "_columns", lambda *given: None)
    monkeypatch.setattr(_torch, "_last_plan", None)
    assert described(state) == short
