# SPDX-License-Identifier: Apache-2.0
"""Writes what ``dlrover ckpt export --to torch`` and ``--to dcp`` send it: ``main([FORMAT, OUT])``.

Standard input is a .safetensors stream (with ``C128`` beside the types of that format). What is written has its final name only
once all of it is there.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import warnings
from typing import Any, BinaryIO, Callable

TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64", "C128": "complex128",
}  # fmt: skip


class Failure(Exception):
    """A sentence for a person; empty: the sender has said what is wrong."""


def read_exactly(stream: BinaryIO, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        n = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not n:
            raise Failure("")
        done += n
    return data


def to_tensor(torch: Any, name: str, type_name: str, shape: list[int], data: bytearray) -> Any:
    dtype = getattr(torch, TYPES[type_name], None)
    if dtype is None:
        raise Failure(f'tensor "{name}" is of type {TYPES[type_name]}, which torch {torch.__version__} does not have: choose others by --name')
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


def read_tensors(torch: Any, stream: BinaryIO) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", read_exactly(stream, 8))
    head = json.loads(read_exactly(stream, length))
    head.pop("__metadata__", None)
    tensors, at = {}, 0
    for name, entry in sorted(head.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at, "the sender leaves no holes"
        tensors[name] = to_tensor(torch, name, entry["dtype"], entry["shape"], read_exactly(stream, end - begin))
        at = end
    return tensors


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_torch(torch: Any, tensors: dict[str, Any], path: str) -> None:
    with open(path, "xb") as file:  # never what somebody has put there
        torch.save(tensors, file)


def write_dcp(torch: Any, tensors: dict[str, Any], path: str) -> None:
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        raise Failure(f"torch {torch.__version__} has no torch.distributed.checkpoint: 2.0 or newer is needed") from None
    os.mkdir(path)
    writer = dcp.FileSystemWriter(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process alone is what is meant
        if hasattr(dcp, "save"):
            dcp.save(tensors, storage_writer=writer)
        else:
            dcp.save_state_dict(tensors, writer, no_dist=True)
    for name in os.listdir(path):
        sync(os.path.join(path, name))


WRITERS: dict[str, Callable[[Any, dict[str, Any], str], None]] = {"torch": write_torch, "dcp": write_dcp}


def remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def convert(kind: str, out: str, stream: BinaryIO) -> None:
    try:
        import torch
    except ImportError:
        raise Failure(f"{sys.executable} has no torch: install it, or name a Python that has it in DLROVER_PYTHON") from None
    tensors = read_tensors(torch, stream)
    folder, name = os.path.split(os.path.abspath(out))
    temporary = os.path.join(folder, f".new-{name}.{os.getpid()}")
    try:
        WRITERS[kind](torch, tensors, temporary)
        sync(temporary)
        os.rename(temporary, out)
        sync(folder)
    finally:
        remove(temporary)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in WRITERS:
        print("usage: torch|dcp OUT", file=sys.stderr)
        return 2
    try:
        convert(arguments[0], arguments[1], sys.stdin.buffer)
    except Failure as failure:
        if str(failure):
            print(f"dlrover: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"dlrover: {arguments[1]}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
