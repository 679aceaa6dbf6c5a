# SPDX-License-Identifier: Apache-2.0
"""The process's one connection, and what hangs on it: world, save, load."""

from __future__ import annotations

import atexit
import ctypes
import gc
import math
import numbers
import os
import threading
import warnings
from contextlib import contextmanager
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass, replace
from typing import Any, Iterable, Iterator, Union

from . import _cuda, _hook, _optimizers, _prepare, _state
from ._chunks import Batch, Chunk, StoredChunk, batch_of
from ._errors import CorruptError, DlroverError, ForkedError, InvalidError, NoMemoryError, NotFoundError, SkippedError, StaleError, UnsupportedError
from ._library import ChunkStruct, WorldStruct, check, library, read_pointer
from ._cuda import Stage
from ._share import Dealer, Replicated, Shared

Folder = Union[str, "os.PathLike[str]"]

_LONGEST_WAIT_S = 86400.0
_LAST_STEP = 2**63 - 1
_EXIT_WAIT = 1.0  # seconds


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
    saved_by: int = 1
    """ranks"""

    def __repr__(self) -> str:
        """Without what may be gigabytes of tensors."""
        return f"Checkpoint(step={self.step}, state={_kind(self.state)}, ledger={_kind(self.ledger)}, saved_by={self.saved_by})"


def _kind(value: Any) -> str:
    count = f" of {len(value)}" if isinstance(value, (dict, list, tuple, bytes)) else ""
    return f"<{type(value).__name__}{count}>"


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
_lost = ""  # why there is none any more
_lock = threading.RLock()
last_step = -1  # of save, load and report_step: where the optimizer hook goes on counting


def note_step(step: Any) -> int:
    """The step as a number; InvalidError where it is none, before anything is saved under it."""
    global last_step
    if not isinstance(step, numbers.Integral) or isinstance(step, bool):  # numpy's integers are some; a tensor or a flag is a slip
        raise InvalidError(f"a step is an int, this is {type(step).__name__}")
    number = int(step)
    if not 0 <= number <= _LAST_STEP:
        raise InvalidError(f"step {number} is not between 0 and {_LAST_STEP}")
    last_step = number
    return number


def check_options(replicated: Any, wait: Any = 0.0) -> None:
    if not isinstance(replicated, bool) and not callable(replicated):
        raise InvalidError(f"replicated is True, False or a function of a tensor's name, not {replicated!r}")
    if not isinstance(wait, (int, float)) or not wait >= 0:
        raise InvalidError(f"wait is a number of seconds, not {wait!r}")


def handle() -> c_void_p:
    """The context; opened at first use."""
    global _session
    if _session is not None and _session.pid != os.getpid():
        raise ForkedError("this process is a forked child: the checkpoint belongs to its parent")
    with _lock:
        if _lost:
            raise StaleError(_lost)
        if _session is None:
            _session = _Session()
            atexit.register(_close, _session)
        _hook.install_if_managed()
        _hook.install_guard()
        return _session.handle


def handle_if_open() -> c_void_p:
    """NULL: nothing has opened it, or it was closed."""
    return _session.handle if _session is not None else c_void_p()


def open_handle() -> c_void_p:
    """handle(), but without waiting for another thread's save: a signal's handler may be in the midst of one."""
    session = _session
    return session.handle if session is not None and session.pid == os.getpid() else handle()


def lose(why: str) -> None:
    """Each further use is a StaleError that says why."""
    global _lost
    _lost = why


@contextmanager
def exchange() -> Iterator[c_void_p]:
    """The handle, for a call that replaces the context; there is none for anybody else meanwhile."""
    global _had_memory, _session
    handle()
    session = _session
    assert session is not None
    with _lock:
        taken, session.handle = session.handle, c_void_p()
        try:
            yield taken
        finally:
            session.handle = taken
            _had_memory = False
            if not taken or _lost:  # the former is closed: the next use says why there is no other
                atexit.unregister(_close)
                _session = None


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


def dealer(replicated: Replicated) -> Dealer | None:
    """None: nothing is the same on other ranks."""
    return Dealer(replicated, handle, world().rank) if replicated else None


def prepare(state_or_bytes: Any, *, replicated: Replicated = False) -> None:
    """Makes memory for checkpoints of this state (or of this many bytes) ready in the background. ``replicated``: as the saves have it."""
    check_options(replicated)
    if isinstance(state_or_bytes, (str, float)) or (isinstance(state_or_bytes, int) and not 0 <= state_or_bytes < 2**64):
        raise InvalidError(f"prepare() takes a state, or its size as a number of bytes, not {state_or_bytes!r}")
    if isinstance(state_or_bytes, int):
        prepare_bytes(state_or_bytes, ())
    else:
        size = _state.encode(state_or_bytes, allow_pickle=True, dealer=dealer(replicated)).bound()
        prepare_bytes(size, _optimizers.tensors_in(state_or_bytes))


def prepare_bytes(size: int, tensors: Iterable[Any]) -> None:
    """The same for so many bytes, of these tensors among others: where one lies on a GPU, memory is made ready for copies from there."""
    pointer = next((tensor.data_ptr() for tensor in tensors if _cuda.device_of(tensor) is not None and tensor.numel()), None)
    if pointer is None:
        check(library().dlrover_prepare(handle(), size))
    else:
        check(library().dlrover_prepare_cuda(handle(), size, pointer))


def _close(session: _Session) -> None:
    """At the interpreter's end. A thread that is in the midst of a save (a callback of on_membership, say) keeps what it works in: it ends with the process."""
    if not _lock.acquire(timeout=_EXIT_WAIT):
        return
    try:
        finish_previous(give_up=True)
    finally:
        session.close()
        _lock.release()


_had_memory = False  # a save of this process has got a slot


class Saving:
    """A checkpoint on its way into memory: chunks are added, then it is sealed or given up. For one thread at a time."""

    def __init__(self, step: int, size: int, wait: float = 0.0, storage: bool = False) -> None:
        """``size``: upper bound of the object. SkippedError: no slot is free, nor was for ``wait`` seconds, or there is no memory for one any more. ``storage``: as of save()."""
        finish_previous(give_up=True)
        self._save = c_void_p()
        milliseconds = math.ceil(min(max(wait, 0.0), _LONGEST_WAIT_S) * 1000)
        check(library().dlrover_save_wait(handle(), milliseconds))
        self._begin(step, size)
        if storage:
            self._to_storage()

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """A block that raises gives it up."""
        if kind is not None:
            self.abort()

    def _begin(self, step: int, size: int) -> None:
        """Memory that is refused before the first save is an error of how the job was set up; later it costs a checkpoint, not the training."""
        global _had_memory
        try:
            check(library().dlrover_save_begin(handle(), step, size, byref(self._save)))
        except NoMemoryError as error:
            if not _had_memory:
                raise
            warnings.warn(f"step {step} was not saved: {error}", stacklevel=5)
            raise SkippedError(str(error)) from None
        _had_memory = True

    def _to_storage(self) -> None:
        with self:
            check(library().dlrover_save_to_storage(self._save))

    def add_shared(self, shared: Shared | None) -> None:
        """Says which chunks this node's ranks hold alike, before those that this rank keeps are added."""
        if shared is not None:
            shared.add(self._save)

    def add_host(self, batch: Batch) -> None:
        """Copies chunks of the host's memory, which may change afterwards."""
        check(library().dlrover_save_add_many(self._save, batch.count, batch.structs, batch.addresses, batch.sizes))

    def begin_gpu(self, chunks: list[Chunk]) -> set[int]:
        """Begins to copy those that lie on a GPU, and says on which ones."""
        devices = {chunk.device for chunk in chunks if chunk.device is not None}
        for device in sorted(devices):
            batch, stream = batch_of([chunk for chunk in chunks if chunk.device == device]), _cuda.stream_of(device)
            check(library().dlrover_save_add_cuda(self._save, batch.count, batch.structs, batch.addresses, batch.sizes, stream))
        return devices

    def describe(self, skeleton: bytes, ledger: bytes) -> None:
        """Before commit()."""
        lib = library()
        check(lib.dlrover_save_skeleton(self._save, skeleton, len(skeleton)))
        check(lib.dlrover_save_ledger(self._save, ledger, len(ledger)))

    def commit(self) -> None:
        """In any thread. SkippedError: the step was given up meanwhile. Ends this object, whatever the result, as abort() does."""
        save, self._save = self._save, c_void_p()
        check(library().dlrover_save_commit(save))

    def abort(self) -> None:
        save, self._save = self._save, c_void_p()
        if save:
            library().dlrover_save_abort(save)


class Sealing:
    """A save that has all of its chunks; copies from a GPU may be under way. One thread ends it, once: seals it or gives it up."""

    def __init__(self, step: int, saving: Saving, staging: _cuda.Staging | None) -> None:
        self.step = step
        self.pid = os.getpid()
        self.staging = staging
        """None: everything is copied"""
        self.behind = False
        """a thread of its own seals it, and wait_saved() tells its end"""
        self._saving = saving
        self._taken = threading.Lock()  # by the thread that ends it; never released
        self._ended = threading.Event()
        self._saved = False
        self._error: BaseException | None = None

    def seal(self, skeleton: bytes, ledger: bytes, *, behind: bool = False) -> bool:
        """False: it was skipped, or was given up before. ``behind``: where copies are under way a thread waits for them, and True means no more than that."""
        if not self._taken.acquire(blocking=False):
            return False
        try:
            self._saving.describe(skeleton, ledger)
        except BaseException:
            self._end()
            raise
        if behind and self.staging is not None:
            self._start()
            return True
        self._run()
        return self.finish()

    def failed(self) -> bool:
        """Has ended, and the step is not saved."""
        return self._ended.is_set() and not self._saved

    def give_up(self) -> bool:
        """Nothing is being copied any more when it returns. False: it has ended, or a thread is sealing it."""
        if not self._taken.acquire(blocking=False):
            return False
        self._end()
        return True

    def wait_ended(self) -> None:
        self._ended.wait()

    def finish(self) -> bool:
        """When it has ended: whether it was saved; or the error."""
        self.wait_ended()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._saved

    def _start(self) -> None:
        self.behind = True
        hold(self)
        try:
            threading.Thread(target=self._run, name="dlrover-seal").start()
        except RuntimeError:  # no thread to be had
            self._run()

    def _run(self) -> None:
        staging = self.staging
        try:
            if staging is not None:
                staging.wait()
                staging.check_unchanged()
            self._saving.commit()
            self._saved = True
        except SkippedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._saving.abort()  # nothing, after a commit
        self.staging = None  # and with it the tensors
        self._ended.set()


_sealing: Sealing | None = None  # the newest; kept until its end was told


def hold(sealing: Sealing) -> None:
    """From now on optimizers wait for its copies, and the next save for its end."""
    global _sealing
    _sealing = sealing


def _own_sealing() -> Sealing | None:
    """None also in a forked child: the threads are the parent's."""
    sealing = _sealing
    return sealing if sealing is not None and sealing.pid == os.getpid() else None


def sealing_of(step: int) -> Sealing | None:
    """Of the last save, where that was of this step and a thread seals it."""
    sealing = _own_sealing()
    return sealing if sealing is not None and sealing.behind and sealing.step == step else None


def wait_staged() -> None:
    """Returns when what the last save copies from a GPU has been copied: then any tensor of it may change, by whatever means."""
    sealing = _own_sealing()
    staging = sealing.staging if sealing is not None else None
    if staging is not None:
        staging.wait()


def fence_staged() -> None:
    """The same for the program's streams on the GPU, without waiting: what they are given from now on may change the tensors."""
    sealing = _own_sealing()
    staging = sealing.staging if sealing is not None else None
    if staging is not None:
        staging.fence()


def wait_saved() -> bool:
    """Returns when the last save() is sealed. False: it was skipped, or there was none to wait for; an error of its sealing is raised here. Of async_save
    its future tells."""
    global _sealing
    sealing = _own_sealing()
    if sealing is None or not sealing.behind:
        return False
    _sealing = None
    return sealing.finish()


def finish_previous(*, give_up: bool = False) -> None:
    """One save at a time. An earlier one that failed is told, and does not stop the next, unless nothing can be saved any more.
    ``give_up``: one that async_save is to seal is not waited for, since its thread may have failed before it came to that."""
    sealing = _own_sealing()
    if sealing is None:
        return
    if not sealing.behind:
        if give_up:
            _give_up(sealing)
        return
    try:
        wait_saved()
    except StaleError:
        raise
    except DlroverError as error:
        warnings.warn(f"step {sealing.step} was not saved: {error}", stacklevel=4)


def _give_up(sealing: Sealing) -> None:
    """Of async_save."""
    global _sealing
    if sealing.give_up():
        warnings.warn(f"step {sealing.step} was not saved: another save came before async_save had sealed it; wait for its future", stacklevel=5)
    else:
        sealing.wait_ended()
    _sealing = None


def _late(gpu: list[Chunk], stage: Stage) -> list[Chunk]:
    """Those whose copies may be under way when the save returns."""
    if not stage:
        return []
    late = [chunk for chunk in gpu if _cuda.may_be_staged(chunk)]
    if stage is True and late:
        owned = _optimizers.Owned(_cuda.SMALL_BYTES, _cuda.device_of)
        late = [chunk for chunk in late if owned.holds(chunk.address, chunk.nbytes)]
    elif callable(stage):
        late = [chunk for chunk in late if stage(chunk.path)]
    return late if _hook.install_guard() else []


def begin_copies(saving: Saving, step: int, gpu: list[Chunk], host: Iterable[Batch], stage: Stage) -> _cuda.Staging | None:
    """Begins those from a GPU, and makes those from the host. None: there is nothing on a GPU."""
    staged = _late(gpu, stage)
    late = {id(chunk) for chunk in staged}
    # The small ones first: what comes later on the program's stream waits for them, and for them alone.
    _cuda.fence(handle(), saving.begin_gpu([chunk for chunk in gpu if id(chunk) not in late]))
    staging = _cuda.Staging(step, handle(), staged, gpu) if gpu else None
    saving.begin_gpu(staged)
    for batch in host:
        saving.add_host(batch)
    return staging


@contextmanager
def collector_waits() -> Iterator[None]:
    """A state of thousands of tensors makes as many small objects on its way, none of them in a cycle: to look at all objects of the program
    because of them takes longer than the rest of it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def save(
    step: int,
    state: Any,
    *,
    ledger: Any = None,
    allow_pickle: bool = False,
    wait: float = 0.0,
    stage: Stage = True,
    storage: bool = False,
    replicated: Replicated = False,
) -> bool:
    """Copies ``state`` after training step ``step`` into the node's memory and seals it.

    True: everything is copied and checksummed; the state may change. False: no slot was free, this save was skipped; a warning
    says so where it was for want of memory (before the first save that is a NoMemoryError).
    With tensors on a GPU True means: on its way. The large ones that an optimizer of torch owns, once it has stepped, are held until its next step,
    which waits for their copies on the GPU; everything else is copied before the next kernel. A thread seals the step (``wait_staged()``,
    ``wait_saved()``). ``stage=False``: everything is done on return; a function says by their names of which tensors the copies may be under way.
    ``ledger``: the position in the data (bytes, or anything that JSON can say), at most 64 KiB.
    ``wait``: for a save that should not be skipped, the last of a training: how many seconds to wait for a free slot.
    ``storage``: this step is to go to storage as soon as every rank has saved it, whatever --dlrover-ckpt-every says; nothing waits for that.
    UnsupportedError, and nothing is saved, where the step has no --dlrover-ckpt-dir.
    ``replicated``: the torch tensors are the same on all ranks of the world (True: all of them; else a function that says so of a name, as
    "model.0.weight"). Each of 64 KiB or more is kept once on a node then, by one of its ranks: saves take less time and memory. All ranks must save the same
    names, types and shapes in that way; InvalidError where they do not.
    """
    step = note_step(step)
    check_options(replicated, wait)
    with collector_waits():
        encoded = _state.encode(state, ledger, allow_pickle, dealer(replicated))
    with _lock:
        try:
            with Saving(step, encoded.bound(), wait, storage) as saving:
                saving.add_shared(encoded.shared)
                staging = begin_copies(saving, step, encoded.gpu, encoded.host, stage)
            return Sealing(step, saving, staging).seal(encoded.skeleton, encoded.ledger, behind=bool(stage))
        except SkippedError:
            return False


class Opened:
    """An object opened for reading; closed when nobody holds a view of it any more."""

    def __init__(self, folder: Folder | None = None) -> None:
        """``folder``: a checkpoint on storage by its place, not what this rank resumes from. Nothing in it is this rank's own."""
        self._pid = os.getpid()
        self._restore = c_void_p()
        finish_previous()
        if folder is None:
            check(library().dlrover_restore_open(handle(), byref(self._restore)))
        else:
            check(library().dlrover_restore_open_folder(handle(), os.fsencode(folder), byref(self._restore)))

    def __del__(self) -> None:
        if self._restore and self._pid == os.getpid() and _session is not None and _session.handle:
            library().dlrover_restore_close(self._restore)

    def pointer(self) -> c_void_p:
        return self._restore

    def step(self) -> int:
        return library().dlrover_restore_step(self._restore)

    def saved_by(self) -> int:
        """ranks"""
        return library().dlrover_restore_world_size(self._restore)

    def count(self) -> int:
        """chunks of this rank's own"""
        return library().dlrover_restore_count(self._restore)

    def check_world_size(self) -> None:
        saved_by, here = self.saved_by(), world().world_size
        if saved_by != here:
            raise UnsupportedError(
                f"the checkpoint of step {self.step()} was saved by {saved_by} ranks, this world has {here}: this state is loaded "
                "at the size that saved it; read its tensors with dlrover_slurm.GlobalTensors"
            )

    def _all(self) -> Iterator[tuple[str, tuple[int, ...], StoredChunk]]:
        lib, info, data, size = library(), ChunkStruct(), c_void_p(), c_uint64()
        for i in range(self.count()):
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


class RankObject:
    """What one of the ranks put into an opened checkpoint. UnsupportedError: it is in another rank's memory."""

    def __init__(self, opened: Opened, rank: int) -> None:
        self._opened = opened
        self._rank = rank
        self._places: dict[tuple[str, tuple[int, ...]], tuple[int, StoredChunk]] = {}
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._last: tuple[str, StoredChunk] | None = None

    def check(self) -> None:
        """UnsupportedError, as of everything else here."""
        check(library().dlrover_restore_rank_count(self._opened.pointer(), self._rank, byref(c_uint64())))

    def skeleton(self) -> bytes:
        pointer, size = c_void_p(), c_uint64()
        check(library().dlrover_restore_rank_skeleton(self._opened.pointer(), self._rank, byref(pointer), byref(size)))
        return ctypes.string_at(pointer, size.value) if size.value else b""

    def _index(self) -> dict[tuple[str, tuple[int, ...]], tuple[int, StoredChunk]]:
        """By name and offset: number and what the table says; without the bytes."""
        if not self._places:
            lib, handle, count, size = library(), self._opened.pointer(), c_uint64(), c_uint64()
            check(lib.dlrover_restore_rank_count(handle, self._rank, byref(count)))
            for i in range(count.value):
                info = ChunkStruct()
                check(lib.dlrover_restore_rank_chunk(handle, self._rank, i, byref(info), byref(size)))
                chunk = StoredChunk(info.dtype, tuple(info.local_shape[: info.ndim]), 0, size.value, None)
                self._places[info.name.decode(), tuple(info.global_offset[: info.ndim])] = (i, chunk)
        return self._places

    def read(self, name: str, offset: tuple[int, ...]) -> StoredChunk:
        """A chunk, copied and verified."""
        place = self._index().get((name, offset))
        if place is None:
            raise CorruptError(f"rank {self._rank} has no chunk {name!r} at {list(offset)}, which its skeleton names")
        index, chunk = place
        memory = (ctypes.c_char * max(1, chunk.nbytes))()
        check(library().dlrover_restore_rank_read(self._opened.pointer(), self._rank, index, memory, chunk.nbytes))
        return replace(chunk, address=ctypes.addressof(memory), owner=memory)

    def __getitem__(self, name: str) -> StoredChunk:
        """A chunk of a state, which has one of each name. The last is kept."""
        if self._last is None or self._last[0] != name:
            self._last = None
            self._offsets = self._offsets or dict(self._index().keys())
            self._last = (name, self.read(name, self._offsets.get(name, ())))
        return self._last[1]


def _ranks(first: int, after: int) -> str:
    return f"rank {first}" if after == first + 1 else f"ranks {first} to {after - 1}"


def _check_own(opened: Opened, skeleton: bytes, rank: int, world_size: int) -> None:
    """In a world of another size: what is each rank's own has a rank to go to, and each rank has its own."""
    saved_by = opened.saved_by()
    where = f"the checkpoint of step {opened.step()} was saved by {saved_by} ranks, this world has {world_size}"
    if rank >= saved_by:
        others = (RankObject(opened, other).skeleton() for other in range(saved_by))
        own = next(_state.own_parts(skeleton, others), None)
        if own is not None:
            raise UnsupportedError(
                f"{where}: {own or 'the state'!r} is each rank's own, and rank {rank} has none there. Load it at {saved_by} ranks, or with adopt=True, "
                f"then rank {rank} takes what rank {rank % saved_by} saved; what is the same on all ranks is saved with replicated="
            )
    elif rank == 0 and saved_by > world_size:
        own = next(_state.own_parts(skeleton), None)
        if own is not None:
            warnings.warn(
                f"{where}: what {_ranks(world_size, saved_by)} saved as their own ({own or 'the state'!r} first) is loaded by nobody (adopt=True: say nothing)",
                stacklevel=6,
            )


def _as_saved(opened: Opened, own: bool, map_location: Any, views: bool, adopt: bool) -> Any:
    """The state that this rank takes. ``own``: the checkpoint is what this rank resumes from, not one that was named."""
    saved_by, here = opened.saved_by(), world()
    if own and saved_by == here.world_size:
        return _state.decode(opened.skeleton(), opened.chunks(), map_location, views)
    of_rank = RankObject(opened, here.rank % saved_by)
    skeleton = of_rank.skeleton()
    if not adopt:
        _check_own(opened, skeleton, here.rank, here.world_size)
    return _state.decode(skeleton, of_rank, map_location)


def load_one(map_location: Any, views: bool, folder: Folder | None, adopt: bool, same_size: bool = False) -> Checkpoint | None:
    """load(). ``same_size``: a world of another size is refused."""
    with _lock:
        try:
            opened = Opened(folder)
        except NotFoundError:
            if folder is not None:
                raise
            return None
        if same_size:
            opened.check_world_size()
        with collector_waits():
            state = _as_saved(opened, folder is None, map_location, views, adopt)
        ledger = _state.ledger_of(opened.skeleton(), opened.ledger())
        step, saved_by = opened.step(), opened.saved_by()
    note_step(step)
    return Checkpoint(step, state, ledger, saved_by)


def load(map_location: Any = "cpu", *, views: bool = False, folder: Folder | None = None, adopt: bool = False) -> Checkpoint | None:
    """The checkpoint that this rank resumes from; None: start from the beginning.

    In a world of another size than saved it, which is possible from storage, each rank takes what the rank of its number saved. Further
    ranks take what was saved as replicated, and values that all ranks saved alike; where the state has more, UnsupportedError names it.
    ``adopt=True``: they take all that the rank of their number modulo the old size saved.
    ``folder``: a checkpoint on storage by its place, of a lineage (its newest complete one) or of one checkpoint; NotFoundError if there is none.
    ``views=True``: tensors and arrays lie in the checkpoint's own memory, without a copy, in a world of the same size and without a folder. Never
    write to them (the memory is read-only: the process would be killed), and let go of them soon: their slot can not be used for saving
    meanwhile.
    """
    _prepare.behind_first_step_of_program()
    return load_one(map_location, views, folder, adopt)
