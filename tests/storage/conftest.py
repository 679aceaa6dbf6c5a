# SPDX-License-Identifier: Apache-2.0
"""`dlrover ckpt` on real checkpoints."""
import json
import os
import pathlib
import struct
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = os.environ["STORAGE_SAMPLE"]
DLROVER = os.environ.get("DLROVER", "dlrover")


def write_sample(folder, *numbers):
    subprocess.run([SAMPLE, str(folder), *map(str, numbers)], check=True)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def read_safetensors(path):
    """(metadata, {name: (type, shape, bytes)}), as the format says, without its library."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    head, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    metadata, tensors, at = head.pop("__metadata__", {}), {}, 0
    for name, entry in sorted(head.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at and end <= len(data), "no holes, no overlap"
        tensors[name], at = (entry["dtype"], entry["shape"], data[begin:end]), end
    assert at == len(data) and (8 + length) % 8 == 0
    return metadata, tensors


def write_safetensors(path, tensors, metadata=None):
    """tensors: {name: (type, shape, bytes)}"""
    head, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (kind, shape, content) in tensors.items():
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def ckpt():
    """Runs dlrover ckpt; checks its exit status; returns (stdout, stderr). A crash never passes."""

    def run(*words, status=0, **options):
        done = subprocess.run([DLROVER, "ckpt", *map(str, words)], capture_output=True, stdin=subprocess.DEVNULL, timeout=120, **options)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == status, (done.returncode, out, err)
        if status != 0:
            assert err.startswith("dlrover: ") and err.endswith("\n"), err
        return out, err

    return run


@pytest.fixture
def lineage(tmp_path):
    """A lineage of steps 10, 20, 30."""
    folder = tmp_path / "top" / "lab%2F1000%2Fjöb"
    for step in (10, 20, 30):
        write_sample(folder, step)
    return folder
