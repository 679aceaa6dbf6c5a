# SPDX-License-Identifier: Apache-2.0
"""DLRover's names for programs that were written for its flash checkpoint: change the import, nothing else.

    from dlrover_slurm.compat import DdpCheckpointer, StorageType

What is different is in docs/python.md, "Programs written for DLRover".
"""

from __future__ import annotations

import enum
import io
import os
import warnings
from typing import Any

import torch

from . import _prepare, _session
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


class Checkpointer:
    """What the checkpointers have in common. All ranks save, and all ranks load."""

    _saves = _prepare.Saves.OWN

    stage = True
    """Large tensors on a GPU are still being copied when save_checkpoint returns, and an optimizer's step waits for that. False: all is done then."""

    def __init__(
        self,
        checkpoint_dir: str,
        comm_backend: str = "",
        deletion_strategy: Any = None,
        save_timeout: int = 600,
        replica_count: int = 0,
        storage: Any = None,
    ) -> None:
        self.checkpoint_dir = checkpoint_dir
        _prepare.behind_first_step(self, self._saves)
        if deletion_strategy is not None:
            warnings.warn("deletion_strategy has no effect: how many checkpoints stay on storage is said by --dlrover-ckpt-keep", stacklevel=3)

    def wait_latest_checkpoint(self, timeout: float = 1800) -> None:
        """Until the last save is in memory; the way from there to storage is waited for by the end of the step."""
        _session.finish_previous()


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
        """False: no slot was free, this save was skipped."""
        storage = _to_storage(storage_type)
        return _session.save(step, to_cpu(state_dict), stage=self.stage, storage=storage, replicated=not self._parts)

    def load_checkpoint(self, resume_path: str = "") -> Any:
        """The state, on the CPU. What the job goes on from first (memory or storage), then ``resume_path``: a folder of checkpoints on
        storage, or a file as torch.save wrote it; {} if there is neither."""
        state = _load_whole(resume_path, self._parts)
        if state is not None:
            return state
        return torch.load(resume_path, map_location="cpu") if resume_path and os.path.exists(resume_path) else {}


class _FsdpCheckpointer(Checkpointer):
    """FSDP1 and FSDP2."""

    _full = False

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
        """False: no slot was free, this save was skipped on this rank."""
        from . import dcp

        storage = _to_storage(storage_type)
        states = self._states(model, optimizer)
        extra = io.BytesIO()
        torch.save(dict(extra_sd or {}), extra)
        return dcp.save(step, {"model": states[0], "optim": states[1], "extra": extra.getvalue()}, stage=self.stage, storage=storage)

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
            return {}
        self._set_states(model, optimizer, (state["model"], state["optim"]))
        return extra


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
        """False: no slot was free, this save was skipped on this rank."""
        storage = _to_storage(storage_type)
        states = self._states(model, optimizer)
        state = to_cpu({**(extra_sd or {}), "model": states[0], "optimizer": states[1]})
        return _session.save(step, state, stage=self.stage, storage=storage, replicated=True)

    def load_checkpoint(self, model: Any, optimizer: Any, resume_path: str = "") -> dict[str, Any]:
        """Loads into both; returns ``extra_sd``, {} where there was no checkpoint."""
        state = _load_whole(resume_path)
        if state is None and resume_path and os.path.exists(resume_path):
            state = torch.load(resume_path, map_location="cpu")
        if state is None:
            return {}
        self._set_states(model, optimizer, (state.pop("model"), state.pop("optimizer")))
        return state
