# SPDX-License-Identifier: Apache-2.0
"""The process's one connection, and what hangs on it: world, save, load."""

from __future__ import annotations

import atexit
import math
import os
import threading
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Iterator

from . import _hook, _state
from ._chunks import Chunk, StoredChunk, to_struct
from ._errors import ForkedError, NotFoundError, SkippedError, UnsupportedError
from ._library import ChunkStruct, WorldStruct, check, library, read_pointer

_ALIGNMENT = 64
_TABLE_BYTES_PER_CHUNK = 1024
_LONGEST_WAIT_S = 86400.0


@dataclass(frozen=True)
class World:
    """Who takes part in this generation."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    generation: tuple[int, int]
    """(term, number); only ever grows"""
    restart_count: int
    restore_step: int | None
    """the step that load() returns; None: start from the beginning"""
    managed: bool
    """False: plain files, no daemon"""


@dataclass(frozen=True)
class Checkpoint:
    step: int
    state: Any
    ledger: Any = None


class _Session:
    """Owner of the context."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.handle = c_void_p()
        check(library().dlrover_open(byref(self.handle)))

    def close(self) -> None:
        if self.handle and self.pid == os.getpid():
            library().dlrover_close(self.handle)
            self.handle = c_void_p()


_session: _Session | None = None
_lock = threading.RLock()
last_step = -1  # of save, load and report_step: where the optimizer hook goes on counting


def note_step(step: int) -> None:
    global last_step
    last_step = step


def handle() -> c_void_p:
    """The context; opened at first use."""
    global _session
    if _session is not None and _session.pid != os.getpid():
        raise ForkedError("this process is a forked child: the checkpoint belongs to its parent")
    with _lock:
        if _session is None:
            _session = _Session()
            atexit.register(_session.close)
        _hook.install_if_managed()
        return _session.handle


def world() -> World:
    raw = WorldStruct()
    check(library().dlrover_get_world(handle(), byref(raw)))
    return World(
        raw.rank,
        raw.world_size,
        raw.local_rank,
        raw.local_world_size,
        raw.group_rank,
        raw.group_world_size,
        (raw.generation_term, raw.generation_number),
        raw.restart_count,
        raw.restore_step if raw.restore_step >= 0 else None,
        bool(raw.managed),
    )


def _bound(chunks: list[Chunk], skeleton: bytes) -> int:
    """Upper bound of the object's size."""
    return sum(size_in_object(chunk.nbytes, chunk.name) for chunk in chunks) + len(skeleton)


def size_in_object(nbytes: int, name: str) -> int:
    """Upper bound of what a chunk takes, its line in the table included."""
    return nbytes + _ALIGNMENT + _TABLE_BYTES_PER_CHUNK + len(name.encode())


def prepare(state_or_bytes: Any) -> None:
    """Makes memory for checkpoints of this state (or of this many bytes) ready in the background."""
    if isinstance(state_or_bytes, int):
        size = state_or_bytes
    else:
        encoded = _state.encode(state_or_bytes, allow_pickle=True)
        size = _bound(encoded.chunks, encoded.skeleton)
    check(library().dlrover_prepare(handle(), size))


class Saving:
    """A checkpoint on its way into memory: chunks are added, then it is sealed or given up. For one thread at a time."""

    def __init__(self, step: int, size: int, wait: float = 0.0) -> None:
        """``size``: upper bound of the object. SkippedError: no slot is free, nor was for ``wait`` seconds."""
        self._save = c_void_p()
        milliseconds = math.ceil(min(max(wait, 0.0), _LONGEST_WAIT_S) * 1000)
        check(library().dlrover_save_wait(handle(), milliseconds))
        check(library().dlrover_save_begin(handle(), step, size, byref(self._save)))

    def add(self, chunks: list[Chunk]) -> None:
        """Copies; the memory of the chunks may change afterwards."""
        count = len(chunks)
        structs = (ChunkStruct * count)()
        addresses = (c_void_p * count)()
        sizes = (c_uint64 * count)()
        names = [chunk.name.encode() for chunk in chunks]
        for i, chunk in enumerate(chunks):
            to_struct(chunk, structs[i], names[i])
            addresses[i] = chunk.address or None
            sizes[i] = chunk.nbytes
        check(library().dlrover_save_add_many(self._save, count, structs, addresses, sizes))

    def seal(self, skeleton: bytes, ledger: bytes) -> None:
        """SkippedError: the step was given up meanwhile. Ends this object, whatever the result, as abort() does."""
        lib = library()
        try:
            check(lib.dlrover_save_skeleton(self._save, skeleton, len(skeleton)))
            check(lib.dlrover_save_ledger(self._save, ledger, len(ledger)))
        except BaseException:
            self.abort()
            raise
        save, self._save = self._save, c_void_p()
        check(lib.dlrover_save_commit(save))

    def abort(self) -> None:
        save, self._save = self._save, c_void_p()
        if save:
            library().dlrover_save_abort(save)


def save(step: int, state: Any, *, ledger: Any = None, allow_pickle: bool = False, wait: float = 0.0) -> bool:
    """Copies ``state`` after training step ``step`` into the node's memory and seals it.

    True: everything is copied and checksummed; the state may change. False: no slot was free, this save was skipped.
    ``ledger``: the position in the data (bytes, or anything that JSON can say), at most 64 KiB.
    ``wait``: for a save that should not be skipped, the last of a training: how many seconds to wait for a free slot.
    """
    note_step(step)
    encoded = _state.encode(state, ledger, allow_pickle)
    with _lock:
        try:
            saving = Saving(step, _bound(encoded.chunks, encoded.skeleton), wait)
            try:
                saving.add(encoded.chunks)
            except BaseException:
                saving.abort()
                raise
            saving.seal(encoded.skeleton, encoded.ledger)
        except SkippedError:
            return False
    return True


class Opened:
    """An object opened for reading; closed when nobody holds a view of it any more."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._restore = c_void_p()
        check(library().dlrover_restore_open(handle(), byref(self._restore)))

    def __del__(self) -> None:
        if self._restore and self._pid == os.getpid() and _session is not None and _session.handle:
            library().dlrover_restore_close(self._restore)

    def pointer(self) -> c_void_p:
        return self._restore

    def step(self) -> int:
        return library().dlrover_restore_step(self._restore)

    def check_world_size(self) -> None:
        saved_by, here = library().dlrover_restore_world_size(self._restore), world().world_size
        if saved_by != here:
            raise UnsupportedError(
                f"the checkpoint of step {self.step()} was saved by {saved_by} ranks, this world has {here}: a state is loaded "
                "as a whole at the size that saved it; read its tensors with dlrover_slurm.GlobalTensors"
            )

    def _all(self) -> Iterator[tuple[str, tuple[int, ...], StoredChunk]]:
        lib, info, data, size = library(), ChunkStruct(), c_void_p(), c_uint64()
        for i in range(lib.dlrover_restore_count(self._restore)):
            check(lib.dlrover_restore_chunk(self._restore, i, byref(info), byref(data), byref(size)))
            shape = tuple(info.local_shape[: info.ndim])
            chunk = StoredChunk(info.dtype, shape, data.value or 0, size.value, self)
            yield info.name.decode(), tuple(info.global_offset[: info.ndim]), chunk

    def chunks(self) -> dict[str, StoredChunk]:
        return {name: chunk for name, _, chunk in self._all()}

    def pieces(self) -> dict[tuple[str, tuple[int, ...]], StoredChunk]:
        """By name and offset."""
        return {(name, offset): chunk for name, offset, chunk in self._all()}

    def skeleton(self) -> bytes:
        return read_pointer(library().dlrover_restore_skeleton, self._restore)

    def ledger(self) -> bytes:
        return read_pointer(library().dlrover_restore_ledger, self._restore)


def load(map_location: Any = "cpu", *, views: bool = False) -> Checkpoint | None:
    """The checkpoint that this rank resumes from; None: start from the beginning.

    ``views=True``: tensors and arrays lie in the checkpoint's own memory, without a copy. Never write to them (the memory is
    read-only: the process would be killed), and let go of them soon: their slot can not be used for saving meanwhile.
    """
    with _lock:
        try:
            opened = Opened()
        except NotFoundError:
            return None
        opened.check_world_size()
        state, ledger = _state.decode(opened.skeleton(), opened.chunks(), opened.ledger(), map_location, views)
        step = opened.step()
    note_step(step)
    return Checkpoint(step, state, ledger)

