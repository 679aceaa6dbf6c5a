# SPDX-License-Identifier: Apache-2.0
"""DLRover's names for programs that were written for its flash checkpoint: change the import, nothing else.

    from dlrover_slurm.compat import DdpCheckpointer, StorageType

What is different is in docs/python.md, "Programs written for DLRover".
"""

from __future__ import annotations

import enum
import io
import os
import pickle
import re
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import torch

from . import _durable, _prepare, _session
from ._errors import NotFoundError, UnsupportedError
from ._torch import to_cpu

__all__ = ["Checkpointer", "DdpCheckpointer", "FsdpFullCheckpointer", "FsdpShardCheckpointer", "StorageType"]


class StorageType(enum.Enum):
    MEMORY = enum.auto()
    DISK = enum.auto()


def _to_storage(storage_type: StorageType) -> bool:
    if not isinstance(storage_type, StorageType):
        raise ValueError(f"{storage_type!r} is no StorageType")
    return storage_type is StorageType.DISK


def _on_storage(path: str) -> bool:
    """Whether it is the folder of a lineage's checkpoints on storage, or of one of them."""
    if not path or not os.path.isdir(path):
        return False
    folder = os.path.realpath(path)
    manifests = (name for name in os.listdir(folder) if name.startswith("step-") and name.endswith(".manifest"))
    return os.path.exists(folder + ".manifest") or any(manifests)


def _load_whole(resume_path: str, parts: bool = False) -> Any:
    """A state that all ranks hold: what this rank resumes from, or the checkpoint on storage at that path; at another world size than
    its own what the rank of our number modulo theirs saved. None: there is neither. ``parts``: each rank has its own part of it."""
    checkpoint = _session.load_one("cpu", False, None, True, parts)
    if checkpoint is None and _on_storage(resume_path):
        checkpoint = _session.load_one("cpu", False, resume_path, True, parts)
    return None if checkpoint is None else checkpoint.state


def _load_file(path: str) -> Any:
    """As torch.save wrote it. What torch says of another file does not name it (``KeyError: 174812789``)."""
    try:
        return torch.load(path, map_location="cpu")
    except Exception as error:
        raise UnsupportedError(f"resume_path {path} can not be loaded as a file of torch.save: {type(error).__name__}: {error}; name another, or none to go on without") from error


@dataclass(frozen=True)
class _Theirs:
    """The newest checkpoint that DLRover itself has left in a folder."""

    tracker: str
    step: int

    def folder(self) -> str:
        return os.path.join(os.path.dirname(self.tracker), str(self.step))

    def load(self, rank: int) -> Any:
        """What that rank saved."""
        path = os.path.join(self.folder(), f"rank_{rank}.pt")
        if not os.path.exists(path):
            raise NotFoundError(
                f"{self.tracker}, which DLRover has left, is of step {self.step}, and {path} is not there: name the file as resume_path, or remove the "
                "former to begin anew"
            )
        try:
            state = torch.load(path, map_location="cpu")  # from 2.6 on tensors and plain values alone; older versions do not know floats then
        except pickle.UnpicklingError as error:
            raise UnsupportedError(
                f"{path}, which DLRover has left, holds more than tensors and plain values, and is not loaded unasked: where it is to be trusted, load it "
                f"by torch.load(..., weights_only=False), or import its tensors (dlrover ckpt import, see dlrover-ckpt(1)); remove {self.tracker} to begin "
                f"anew ({error})"
            ) from None
        warnings.warn(f"there is no checkpoint of this job: {path} is loaded, which DLRover has left", stacklevel=4)
        _session.note_step(self.step)
        return state


def _left_in(checkpoint_dir: str) -> _Theirs | None:
    tracker = os.path.join(checkpoint_dir, "dlrover_latest.txt")
    if not os.path.isfile(tracker):
        return None
    with open(tracker) as file:
        text = file.read().strip()
    if not text:  # DLRover passes over it, too
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UnsupportedError(f"{tracker} names no step: it should be DLRover's; remove it to begin anew")
    return _Theirs(tracker, int(text))


@dataclass(frozen=True)
class _Asked:
    """A save that is to go to storage."""

    step: int
    generation: tuple[int, int]
    sealing: _session.Sealing | None


class Checkpointer:
    """What the checkpointers have in common. All ranks save, and all ranks load."""

    _saves = _prepare.Saves.OWN
    _torch = (1, 13)
    """which version of it is needed"""

    stage = True
    """Large tensors on a GPU are still being copied when save_checkpoint returns, and an optimizer's step waits for that. False: all is done then."""

    wait = 60.0
    """How many seconds a save for storage waits for a free slot, the same on all ranks. One for memory does not: it is skipped."""

    def __init__(
        self,
        checkpoint_dir: str,
        comm_backend: str = "",
        deletion_strategy: Any = None,
        save_timeout: int = 600,
        replica_count: int = 0,
        storage: Any = None,
    ) -> None:
        if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < self._torch:
            wanted = ".".join(map(str, self._torch))
            raise UnsupportedError(f"{type(self).__name__} needs torch {wanted} or later, this is {torch.__version__}")
        self.checkpoint_dir = checkpoint_dir
        self._asked: _Asked | None = None
        _prepare.behind_first_step(self, self._saves)
        if deletion_strategy is not None:
            warnings.warn("deletion_strategy has no effect: how many checkpoints stay on storage is said by --dlrover-ckpt-keep", stacklevel=3)

    def wait_latest_checkpoint(self, timeout: float = 1800) -> bool:
        """Until the last step that this rank has saved for storage is there, all ranks' parts of it, or a newer one in its place. False, with a warning: it is not
        within ``timeout`` seconds, or that can not be seen from here. Where none was saved for storage: until the last save is in memory."""
        _session.finish_previous()
        last = self._asked
        if last is None:
            return True
        given_up = last.sealing is not None and last.sealing.failed()
        why = "its save was given up" if given_up else _durable.why_not_durable(last.step, last.generation, timeout)
        if why:
            warnings.warn(f"step {last.step} is not known to be on storage: {why}", stacklevel=2)
        return not why

    def _save(self, step: int, storage_type: StorageType, save: Callable[..., bool]) -> bool:
        """``save(wait=, storage=)``."""
        if not _to_storage(storage_type):
            return save(wait=0.0, storage=False)
        generation = _session.world().generation
        saved = save(wait=self.wait, storage=True)
        if saved:
            self._asked = _Asked(step, generation, _session.sealing_of(step))
        else:
            warnings.warn(f"step {step} is not saved, and does not go to storage: this rank had no slot for it within {self.wait:g} s, or has skipped it before", stacklevel=3)
        return saved

    def _theirs(self, parts: bool = False) -> Any:
        """The state that DLRover itself has left for this rank; None: there is none. ``parts``: each rank has its own part."""
        theirs = _left_in(self.checkpoint_dir)
        return None if theirs is None else theirs.load(_session.world().rank if parts else 0)


class DdpCheckpointer(Checkpointer):
    """A state that every rank holds as a whole, or its own part of."""

    def __init__(
        self,
        checkpoint_dir: str,
        local_shard_num: int = 1,
        global_shard_num: int = 1,
        comm_backend: str = "",
        deletion_strategy: Any = None,
        save_timeout: int = 600,
        replica_count: int = 0,
        storage: Any = None,
    ) -> None:
        self._parts = global_shard_num > 1
        self._saves = _prepare.Saves.OWN if self._parts else _prepare.Saves.ALIKE
        super().__init__(checkpoint_dir, comm_backend, deletion_strategy, save_timeout, replica_count, storage)

    def save_checkpoint(
        self, step: int, state_dict: dict[str, Any], path: str = "", storage_type: StorageType = StorageType.DISK
    ) -> bool:
        """False: no slot was free (for DISK: nor was within ``wait`` seconds), this save was skipped."""
        save = partial(_session.save, step, to_cpu(state_dict), stage=self.stage, replicated=not self._parts)
        return self._save(step, storage_type, save)

    def load_checkpoint(self, resume_path: str = "") -> Any:
        """The state, on the CPU. What the job goes on from first (memory or storage), then ``resume_path``: a folder of checkpoints on
        storage, or a file as torch.save wrote it; then what DLRover itself has left in ``checkpoint_dir``; {} if there is none of them."""
        state = _load_whole(resume_path, self._parts)
        if state is None and resume_path and os.path.exists(resume_path):
            state = _load_file(resume_path)
        if state is None:
            state = self._theirs(self._parts)
        return {} if state is None else state


class _FsdpCheckpointer(Checkpointer):
    """FSDP1 and FSDP2."""

    _full = False
    _torch = (2, 6)

    def _states(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        return get_state_dict(model, optimizer, options=self._options())

    def _set_states(self, model: Any, optimizer: Any, states: tuple[Any, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=self._options())

    def _options(self) -> Any:
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        return StateDictOptions(full_state_dict=self._full)


class FsdpShardCheckpointer(_FsdpCheckpointer):
    """Every rank saves its own shards."""

    def save_checkpoint(
        self,
        step: int,
        model: Any,
        optimizer: Any,
        extra_sd: dict[str, Any] | None = None,
        path: str = "",
        storage_type: StorageType = StorageType.DISK,
    ) -> bool:
        """False: no slot was free (for DISK: nor was within ``wait`` seconds), this save was skipped on this rank."""
        from . import dcp

        states = self._states(model, optimizer)
        extra = io.BytesIO()
        torch.save(dict(extra_sd or {}), extra)
        state = {"model": states[0], "optim": states[1], "extra": extra.getvalue()}
        return self._save(step, storage_type, partial(dcp.save, step, state, stage=self.stage))

    def load_checkpoint(self, model: Any, optimizer: Any, resume_path: str = "") -> dict[str, Any]:
        """Loads into both; returns ``extra_sd``, {} where there was no checkpoint."""
        from . import dcp

        states = self._states(model, optimizer)
        state: dict[str, Any] = {"model": states[0], "optim": states[1], "extra": b""}
        ours = _on_storage(resume_path)
        if dcp.load(state) is not None or (ours and dcp.load(state, folder=resume_path) is not None):
            extra = torch.load(io.BytesIO(state["extra"]), map_location="cpu", weights_only=False)
        elif resume_path and os.path.exists(resume_path):
            from torch.distributed.checkpoint import load

            extra = {}
            del state["extra"]
            load(state, checkpoint_id=resume_path)
        else:
            self._refuse_theirs()
            return {}
        self._set_states(model, optimizer, (state["model"], state["optim"]))
        return extra

    def _refuse_theirs(self) -> None:
        theirs = _left_in(self.checkpoint_dir)
        if theirs is not None:
            raise UnsupportedError(
                f"{theirs.folder()}, which DLRover has left, is in a format of shards that only DLRover reads: save it there by its FsdpFullCheckpointer, "
                "which the one here reads, or by torch.distributed.checkpoint, and name that folder as resume_path; single tensors come in by dlrover ckpt "
                f"import, see dlrover-ckpt(1). Remove {theirs.tracker} to begin anew"
            )


class FsdpFullCheckpointer(_FsdpCheckpointer):
    """Every rank saves the whole model: for small ones."""

    _saves = _prepare.Saves.WHOLE
    stage = False  # the whole tensors are made for the save, and would stay on the GPU beside the next step
    _full = True

    def save_checkpoint(
        self,
        step: int,
        model: Any,
        optimizer: Any,
        extra_sd: dict[str, Any] | None = None,
        path: str = "",
        storage_type: StorageType = StorageType.DISK,
    ) -> bool:
        """False: no slot was free (for DISK: nor was within ``wait`` seconds), this save was skipped on this rank."""
        states = self._states(model, optimizer)
        state = to_cpu({**(extra_sd or {}), "model": states[0], "optimizer": states[1]})
        return self._save(step, storage_type, partial(_session.save, step, state, stage=self.stage, replicated=True))

    def load_checkpoint(self, model: Any, optimizer: Any, resume_path: str = "") -> dict[str, Any]:
        """Loads into both; returns ``extra_sd``, {} where there was no checkpoint."""
        state = _load_whole(resume_path)
        if state is None and resume_path and os.path.exists(resume_path):
            state = _load_file(resume_path)
        if state is None:
            state = self._theirs()
        if state is None:
            return {}
        self._set_states(model, optimizer, (state.pop("model"), state.pop("optimizer")))
        return state
