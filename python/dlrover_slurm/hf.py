# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with checkpoints in the node's memory.

    callback = DlroverCallback(every=10)
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume())

For one device and DDP, at any number of ranks. What the Trainer itself writes to its output folder stays as its arguments say.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import random
import shutil
import tempfile
import warnings
from typing import Any, Sequence

import torch

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(f"dlrover_slurm.hf needs transformers ({error})") from error

from . import _hook, _session
from ._errors import UnsupportedError
from ._hf_position import Position, difference
from ._optimizers import nbytes_of, tensors_in
from ._share import Replicated
from ._torch import to_cpu

__all__ = ["DlroverCallback"]

#: The last save of a training waits so long for a free slot.
_LAST_WAIT_S = 60.0

#: What a laid out checkpoint takes besides its tensors.
_LAYOUT_BYTES = 16 << 20


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _rng_state() -> dict[str, Any]:
    """As the Trainer keeps it; of several GPUs also which one is this rank's."""
    import numpy

    state = {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        if _distributed():
            state["cuda"], state["device"] = torch.cuda.get_rng_state_all(), torch.cuda.current_device()
        else:
            state["cuda"] = torch.cuda.get_rng_state()
    return state


def _rng_of_another(state: dict[str, Any]) -> dict[str, Any]:
    """Another rank's for this one, whose GPU may have another number: the Trainer sets those of all GPUs where there are several ranks, else of one."""
    if "cuda" not in state or not torch.cuda.is_available():
        return state
    cuda = state["cuda"][state["device"]] if "device" in state else state["cuda"]
    several = _distributed() or _session.world().world_size > 1
    return {**state, "cuda": [cuda] * torch.cuda.device_count() if several else cuda}


def _refuse(args: Any, model: Any) -> None:
    """What the callback would not bring back right."""
    what = None
    if getattr(args, "fsdp", None) or any(hasattr(p, "device_mesh") for p in model.parameters()):
        what = "FSDP or tensor parallel in the Trainer"
    elif getattr(args, "deepspeed", None):
        what = "DeepSpeed in the Trainer"
    elif hasattr(model, "peft_config"):
        what = "a PEFT model"
    if what is not None:
        raise UnsupportedError(f"DlroverCallback: {what} is not in this version")


def _buffers(model: Any) -> set[str]:
    """As they are called in the state that is saved."""
    return {f"model.{name}" for name, _ in model.named_buffers(remove_duplicate=False)}


def _in_one_group() -> bool:
    """Whether DDP has all ranks of the world, and not each or some of them a model of their own."""
    return _distributed() and torch.distributed.get_world_size() == _session.world().world_size


def _alike(model: Any) -> bool:
    """Whether any rank's state, but for buffers and random numbers, is as good as any other's."""
    if _session.world().world_size == 1:
        return True
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    return _in_one_group() and not (ignored and ignored.intersection(name for name, _ in model.named_parameters(remove_duplicate=False)))


def _replicated(model: Any) -> Replicated:
    """What DDP makes the same on all ranks: parameters, and with them the optimizer's state. Buffers are each rank's own: BatchNorm's
    statistics differ."""
    if not _in_one_group() or not _alike(model):
        return False
    buffers = _buffers(model)
    return lambda name: name.startswith(("model.", "optimizer.")) and name not in buffers


def _with_room(nbytes: int) -> str:
    """The first of memory, the temporary folder and the working directory that has so much room."""
    tried = []
    for path in ("/dev/shm", tempfile.gettempdir(), os.getcwd()):
        try:
            room = os.statvfs(path)
        except OSError:
            continue
        free = room.f_bavail * room.f_frsize
        if os.access(path, os.W_OK) and free >= nbytes:
            return path
        tried.append(f"{path} has {free >> 20} MiB")
    raise OSError(
        errno.ENOSPC,
        f"no room to lay out the checkpoint for the Trainer: {nbytes >> 20} MiB are needed, {', '.join(tried) or 'and there is no folder'}; name a folder: "
        "resume(folder=...)",
    )


def _private_folder(parent: str | None, nbytes: int) -> str:
    """A new one, with room for so much. Its name is the rank's: what it left behind when it was killed is removed first."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "DLROVER_LOCAL_DIR")
    key = hashlib.sha256("\0".join([os.getcwd(), *(os.environ.get(name, "") for name in names)]).encode()).hexdigest()[:12]
    name = f"dlrover-{os.getuid()}-{key}-{_session.world().rank}"
    if parent is not None and not os.path.isdir(parent):
        raise FileNotFoundError(f"resume(folder={parent!r}): there is no such folder; make it, or name none to have one found")
    for old in ([parent] if parent is not None else ["/dev/shm", tempfile.gettempdir(), os.getcwd()]):
        shutil.rmtree(os.path.join(old, name), ignore_errors=True)
    path = os.path.join(_with_room(nbytes) if parent is None else parent, name)
    os.mkdir(path, 0o700)
    return path


class DlroverCallback(TrainerCallback):
    """Saves model, optimizer, scheduler, scaler, random numbers and the Trainer's state into memory every ``every`` steps.

    ``stateful``: other callbacks with a state (EarlyStoppingCallback) that belongs into the checkpoint. ``stage=False``: tensors on a GPU are copied
    before the training goes on.
    """

    def __init__(self, every: int = 1, *, stateful: Sequence[Any] = (), stage: bool = True) -> None:
        if every < 1:
            raise ValueError("every: a number of steps, at least 1")
        self.every = every
        self.skipped = 0
        """saves that were skipped because no slot was free"""
        self._prepared = False
        self._stateful = list(stateful)
        self._stage = stage
        self._folder: str | None = None
        self._moved: tuple[int, Position] | None = None
        """the other number of ranks that saved what is resumed, and where; until the training begins"""

    # ---- saving ----

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _refuse(args, kwargs["model"])
        _hook.install_guard()
        self._tell_moved(args, state, kwargs.get("train_dataloader"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_resume()
        if state.global_step % self.every == 0:
            self._save(state, self._state(args, state, control, **kwargs), kwargs["model"])
        elif not self._prepared:  # from its first step on the optimizer has all that it is going to keep
            _session.prepare(self._state(args, state, control, **kwargs), replicated=_replicated(kwargs["model"]))
        self._prepared = True

    def _save(self, state: Any, parts: dict[str, Any], model: Any) -> None:
        wait = _LAST_WAIT_S if state.global_step == state.max_steps else 0.0
        if not _session.save(state.global_step, parts, wait=wait, stage=self._stage, replicated=_replicated(model)):
            self.skipped += 1

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the last epoch the Trainer may load the best model into this one, before it tells that the training ends."""
        _session.wait_staged()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_resume()
        _session.finish_previous()

    def _state(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, lr_scheduler: Any, train_dataloader: Any = None, **_: Any
    ) -> dict[str, Any]:
        trainer = dataclasses.asdict(state)
        for callback in [control, *self._stateful]:
            if "stateful_callbacks" in trainer and hasattr(callback, "state"):
                trainer["stateful_callbacks"][type(callback).__name__] = callback.state()
        parts: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if lr_scheduler is not None:
            parts["scheduler"] = lr_scheduler.state_dict()
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None:
            parts["scaler"] = scaler.state_dict()
        position = dataclasses.asdict(Position.of(args, state, train_dataloader))
        about = {"hf": 1, "alike": _alike(model), "position": position, "trainer": json.dumps(trainer)}
        return {**about, "rng": to_cpu(_rng_state()), **to_cpu(parts)}

    # ---- resuming ----

    def resume(self, folder: str | None = None) -> str | None:
        """A folder as the Trainer reads it, with what this rank resumes from; None: start from the beginning.

        It is this rank's own, in ``folder`` (default: the first with room for it of /dev/shm, that is memory, the temporary folder and the working
        directory; OSError where none has), and is removed after the first step.

        At another number of ranks a rank takes what the rank of its number modulo the old one has saved. The Trainer counts its place in the data in steps: rank 0
        warns when the training begins where a step has another number of samples now. UnsupportedError: the ranks that saved had not all the same model.
        """
        checkpoint = _session.load_one("cpu", False, None, True)
        if checkpoint is None:
            return None
        if not isinstance(checkpoint.state, dict) or checkpoint.state.get("hf") != 1:
            raise UnsupportedError("the checkpoint was not saved by DlroverCallback")
        self._moved = None
        if checkpoint.saved_by != _session.world().world_size:
            self._move(checkpoint)
        size = sum(map(nbytes_of, tensors_in(checkpoint.state)))
        self._folder = _private_folder(folder, size + size // 8 + _LAYOUT_BYTES)
        path = os.path.join(self._folder, f"checkpoint-{checkpoint.step}")
        os.mkdir(path)
        self._write(path, checkpoint.state)
        return path

    def _move(self, checkpoint: _session.Checkpoint) -> None:
        """Makes another rank's state this one's."""
        state, here = checkpoint.state, _session.world().world_size
        if not state.get("alike"):
            raise UnsupportedError(
                f"the checkpoint of step {checkpoint.step} was saved by {checkpoint.saved_by} ranks that were not one DDP group, or of which DDP left parameters out; "
                f"this world has {here}: such a state is loaded at the number of ranks that saved it"
            )
        state["rng"] = _rng_of_another(state["rng"])
        self._moved = checkpoint.saved_by, Position(**state["position"])

    def _tell_moved(self, args: Any, state: Any, loader: Any) -> None:
        moved, self._moved = self._moved, None
        world = _session.world()
        if moved is None or moved[1].step != state.global_step or world.rank != 0:
            return
        saved_by, saved = moved
        text = difference(saved, Position.of(args, state, loader), (saved_by, world.world_size), args.ignore_data_skip)
        if text:
            warnings.warn(f"DlroverCallback: {text}", stacklevel=2)

    @staticmethod
    def _write(path: str, state: dict[str, Any]) -> None:
        names = {"model": "pytorch_model.bin", "optimizer": "optimizer.pt", "scheduler": "scheduler.pt", "scaler": "scaler.pt"}
        for part, name in names.items():
            if part in state:
                torch.save(state[part], os.path.join(path, name))
        world = _session.world()
        rng = "rng_state.pth" if world.world_size == 1 else f"rng_state_{world.rank}.pth"
        torch.save(state["rng"], os.path.join(path, rng))
        with open(os.path.join(path, "trainer_state.json"), "w") as f:
            f.write(state["trainer"])

    def _end_resume(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
