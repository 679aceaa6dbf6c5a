# SPDX-License-Identifier: Apache-2.0
"""Lists of chunks as libdlrover takes them."""

import sys
import threading

import pytest
from dlrover_slurm import _chunks

THREADS, ROUNDS, CHUNKS = 4, 60, 600


@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def batch_of(thread: int, count: int) -> _chunks.Batch:
    struct = _chunks.ChunkStruct()
    struct.dtype = thread + 1
    names = [f"{thread}.{i}" for i in range(count)]
    return _chunks.Batch.of_columns(_chunks.Columns(names, [1] * count, [4] * count, [bytes(struct)] * count))


def test_threads_that_encode_at_once_have_memory_of_their_own(many_switches):
    wrong: "list[str]" = []
    start = threading.Barrier(THREADS)

    def encode(thread: int) -> None:
        start.wait()
        for i in range(ROUNDS):
            batch = batch_of(thread, CHUNKS - i)  # fits into what the last one had
            found = {(one.name, one.dtype) for one in batch.structs}
            if found != {(f"{thread}.{k}".encode(), thread + 1) for k in range(CHUNKS - i)}:
                wrong.append(f"thread {thread}, round {i}")
            batch.recycle()

    threads = [threading.Thread(target=encode, args=(i,)) for i in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
