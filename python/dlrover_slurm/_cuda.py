# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU: where they are, on which stream the program works, and whether they changed while they were copied."""

from __future__ import annotations

import sys
import threading
from ctypes import c_void_p
from operator import attrgetter
from typing import Any, Callable, Union

from ._chunks import Chunk
from ._errors import ChangedError, DlroverError
from ._library import check, library

Stage = Union[bool, Callable[[str], bool]]
"""Whether copies from a GPU may be under way when a save returns: of the large tensors that optimizers own, of none, or of those whose name it says yes to."""

SMALL_BYTES = 1 << 20
"""A smaller tensor is copied before the program's stream goes on: to hold it back is not worth it."""

_IS_CPU = attrgetter("is_cpu")

_UNCOUNTED = ("running_mean", "running_var")
"""torch's normalisations change these in the forward pass, and its counter of versions does not see it."""

_changing: set[str] = set()
"""Places in a state whose tensors were changed by somebody while they were being copied."""


def device_of(tensor: Any) -> int | None:
    """None: not on an NVIDIA GPU."""
    return tensor.device.index if tensor.is_cuda and not _by_amd() else None


_device_of = device_of


def all_on_host(tensors: list[Any]) -> bool:
    """Thousands are looked at at once: torch's own word is enough where nobody (a GPU that tests make up) has put another device_of() in its place."""
    return all(map(_IS_CPU, tensors)) and (device_of is _device_of or all(device_of(tensor) is None for tensor in tensors))


def _by_amd() -> bool:
    """torch calls AMD's GPUs cuda, too."""
    return getattr(sys.modules["torch"].version, "hip", None) is not None


def stream_of(device: int) -> int | None:
    """The handle of the stream that the program works on; None: the default stream."""
    import torch

    return torch.cuda.current_stream(device).cuda_stream or None


def version_of(tensor: Any) -> int | None:
    """Rises with every change in place; None: not counted (inference mode)."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def may_be_staged(chunk: Chunk) -> bool:
    """Whether the copy may be under way when save() returns."""
    if chunk.nbytes < SMALL_BYTES or chunk.path.rpartition(".")[2] in _UNCOUNTED or chunk.path in _changing:
        return False
    return all(version_of(tensor) is not None for tensor in tensors_of(chunk))


def tensors_of(chunk: Chunk) -> list[Any]:
    return chunk.owner if isinstance(chunk.owner, list) else [chunk.owner]


def fence(context: c_void_p, devices: set[int]) -> None:
    """What the program's streams are given from now on runs behind the copies that are under way."""
    for device in sorted(devices):
        check(library().dlrover_fence_staged(context, stream_of(device)))


class Staging:
    """Tensors of one save whose copies are under way. They are let go of once: from then on they may change."""

    def __init__(self, step: int, context: c_void_p, chunks: list[Chunk], kept: list[Chunk]) -> None:
        """``kept``: all chunks on a GPU, whose memory must stay until it is copied."""
        self._step = step
        self._context = context
        self._kept = kept
        self._versions = [(chunk, tensor, version_of(tensor)) for chunk in chunks for tensor in tensors_of(chunk)]
        self._devices = {chunk.device for chunk in chunks if chunk.device is not None}
        self._lock = threading.Lock()
        self._copied = False
        self._fenced: set[tuple[int, int | None]] = set()
        self._changed: list[Chunk] = []

    def fence(self) -> None:
        """Before the program changes them: its streams wait for the copies, the program itself does not. Of a device each stream that comes here: the
        optimizers of a backward pass may step on several."""
        with self._lock:
            if self._copied:
                return
            for device in sorted(self._devices):
                self._fence(device, stream_of(device))
            self._let_go()

    def wait(self) -> None:
        """Until they are copied. A failed copy fails the save, which says so when it is sealed."""
        library().dlrover_wait_staged(self._context)
        with self._lock:
            self._copied = True
            self._let_go()

    def check_unchanged(self) -> None:
        """For the next saves in this process they are copied before anybody can change them: who trains goes on to do that."""
        if self._changed:
            _changing.update(chunk.path for chunk in self._changed)
            raise ChangedError(
                f"the save of step {self._step} is given up: {self._changed[0].name} was changed while it was being copied from the GPU; call "
                "dlrover_slurm.wait_staged() before the change, or save(..., stage=False), as the next saves do with this tensor"
            )

    def _fence(self, device: int, stream: int | None) -> None:
        if (device, stream) in self._fenced:
            return
        try:
            check(library().dlrover_fence_staged(self._context, stream))
        except DlroverError:  # it is told when the save is sealed, not by an optimizer's step
            library().dlrover_wait_staged(self._context)
        self._fenced.add((device, stream))

    def _let_go(self) -> None:
        """Looks for changes until now; what comes later is behind the copies."""
        self._changed += [chunk for chunk, tensor, version in self._versions if version_of(tensor) != version]
        self._versions.clear()
