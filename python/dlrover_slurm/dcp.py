# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint in the node's memory and from storage: DDP, FSDP1 and FSDP2, tensor parallel, HSDP, whatever its planner reduces to pieces.

    from dlrover_slurm import dcp

    step = dcp.load(state_dict)             # None: start from the beginning
    dcp.save(step, state_dict)

or with torch's own calls:

    torch.distributed.checkpoint.save(state_dict, storage_writer=dcp.MemoryWriter(step))
    torch.distributed.checkpoint.load(state_dict, storage_reader=dcp.MemoryReader())

Every rank's object names all that its part of the state holds, and what it needs is there without asking other nodes: of the pieces that
several ranks of a node hold, each is kept by one of them, and the others read it there. From storage it reads what its own object lacks out of the other ranks' files, so that other world sizes
and shardings load as well. save() and load() of this module use no collectives at all.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from typing import Any, Iterator, Union

try:
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
    from torch.distributed.checkpoint.planner import (
        LoadItemType,
        LoadPlan,
        LoadPlanner,
        ReadItem,
        SavePlan,
        SavePlanner,
        WriteItem,
    )
    from torch.distributed.checkpoint.stateful import Stateful
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
    from torch.futures import Future
except ImportError as error:
    raise ImportError(f"dlrover_slurm.dcp needs torch 2.6 or later ({error})") from error

from . import _prepare, _session
from ._chunks import Batch, StoredChunk
from ._cuda import Stage
from ._dcp_metadata import AllEntries, AllPaths, OwnFirst, own_entries
from ._dcp_object import Box, Layout, ObjectBuilder, parse, tensor_of
from ._dcp_stored import AllRanks
from ._errors import InvalidError, NotFoundError, SkippedError, UnsupportedError
from ._share import Replicated, Shared, with_bytes
from ._state import decode_ledger, encode_ledger

__all__ = ["FolderReader", "MemoryReader", "MemoryWriter", "latest_step", "load", "save"]

CheckpointId = Union[str, "os.PathLike[str]", int]


def _step_of(checkpoint_id: CheckpointId) -> int:
    """The last number in the last part of a path: 300 of ``run7/step-300``."""
    numbers = re.findall(r"\d+", os.path.basename(str(checkpoint_id).rstrip("/")))
    if not numbers:
        raise InvalidError(f"there is no step in the checkpoint_id {str(checkpoint_id)!r}: end it with one, or use MemoryWriter(step)")
    return int(numbers[-1])


class _Staged:
    """A plan's items in an object that is not sealed yet, or on their way there from a GPU (``stage``)."""

    def __init__(
        self,
        step: int,
        items: list[WriteItem],
        planner: SavePlanner,
        kept: set[MetadataIndex] | None,
        wait: float,
        storage: bool,
        replicated: Replicated,
        stage: Stage,
    ) -> None:
        _session.check_options(replicated, wait)
        self.indices = {item.index for item in items}
        paths, self._rank = getattr(planner, "mappings", None), _session.world().rank
        self._builder = ObjectBuilder(items, planner, kept, paths, replicated, _session.handle(), self._rank)
        self._sealing: _session.Sealing | None = None
        self.results: list[WriteResult] = []
        gpu = self._builder.gpu()
        try:
            saving = _session.Saving(step, self._builder.bound(), wait, storage)
        except SkippedError:
            return
        with saving:
            saving.add_shared(Shared(gpu, self._rank))
            staging = _session.begin_copies(saving, step, with_bytes(gpu, self._rank), self._host(saving), stage)
        self._sealing = _session.Sealing(step, saving, staging)
        self.results = [WriteResult(item.index, size, None) for item, size in self._builder.written()]

    def _host(self, saving: _session.Saving) -> Iterator[Batch]:
        for chunks in self._builder.batches():
            saving.add_shared(Shared(chunks, self._rank))
            yield Batch(with_bytes(chunks, self._rank))

    def hold(self) -> None:
        """Optimizers wait for its copies until it is sealed."""
        if self._sealing is not None:
            _session.hold(self._sealing)

    def wait_copied(self) -> None:
        staging = self._sealing.staging if self._sealing is not None else None
        if staging is not None:
            staging.wait()

    def seal(self, ledger: Any, *, behind: bool = False) -> bool:
        """False: skipped, no slot was free. ``behind``: a thread waits for copies from a GPU that are under way."""
        if self._sealing is None:
            return False
        try:
            kind, data = encode_ledger(ledger)
            skeleton = self._builder.skeleton(kind)
        except BaseException:
            self.abort()
            raise
        return self._sealing.seal(skeleton, data, behind=behind)

    def abort(self) -> None:
        """Nothing is being copied any more when it returns."""
        if self._sealing is not None:
            self._sealing.give_up()


def _done(value: Any) -> Any:
    future: Any = Future()
    future.set_result(value)
    return future


class MemoryWriter(StorageWriter):
    """Saves this rank's pieces into the node's memory. Also the stager of ``async_save``: the copy is made there, before it returns, or where large
    tensors lie on a GPU it is begun there and an optimizer's step waits for it, as after save(stage=True).

    ``step``: the training step; without it, it is read from the ``checkpoint_id`` of each save (``async_save`` needs it here).
    ``planner``: the one given to ``async_save``, if any. ``ledger``, ``wait``, ``storage``, ``replicated``: as in save(); may be set before each save.
    ``skipped`` says afterwards whether the save was skipped here because no slot was free; without ``wait`` the other ranks do not wait for that.
    With it a rank waits where it copies: in ``async_save`` before that returns, in torch's save() between its collectives, so all ranks do.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        step: int | None = None,
        *,
        planner: SavePlanner | None = None,
        ledger: Any = None,
        wait: float = 0.0,
        storage: bool = False,
        replicated: Replicated = False,
    ) -> None:
        super().__init__()
        _session.check_options(replicated, wait)
        self.step = step
        self.ledger = ledger
        self.wait = wait
        self.storage = storage
        self.replicated = replicated
        self.skipped = False
        self._planner = planner
        self._local: list[WriteItem] = []
        self._staged: _Staged | None = None

    # ---- StorageWriter ----

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        if checkpoint_id is None:
            return
        step = _step_of(checkpoint_id)
        if self._staged is not None and step != self.step:
            raise InvalidError(f"step {self.step} is staged, but the checkpoint_id says {step}")
        self.step = step

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.skipped = False

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Before the coordinator gives each piece to one of the ranks that hold it: this is what we hold."""
        if getattr(plan, "usable", True):
            self._local = list(plan.items)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        kept = {item.index for item in plan.items}
        staged, self._staged = self._staged, None
        if staged is None:
            more = [item for item in self._held(planner) if item.index not in kept]
            staged = _Staged(self._known_step(), list(plan.items) + more, planner, kept, self.wait, self.storage, self.replicated, False)
        elif not kept <= staged.indices:
            staged.abort()
            raise InvalidError("async_save was given a planner with other items than were staged: give it to MemoryWriter(planner=...)")
        self.skipped = not staged.seal(self.ledger)
        return _done([result for result in staged.results if result.index in kept])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: each rank's object says what is in it."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return re.search(r"\d", os.path.basename(str(checkpoint_id).rstrip("/"))) is not None

    # ---- AsyncStager ----

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies the state into the node's memory, or begins to; write_data() waits for that and seals it. What the background thread needs of the state,
        the shapes, is not changed by training."""
        if self.step is None:
            raise InvalidError("async_save copies before it looks at checkpoint_id: name the step, MemoryWriter(step)")
        self.close()
        planner = self._planner if self._planner is not None else DefaultSavePlanner()
        items = list(_local_save_plan(planner, dict(state_dict)).items)
        self._staged = _Staged(self.step, items, planner, None, self.wait, self.storage, self.replicated, True)
        self._staged.hold()
        _session.note_step(self.step)
        return state_dict

    def synchronize_staging(self) -> None:
        """When it returns any tensor may change, by whatever means."""
        staged = self._staged
        if staged is not None:
            staged.wait_copied()

    def close(self) -> None:
        """Gives up what was staged and not sealed; nothing is being copied any more when it returns."""
        if self._staged is not None:
            self._staged.abort()
            self._staged = None

    # ----

    def _known_step(self) -> int:
        if self.step is None:
            raise InvalidError("which step is this? MemoryWriter(step), or a checkpoint_id that ends with it")
        _session.note_step(self.step)
        return self.step

    def _held(self, planner: SavePlanner) -> list[WriteItem]:
        """The local plan; a planner that caches plans sends an empty one when nothing has changed, and keeps it."""
        if self._local:
            return self._local
        cached = getattr(planner, "_cached_save_plan", {}).get(getattr(planner, "_cached_plans_key", None))
        return list(cached.items) if cached is not None else []


def _local_save_plan(planner: SavePlanner, state_dict: dict[str, Any]) -> SavePlan:
    """This rank's plan, as if it were alone."""
    planner.set_up_planner(state_dict, None, False)
    plan = planner.create_local_plan()
    if not getattr(plan, "usable", True):
        raise UnsupportedError("a planner with enable_plan_caching is of no use without the coordinator: switch it off")
    return plan


def _wanted(item: ReadItem) -> Box:
    """The part of the whole tensor that an item asks for."""
    origin = item.storage_index.offset or (0,) * len(item.lengths)
    return Box(tuple(a + b for a, b in zip(origin, item.storage_offsets)), tuple(item.lengths))


class MemoryReader(StorageReader):
    """Loads what this rank resumes from: out of its own object, and where that is on storage what it lacks out of the other ranks' files.
    After loading, ``step`` and ``ledger`` say what it was."""

    def __init__(self) -> None:
        super().__init__()
        _prepare.behind_first_step_of_program()
        self.step: int | None = None
        self.ledger: Any = None
        self._folder: _session.Folder | None = None
        self._opened: _session.Opened | None = None
        self._layout = Layout()
        self._pieces: dict[tuple[str, tuple[int, ...]], StoredChunk] = {}
        self._all: AllRanks | None = None
        self._alone = False

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        """The checkpoint is the one that all ranks resume from; a step named here is checked when it is opened."""
        self.close()
        self.step = None if checkpoint_id is None else _step_of(checkpoint_id)

    def close(self) -> None:
        """Lets go of the checkpoint's memory. read_data() does it, too."""
        self._pieces, self._all, self._opened, self._alone = {}, None, None, False

    def read_metadata(self) -> Metadata:
        opened = self._open()
        if not opened.count():
            everyone = self._everyone()
            if everyone is not None:
                return Metadata(AllEntries(everyone), planner_data=AllPaths(everyone) if everyone.has_paths() else None)
        return Metadata(OwnFirst(own_entries(self._layout), self._everyone), planner_data=self._layout.paths)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._open()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Before anything is changed: whether all that is wanted is here."""
        differing: dict[str, int] = {}
        for item in plan.items:
            if self._is_own(item):
                continue
            everyone = self._everyone()
            if everyone is None:
                raise self._refusal(item)
            if item.type != LoadItemType.BYTE_IO:
                rank = everyone.check(item.storage_index.fqn, _wanted(item))
                if rank is not None:
                    differing[item.storage_index.fqn] = rank
        if differing and self._open().saved_by() != _session.world().world_size:
            _warn_of(differing)
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        try:
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(self._value(item)))
                else:
                    self._read_tensor(item, planner)
        finally:
            self.close()
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return MemoryWriter.validate_checkpoint_id(checkpoint_id)

    # ----

    def _open(self) -> _session.Opened:
        if self._opened is None:
            opened = _session.Opened(self._folder)
            layout = parse(opened.skeleton())
            if self.step is not None and self.step != opened.step():
                what = "the ranks resume from" if self._folder is None else f"{os.fspath(self._folder)} is of"
                raise NotFoundError(f"{what} step {opened.step()}, not {'from ' if self._folder is None else ''}{self.step}")
            self.step = opened.step()
            self.ledger = decode_ledger(layout.ledger, opened.ledger())
            self._opened, self._layout, self._pieces = opened, layout, opened.pieces()
            _session.note_step(self.step)
        return self._opened

    def _everyone(self) -> AllRanks | None:
        """What all ranks saved; None: it is in their memory."""
        if self._all is None and not self._alone:
            try:
                self._all = AllRanks(self._open(), _session.world().rank)
            except UnsupportedError:
                self._alone = True
        return self._all

    def _is_own(self, item: ReadItem) -> bool:
        if item.type == LoadItemType.BYTE_IO:
            return (self._layout.values.get(item.storage_index.fqn, ""), (0,)) in self._pieces
        return self._stored(item) is not None

    def _stored(self, item: ReadItem) -> torch.Tensor | None:
        """The piece of ours that the item asks for, in the checkpoint's own memory."""
        entry = self._layout.tensors.get(item.storage_index.fqn) if self._pieces else None
        wanted = tuple(item.storage_index.offset or ())
        for piece in entry.pieces if entry is not None else []:
            if piece.offset == wanted and entry is not None:
                return tensor_of(piece, entry.dtype, self._pieces)
        return None

    def _value(self, item: ReadItem) -> bytes:
        name = item.storage_index.fqn
        if self._is_own(item):
            return self._pieces[self._layout.values[name], (0,)].to_bytes()
        everyone = self._everyone()
        if everyone is None:
            raise self._refusal(item)
        return everyone.value(name)

    def _read_tensor(self, item: ReadItem, planner: LoadPlanner) -> None:
        target, stored = planner.resolve_tensor(item).detach(), self._stored(item)
        if tuple(target.shape) != tuple(item.lengths):
            raise InvalidError(f"{item.dest_index.fqn}: the piece has shape {tuple(target.shape)}, the checkpoint's {tuple(item.lengths)}")
        if stored is not None:
            for dim, (first, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                stored = stored.narrow(dim, first, length)
            target.copy_(stored)
        else:
            everyone = self._everyone()
            if everyone is None:
                raise self._refusal(item)
            everyone.read(item.storage_index.fqn, _wanted(item), target)
        planner.commit_tensor(item, target)

    def _refusal(self, item: ReadItem) -> UnsupportedError:
        """What this rank did not save itself, where only memory has it."""
        self.close()
        return UnsupportedError(
            f"{item.storage_index.fqn} from {list(item.storage_index.offset or ())} on is not in what this rank saved: memory and plain files give back the same "
            "ranks and the same sharding; other world sizes and shardings come from a checkpoint on storage"
        )


class FolderReader(MemoryReader):
    """Loads a checkpoint on storage by its place, whoever saved it and whatever this world resumes from.

    ``folder``: of a lineage (its newest complete checkpoint), or of one of its checkpoints; name one where others may come meanwhile, or
    ranks may choose differently.
    """

    def __init__(self, folder: _session.Folder) -> None:
        super().__init__()
        self._folder = folder


def _warn_of(differing: dict[str, int]) -> None:
    ranks = sorted(set(differing.values()))
    names = ", ".join(sorted(differing)[:5]) + (", ..." if len(differing) > 5 else "")
    warnings.warn(
        f"the ranks saved different tensors under one name: {names}; those of rank {', '.join(map(str, ranks))} are taken. Stages of a pipeline "
        "must not number their parameters each for itself",
        stacklevel=4,
    )


def latest_step() -> int | None:
    """The step that load() gives back; None: start from the beginning."""
    _session.finish_previous()
    return _session.world().restore_step


def save(
    step: int,
    state_dict: dict[str, Any],
    *,
    planner: SavePlanner | None = None,
    ledger: Any = None,
    wait: float = 0.0,
    stage: Stage = True,
    storage: bool = False,
    replicated: Replicated = False,
) -> bool:
    """Saves this rank's part of the state into the node's memory, without a word to the other ranks.

    True: copied and sealed; with tensors on a GPU on its way, as in dlrover_slurm.save() (``stage``, ``wait_staged()``, ``wait_saved()``). False: no slot
    was free, this save was skipped here. ``wait`` (seconds in which it waits for one), ``storage``: as there.
    What several ranks of a node hold of a DTensor is kept once there. ``replicated``: the same for tensors that are no DTensors and are equal on
    all ranks of the world (DDP): True, or a function that says so of a name.
    """
    step = _session.note_step(step)
    planner = DefaultSavePlanner() if planner is None else planner
    state = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state_dict.items()}
    with _session.collector_waits():
        items = list(_local_save_plan(planner, state).items)
        staged = _Staged(step, items, planner, None, wait, storage, replicated, stage)
    return staged.seal(ledger, behind=bool(stage))


def load(
    state_dict: dict[str, Any],
    *,
    planner: LoadPlanner | None = None,
    reader: MemoryReader | None = None,
    folder: _session.Folder | None = None,
) -> int | None:
    """Loads into ``state_dict`` in place, as torch.distributed.checkpoint.load() does, without a word to the other ranks.

    ``folder``: as of FolderReader. The step that was loaded; None: there is none, start from the beginning (with a folder an error).
    """
    if reader is None:
        reader = MemoryReader() if folder is None else FolderReader(folder)
    try:
        metadata = reader.read_metadata()
    except NotFoundError:
        if isinstance(reader, FolderReader):
            raise
        return None
    state = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state_dict.items()}
    try:
        _load_local_plan(DefaultLoadPlanner() if planner is None else planner, reader, metadata, state)
    finally:
        reader.close()
    for key, value in state_dict.items():
        if isinstance(value, Stateful):
            value.load_state_dict(state[key])
        else:
            state_dict[key] = state[key]
    return reader.step


def _load_local_plan(planner: LoadPlanner, reader: MemoryReader, metadata: Metadata, state: dict[str, Any]) -> None:
    planner.set_up_planner(state, metadata, False)
    reader.set_up_storage_reader(metadata, False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()
