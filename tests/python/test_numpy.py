# SPDX-License-Identifier: Apache-2.0
import pytest

numpy = pytest.importorskip("numpy")

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64", "complex128", "longdouble", ">f4", ">i8", "S5", "U3", "datetime64[ns]", "timedelta64[s]", "V7",
]  # fmt: skip


def same(a, b):
    assert type(a) is type(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (1,) * 20])
def test_arrays(round_trip, dtype, shape):
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape, dtype=int))
    raw = numpy.random.default_rng(1).integers(0, 2, count * dtype.itemsize, dtype=numpy.uint8)
    array = numpy.frombuffer(raw.tobytes(), dtype=dtype).reshape(shape)
    back = round_trip({"x": array})["x"]
    same(back, array)
    assert back.flags.writeable


def test_structured_types(round_trip):
    dtype = numpy.dtype([("a", "<f4"), ("b", [("c", "<i8", (2, 3)), ("d", "S4")])])
    array = numpy.zeros(5, dtype)
    array["b"]["c"][2, 1, 2] = 42
    same(round_trip([array])[0], array)


def test_order_of_memory_and_slices(round_trip):
    fortran = numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4))
    back = round_trip(fortran)
    assert back.flags.f_contiguous and (back == fortran).all()
    slices = numpy.arange(24).reshape(4, 6)[::2, ::-1]
    assert (round_trip(slices) == slices).all()


def test_scalars(round_trip):
    for value in (numpy.float32(1.5), numpy.int64(-3), numpy.bool_(True), numpy.complex64(1j), numpy.datetime64("2020-01-01"),
                  numpy.str_("ab"), numpy.float64("nan")):  # fmt: skip
        back = round_trip([value])[0]
        assert type(back) is type(value) and back.tobytes() == value.tobytes()


def test_one_array_stays_one(round_trip):
    array = numpy.arange(1000)
    back = round_trip({"a": array, "b": array, "c": array.copy()})
    assert back["a"] is back["b"] and back["a"] is not back["c"]


def test_objects_go_by_pickle(round_trip):
    array = numpy.array([1, "x", None], dtype=object)
    assert (round_trip([array], allow_pickle=True)[0] == array).all()


def test_views_are_read_only_and_live(dlrover):
    array = numpy.arange(100000, dtype=numpy.float32)
    dlrover.save(1, {"x": array, "e": array[:0]})
    view = dlrover.load(views=True).state["x"]
    assert not view.flags.writeable
    assert (view == array).all()
    # The object stays open for as long as a view of it lives.
    with pytest.raises(dlrover.InvalidError, match="open already"):
        dlrover.load()
    del view
    assert (dlrover.load().state["x"] == array).all()
