# SPDX-License-Identifier: Apache-2.0
"""dlrover ckpt export and import: other formats, read by their own programs or by what the format says."""
import functools
import hashlib
import json
import os
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest

from conftest import DLROVER, TOP, flip, read_safetensors, write_safetensors

FITTING = ["--name", "type.[1-9]", "type.1[0-6]", "columns*", "empty", "single", "deep", "large", "gap", "own"]


def raw_bytes(dataset):
    """Of a global tensor, without conversion."""
    raw = np.empty(dataset.shape, f"V{dataset.id.get_type().get_size()}")
    if raw.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, dataset.id.get_type())
    return raw.tobytes()


def test_export_is_what_h5py_reads(ckpt, lineage, tmp_path):
    out, err = ckpt("export", lineage, "--to", "safetensors", tmp_path / "o.safetensors", "--step", 20, *FITTING)
    metadata, tensors = read_safetensors(tmp_path / "o.safetensors")
    assert metadata == {"format": "pt", "lineage": "lab/1000/jöb", "train_step": "20", "generation": "0.1.3"}
    assert "values of each rank's own: gap, own" in err and f"{len(tensors)} tensors" in out
    assert {n: t[0] for n, t in tensors.items() if n.startswith("type.1") and n[6:].isdigit()} == {
        "type.10": "F16", "type.11": "BF16", "type.12": "F32", "type.13": "F64", "type.14": "F8_E4M3", "type.15": "F8_E5M2", "type.16": "C64"}
    with h5py.File(lineage / "step-20.gen-0.1.3" / "index.h5") as index:
        wanted = {d.attrs["name"]: d for d in index["tensors"].values() if d.attrs["name"] in tensors}
        assert len(wanted) == len(tensors) == 21
        for name, (_, shape, data) in tensors.items():
            assert shape == list(wanted[name].shape) and data == raw_bytes(wanted[name]), name
    assert sorted(os.listdir(tmp_path)) == ["o.safetensors", "top"]


def test_export_refuses_what_does_not_fit(ckpt, lineage, tmp_path):
    out = tmp_path / "o"
    assert 'tensor "type.17" is of type complex128' in ckpt("export", lineage, "--to", "safetensors", out, status=1)[1]
    assert "no global tensor has a name that matches" in ckpt("export", lineage, "--to", "safetensors", out, "--name", "own", status=1)[1]
    assert not out.exists()
    _, err = ckpt("export", lineage, "--to", "safetensors", out, "--name", "single", "type.0")
    assert "left out, no tensors: type.0" in err
    assert "is there already; --force" in ckpt("export", lineage, "--to", "safetensors", out, "--name", "single", status=1)[1]
    ckpt("export", lineage, "--to", "safetensors", out, "--name", "large", "--force")
    assert list(read_safetensors(out)[1]) == ["large"]
    assert "No such file" in ckpt("export", lineage, "--to", "safetensors", tmp_path / "no" / "o", "--name", "large", status=1)[1]


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_export_verifies(ckpt, lineage, tmp_path, form):
    path = lineage / "step-30.gen-0.1.3" / "rank-1.h5"
    with h5py.File(path) as file:
        (at,) = (d.id.get_offset() for d in file["chunks"].values() if d.attrs["name"] == "large")
    flip(path, at + 1000)
    _, err = ckpt("export", lineage, "--to", form, tmp_path / "o", "--name", "large", status=1, env=environment())
    assert 'rank-1.h5: the checksum of chunk "large" is wrong' in err
    assert os.listdir(tmp_path) == ["top"]


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(TOP / "python"), "DLROVER_PYTHON": python_with_torch() or sys.executable, **more}


@functools.lru_cache(maxsize=None)
def python_with_torch():
    for python in (os.environ.get("DLROVER_PYTHON"), sys.executable, "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    return None


needs_torch = pytest.mark.skipif(python_with_torch() is None, reason="no Python with torch: install python3-torch")
HASH = "{n: [str(t.dtype), list(t.shape), hashlib.sha256(bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist())).hexdigest()] for n, t in state.items()}"


def hashes_by_python(code, *arguments):
    program = f"import hashlib, json, sys, torch\n{code}\nprint(json.dumps({HASH}))"
    done = subprocess.run([python_with_torch(), "-W", "ignore", "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expected_hashes(ckpt, lineage, tmp_path, names):
    ckpt("export", lineage, "--to", "safetensors", tmp_path / "wanted", *names)
    _, tensors = read_safetensors(tmp_path / "wanted")
    os.unlink(tmp_path / "wanted")
    return {n: [shape, hashlib.sha256(data).hexdigest()] for n, (_, shape, data) in tensors.items()}


TORCH_NAMES = ["--name", "type.[123579]", "type.1[0-36]", "columns*", "single", "large"]


@needs_torch
def test_torch_export(ckpt, lineage, tmp_path):
    ckpt("export", lineage, "--to", "torch", tmp_path / "o.pt", *TORCH_NAMES, "type.17", env=environment())
    found = hashes_by_python("state = torch.load(sys.argv[1])", tmp_path / "o.pt")
    assert found.pop("type.17")[:2] == ["torch.complex128", [4, 128]]
    assert {n: h[1:] for n, h in found.items()} == expected_hashes(ckpt, lineage, tmp_path, TORCH_NAMES)
    assert found["type.11"][0] == "torch.bfloat16"
    assert sorted(os.listdir(tmp_path)) == ["o.pt", "top"]


@needs_torch
def test_dcp_export(ckpt, lineage, tmp_path):
    has_dcp = subprocess.run([python_with_torch(), "-c", "import torch.distributed.checkpoint"], capture_output=True).returncode == 0
    if not has_dcp:
        _, err = ckpt("export", lineage, "--to", "dcp", tmp_path / "o", *TORCH_NAMES, status=1, env=environment())
        assert "has no torch.distributed.checkpoint: 2.0 or newer" in err and os.listdir(tmp_path) == ["top"]
        return
    ckpt("export", lineage, "--to", "dcp", tmp_path / "o", *TORCH_NAMES, env=environment())
    wanted = expected_hashes(ckpt, lineage, tmp_path, TORCH_NAMES)
    load = """import torch.distributed.checkpoint as dcp
reader = dcp.FileSystemReader(sys.argv[1])
state = {n: torch.empty(m.size, dtype=m.properties.dtype) for n, m in reader.read_metadata().state_dict_metadata.items()}
dcp.load(state, storage_reader=reader) if hasattr(dcp, "load") else dcp.load_state_dict(state, reader, no_dist=True)"""
    found = hashes_by_python(load, tmp_path / "o")
    assert {n: h[1:] for n, h in found.items()} == wanted


def test_python_without_torch(ckpt, lineage, tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "torch.py").write_text("raise ImportError")
    env = dict(environment(), PYTHONPATH=f"{tmp_path / 'none'}:{TOP / 'python'}")
    _, err = ckpt("export", lineage, "--to", "torch", tmp_path / "o", "--name", "large", status=1, env=env)
    assert "has no torch: install it" in err and "Python did not write it" in err and not (tmp_path / "o").exists()
    _, err = ckpt("export", lineage, "--to", "torch", tmp_path / "o", "--name", "large", status=1, env=dict(env, DLROVER_PYTHON="/no/python"))
    assert "/no/python" in err and err.count("\n") == 1


@pytest.mark.parametrize("path", ["{}", ":{}", "{}:"])
def test_python_imports_nothing_of_the_current_folder(ckpt, lineage, tmp_path, path):
    here = tmp_path / "here"
    (here / "dlrover_slurm").mkdir(parents=True)
    for name in ("torch", "json", "struct", "sitecustomize", "dlrover_slurm/__init__", "dlrover_slurm/convert"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\nraise SystemExit(7)")
    python = python_with_torch()
    env = environment(PYTHONPATH=path.format(TOP / "python"))
    _, err = ckpt("export", lineage, "--to", "torch", "o", "--name", "large", status=0 if python else 1, env=env, cwd=here)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert (here / "o").exists() if python else "has no torch" in err


CONTENT = {
    "model.w": ("BF16", [3, 5], bytes(range(30))),
    "odd": ("I8", [3], b"abc"),
    "scalar": ("F64", [], struct.pack("<d", 1.5)),
    "none": ("F32", [0, 7], b""),
    "gr\u00f6\u00dfe \U0001d54f/\x1b[2J\u009b": ("F8_E4M3", [4], b"\x01\x02\x03\x04"),
    "large": ("U16", [300, 1000], np.arange(300000, dtype="<u2").tobytes()),
}


def test_import_and_export_again(ckpt, tmp_path):
    write_safetensors(tmp_path / "in", CONTENT, {"format": "pt", "x": "\\u00e4"})
    out, _ = ckpt("import", tmp_path / "in", "--to", tmp_path / "top", "--lineage", "lab/1/new job", "--step", 0)
    folder = tmp_path / "top" / "lab%2F1%2Fnew%20job"
    assert "6 tensors" in out and os.readlink(folder / "latest") == "step-0.gen-0.0.0"
    assert "whole" in ckpt("verify", tmp_path / "top")[0]
    ckpt("export", tmp_path / "top", "--to", "safetensors", tmp_path / "out")
    metadata, tensors = read_safetensors(tmp_path / "out")
    assert tensors == CONTENT and metadata["lineage"] == "lab/1/new job" and metadata["train_step"] == "0"
    with h5py.File(folder / "latest" / "index.h5") as index:
        assert np.array_equal(index["tensors"]["large"][()].reshape(-1), np.arange(300000) % 65536)
        assert index["tensors"]["scalar"][()] == 1.5
    out, _ = ckpt("show", folder)
    assert "\x1b" not in out and "\x9b" not in out and "größe 𝕏/?[2J?" in out
    assert "has checkpoints already" in ckpt("import", tmp_path / "in", "--to", tmp_path / "top", "--lineage", "lab/1/new job", "--step", 5, status=1)[1]


def test_the_skeleton_of_an_import_is_the_python_packages(ckpt, tmp_path):
    write_safetensors(tmp_path / "in", CONTENT)
    ckpt("import", tmp_path / "in", "--to", tmp_path / "top", "--lineage", "l", "--step", 3)
    with h5py.File(tmp_path / "top" / "l" / "latest" / "rank-0.h5") as file:
        skeleton = json.loads(file["skeleton"][()])
    assert skeleton["version"] == 1 and skeleton["ledger"] == "none"
    assert skeleton["state"] == {"$": "dict", "v": {n: {"$": "tensor", "o": i, "c": n} for i, n in enumerate(CONTENT)}}


def head(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


ENTRY = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
BAD = {
    "empty": b"",
    "short": b"\x01\x00",
    "longer than the file": struct.pack("<Q", 1 << 60) + b"{}",
    "no JSON": head(b"hello"),
    "deep": head(b'{"a":' * 100000),
    "outside": head(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"1234"),
    "backwards": head(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', b"1234"),
    "wrong shape": head(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"1234"),
    "overflow": head(b'{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
    "twice": head(b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}", b"1234"),
    "negative": head(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', b"1234"),
    "no UTF-8": head(b'{"\xff":' + ENTRY + b"}", b"1234"),
    "half a pair": head(b'{"\\ud800":' + ENTRY + b"}", b"1234"),
    "type": head(b'{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "17 dimensions": head(b'{"a":{"dtype":"U8","shape":[' + b",".join([b"1"] * 17) + b'],"data_offsets":[0,1]}}', b"1"),
    "no tensors": head(b"{}"),
    "no name": head(b'{"":' + ENTRY + b"}", b"1234"),
}


@pytest.mark.parametrize("what", BAD)
def test_import_trusts_nothing(ckpt, tmp_path, what):
    (tmp_path / "in").write_bytes(BAD[what])
    _, err = ckpt("import", tmp_path / "in", "--to", tmp_path / "top", "--lineage", "l", "--step", 1, status=1)
    assert str(tmp_path / "in") in err and err.count("\n") == 1
    assert not (tmp_path / "top").exists()


def test_import_leaves_nothing_half_done(ckpt, tmp_path):
    write_safetensors(tmp_path / "in", CONTENT)
    words = ["import", tmp_path / "in", "--to", tmp_path / "top", "--lineage", "l", "--step", "1"]
    limited = ["prlimit", "--fsize=100000", DLROVER, "ckpt", *map(str, words)]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert os.listdir(tmp_path / "top" / "l") == []
    ckpt(*words)
    assert "--lineage takes" in ckpt(*words[:5], "", *words[6:], status=2)[1]


def test_export_leaves_nothing_half_done(lineage, tmp_path):
    done = subprocess.run(["prlimit", "--fsize=100000", DLROVER, "ckpt", "export", lineage, "--to", "safetensors", tmp_path / "o", "--name", "large"],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "too large" in done.stderr.lower()
    assert os.listdir(tmp_path) == ["top"]


def test_the_real_library_agrees(ckpt, tmp_path):
    """Where the library of the format is installed it reads what was written."""
    safetensors = pytest.importorskip("safetensors.numpy", reason="no safetensors for this Python")
    write_safetensors(tmp_path / "in", {n: CONTENT[n] for n in ("odd", "scalar", "large")})
    ckpt("import", tmp_path / "in", "--to", tmp_path / "top", "--lineage", "l", "--step", 3)
    ckpt("export", tmp_path / "top", "--to", "safetensors", tmp_path / "out")
    tensors = safetensors.load_file(tmp_path / "out")
    assert np.array_equal(tensors["large"].reshape(-1), np.arange(300000, dtype="<u2")) and tensors["scalar"] == 1.5
