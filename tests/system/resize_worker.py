# SPDX-License-Identifier: Apache-2.0
"""The training of test_resize.py: one rank has some rows of a field, as many as its share of the world. After any number of steps every row has a
closed form, so whoever finds a row knows what every byte of it must be."""

import ctypes
import os
import pathlib
import sys
import time

import numpy
from dlrover_slurm import GlobalTensors, _session, world
from dlrover_slurm._dtypes import TABLE
from dlrover_slurm._errors import SkippedError
from dlrover_slurm._library import ChunkStruct, check, library
from resize_field import COLUMNS, ROWS, rows_after
from walk import INCREMENT, MULTIPLIER


def save(step: int, rows: "numpy.ndarray", first: int) -> None:
    chunk = ChunkStruct(name=b"field", dtype=TABLE["uint64"][0], ndim=2)
    chunk.global_shape[:2] = [ROWS, COLUMNS]
    chunk.global_offset[:2] = [first, 0]
    chunk.local_shape[:2] = rows.shape
    handle = ctypes.c_void_p()
    try:
        check(library().dlrover_save_begin(_session.handle(), step, rows.nbytes, ctypes.byref(handle)))
    except SkippedError:
        return
    addresses, sizes = (ctypes.c_void_p * 1)(rows.ctypes.data), (ctypes.c_uint64 * 1)(rows.nbytes)
    check(library().dlrover_save_add_many(handle, 1, ctypes.byref(chunk), addresses, sizes))
    try:
        check(library().dlrover_save_commit(handle))
    except SkippedError:
        pass


def main() -> int:
    folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    here = world()
    first = ROWS * here.rank // here.world_size
    count = ROWS * (here.rank + 1) // here.world_size - first
    step, saved_by = 0, 0
    begun = time.monotonic()
    if here.restore_step is not None and here.restore_step >= 0:
        with GlobalTensors() as tensors:
            step, saved_by = tensors.step, tensors.saved_by
            rows = tensors.numpy("field", (first, 0), (count, COLUMNS))
    else:
        rows = rows_after(0, first, count)
    took = time.monotonic() - begun
    right = bool((rows == rows_after(step, first, count)).all())
    with open(folder / f"log-{here.rank}", "a", encoding="utf-8") as log:
        print("begin", here.world_size, step, saved_by, "right" if right else "wrong", f"{took:.3f}", os.environ["SLURMD_NODENAME"], file=log)
    while step < steps:
        rows = rows * numpy.uint64(MULTIPLIER) + numpy.uint64(INCREMENT)
        step += 1
        time.sleep(0.02)
        library().dlrover_report_step(_session.handle(), step)
        if step % 5 == 0:
            save(step, rows, first)
    (folder / f"rows-{first:04}").write_bytes(rows.tobytes())
    return 0 if right else 3


sys.exit(main())
