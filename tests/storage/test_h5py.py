# SPDX-License-Identifier: Apache-2.0
"""Plain h5py reads what the writer wrote (docs/format-storage.md)."""
import json
import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest

# number: (name, what h5py says of the type, bytes of an element in the file)
TYPES = {
    0: ("bytes", "u1", 1), 1: ("bool", "?", 1), 2: ("uint8", "u1", 1), 3: ("int8", "i1", 1), 4: ("uint16", "u2", 2),
    5: ("int16", "i2", 2), 6: ("uint32", "u4", 4), 7: ("int32", "i4", 4), 8: ("uint64", "u8", 8), 9: ("int64", "i8", 8),
    10: ("float16", "f2", 2), 11: ("bfloat16", "f4", 2), 12: ("float32", "f4", 4), 13: ("float64", "f8", 8),
    14: ("float8_e4m3fn", "u1", 1), 15: ("float8_e5m2", "f2", 1), 16: ("complex64", "c8", 8), 17: ("complex128", "c16", 16),
}


def content(name, count):
    """The bytes that sample.cpp put into a chunk."""
    at = np.arange(count, dtype=np.int64)
    return (at % 3 == 0 if name == "bool" else (at * 5 + 17) % 256).astype(np.uint8)


def values(name, count):
    """What a reader has to see in a chunk of `count` elements of the type."""
    kind, unit = {n: (k, u) for n, k, u in TYPES.values()}[name]
    raw = content(name, count * unit)
    if name == "bfloat16":
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    if name == "float8_e5m2":
        return (raw.astype("<u2") << 8).view("<f2")
    return raw.view(np.dtype(kind).newbyteorder("<"))


def same(a, b):
    """Equal, and NaN where NaN."""
    return np.array_equal(a, b, equal_nan=np.issubdtype(np.asarray(b).dtype, np.inexact))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    subprocess.run([os.environ["STORAGE_SAMPLE"], str(path)], check=True)
    assert os.readlink(path / "latest") == "step-12.gen-0.1.3"
    return path / "latest"


@pytest.fixture
def index(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names are relative to the index, not to where the reader stands
    with h5py.File(folder / "index.h5", "r") as file:
        yield file


@pytest.fixture(params=[0, 1])
def rank(request, folder):
    with h5py.File(folder / f"rank-{request.param}.h5", "r") as file:
        yield file


def chunks(file, name):
    return [d for d in file["chunks"].values() if d.attrs["name"] == name]


def test_whose_it_is(rank):
    assert rank.attrs["format"] == "dlrover-checkpoint" and rank.attrs["version"] == 1
    assert rank.attrs["lineage"] == "lab/1000/jöb" and rank.attrs["world_size"] == 2
    assert (rank.attrs["train_step"], rank.attrs["term"], rank.attrs["generation"]) == (12, 1, 3)
    assert json.loads(rank["skeleton"][()])["state"] == "ä"
    assert rank["ledger"][()].tobytes() == b"pos%d" % rank.attrs["rank"]
    assert rank["object_table"][4:8].tobytes() == b"DLO1"
    assert rank["places"].shape == rank["checksums"].shape == (len(TYPES) * 2 + 5 + 1,)


def test_checksums_and_places(rank):
    table, same_bytes = rank["object_table"][()].tobytes(), set()
    for number, data in rank["chunks"].items():
        checksum = rank["checksums"][int(number)]
        assert table.count(int(checksum).to_bytes(8, "little")) > 0
        assert data.size == 0 or rank["places"][int(number)] == data.id.get_offset()
        if data.attrs["dtype"] in ("bytes", "uint8", "int8", "float8_e4m3fn", "float8_e5m2") and data.size == 256:
            same_bytes.add(checksum)
    assert len(same_bytes) == 1 and len(set(rank["checksums"])) > 10


def test_no_times(rank, index):
    """The same checkpoint has the same bytes, whenever it was written."""
    for file, groups in ((rank, ("/", "chunks", "chunks/0", "places")), (index, ("/", "tensors", "tensors/type.0", "ranks"))):
        assert [h5py.h5g.get_objinfo(file[name].id).mtime for name in groups] == [0] * 4


@pytest.mark.parametrize("number", TYPES)
def test_every_type(rank, number):
    name, kind, unit = TYPES[number]
    (data,) = chunks(rank, f"type.{number}")
    assert data.attrs["dtype"] == name and data.dtype == np.dtype(kind) and data.shape == (2, 128)
    assert data.id.get_type().get_size() == unit
    assert list(data.attrs["global_shape"]) == [4, 128]
    assert list(data.attrs["global_offset"]) == [2 * rank.attrs["rank"], 0]
    assert same(data[()].reshape(-1), values(name, 256))
    scalars = chunks(rank, f"type.{number}.scalar")
    assert len(scalars) == (rank.attrs["rank"] == 0)  # rank 1 has a replica
    for scalar in scalars:
        assert scalar.shape == () and scalar.attrs["global_shape"].shape == (0,)
        assert same(scalar[()], values(name, 1)[0])


def test_raw_bytes_without_conversion(rank):
    (data,) = chunks(rank, "type.11")
    raw = np.empty(data.shape, "<u2")
    data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, data.id.get_type())
    assert raw.tobytes() == content("bfloat16", 512).tobytes()


def test_odd_shapes(rank):
    (empty,) = chunks(rank, "empty")
    assert empty.shape == (3, 0) and empty[()].size == 0
    (large,) = chunks(rank, "large")
    assert large.id.get_offset() % 4096 == 0
    assert same(large[()].reshape(-1), values("float32", 150000))
    assert len(chunks(rank, "columns/of 東")) == 1
    if rank.attrs["rank"] == 0:
        (deep,) = chunks(rank, "deep")
        assert deep.ndim == 16 and same(deep[()].reshape(-1), values("uint16", 6))


def many_name(number):
    """What add_many() of sample.cpp calls a chunk, as an attribute says it."""
    name = f"n{number}" + ("%FF" if number % 7 == 0 else "")
    return name + "x" * (number * 7 % 3990 if number % 50 == 0 else 0)


@pytest.fixture(scope="module", params=[0, 1, 8, 9, 256, 257, 9000])
def many(request, tmp_path_factory):
    """A file of that many chunks: their group has a tree of one to three levels."""
    path = tmp_path_factory.mktemp("many")
    subprocess.run([os.environ["STORAGE_SAMPLE"], str(path), "chunks", str(request.param)], check=True)
    return path / "rank-0.h5", request.param


def test_each_of_many_chunks(many):
    path, count = many
    with h5py.File(path, "r") as file:
        group = file["chunks"]
        assert list(group) == sorted(map(str, range(count))) and str(count) not in group
        assert len(file["places"]) == count
        for number in range(count):
            data, name, size = group[str(number)], TYPES[number % len(TYPES)][0], number % 7
            dims = number % 4
            assert data.shape == (size,) * dims and data.dtype == np.dtype(TYPES[number % len(TYPES)][1])
            assert set(data.attrs) == {"name", "dtype", "global_shape", "global_offset"}
            assert data.attrs["name"] == many_name(number) and data.attrs["dtype"] == name
            assert list(data.attrs["global_shape"]) == [number + size] * dims
            assert list(data.attrs["global_offset"]) == [number] * dims
            if number < 300 or number % 100 == 0:
                assert same(np.reshape(data[()], -1), values(name, data.size))


def test_hdf5_goes_on_with_the_group_of_chunks(many, tmp_path):
    """It finds what it needs to add, remove and copy, as in a group of its own."""
    path, count = many
    with h5py.File(path, "r") as file, h5py.File(tmp_path / "copy.h5", "w") as to:
        file.copy("chunks", to)
        assert len(to["chunks"]) == count
        assert all(to["chunks"][n].attrs["name"] == many_name(int(n)) for n in to["chunks"])
    (tmp_path / "own.h5").write_bytes(path.read_bytes())
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        group = file["chunks"]
        for number in range(0, count, 3):
            del group[str(number)]
        for number in range(1000):
            group[f"{number}.more"] = np.arange(number % 10)
            group[f"{number}.more"].attrs["name"] = "text"
    with h5py.File(tmp_path / "own.h5", "r") as file:
        group = file["chunks"]
        assert set(group) == {str(n) for n in range(count) if n % 3} | {f"{n}.more" for n in range(1000)}
        assert all(group[n].attrs["name"] == ("text" if "more" in n else many_name(int(n))) for n in group)


def test_manifest_is_json(folder):
    manifest = json.loads((folder.parent / "step-12.gen-0.1.3.manifest").read_text())
    assert manifest["lineage"] == "lab/1000/jöb" and manifest["train_step"] == 12
    assert [rank["file"] for rank in manifest["ranks"]] == ["rank-0.h5", "rank-1.h5"]
    for rank in manifest["ranks"] + [manifest["index"]]:
        assert (folder / rank["file"]).stat().st_size == rank["bytes"]


@pytest.mark.parametrize("number", TYPES)
def test_global_tensors_of_every_type(index, number):
    name = TYPES[number][0]
    tensor = index["tensors"][f"type.{number}"]
    half = values(name, 256).reshape(2, 128)
    assert tensor.is_virtual and tensor.shape == (4, 128) and tensor.attrs["dtype"] == name
    assert same(tensor[()], np.concatenate([half, half]))
    assert same(tensor[1:3, 5:7], np.stack([half[1, 5:7], half[0, 5:7]]))
    assert same(index["tensors"][f"type.{number}.scalar"][()], values(name, 1)[0])


@pytest.mark.parametrize("number", TYPES)
def test_a_missing_file_is_not_read_as_zeros(folder, tmp_path, number):
    name = TYPES[number][0]
    shutil.copytree(folder, tmp_path / "step")
    (tmp_path / "step" / "rank-1.h5").unlink()
    with h5py.File(tmp_path / "step" / "index.h5", "r") as file:
        tensor = file["tensors"][f"type.{number}"]
        assert same(tensor[:2], values(name, 256).reshape(2, 128))
        missing = tensor[2:]
        assert np.isnan(missing).all() if np.issubdtype(missing.dtype, np.inexact) else (missing.view(np.uint8) != 0).all()


def test_index_of_odd_shapes(index):
    tensors = index["tensors"]
    columns = tensors["columns%2Fof%20東"]
    assert columns.attrs["name"] == "columns/of 東"
    assert same(columns[:, :5].reshape(-1), values("int32", 15)) and same(columns[:, 5:].reshape(-1), values("int32", 9))
    assert tensors["empty"].shape == (3, 0)
    assert same(tensors["single"][()], values("float32", 6))
    assert tensors["deep"].ndim == 16 and tensors["large"].shape == (2, 300, 500)
    assert same(tensors["large"][1].reshape(-1), values("float32", 150000))


def test_what_is_no_one_tensor_is_with_its_rank(index):
    assert "own" not in index["tensors"] and "gap" not in index["tensors"]
    for rank in (0, 1):
        (own,) = chunks(index["ranks"][str(rank)], "own")
        assert own.shape == (4 + rank,)
