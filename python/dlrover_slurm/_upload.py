# SPDX-License-Identifier: Apache-2.0
"""Tensors of a checkpoint on their way to a GPU: a few threads take them through pinned memory of their own. The driver's way for memory that is not pinned has one thread."""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PIECE_BYTES = 8 << 20
_SMALL_BYTES = 1 << 20
_AT_ONCE_BYTES = 1 << 30
_THREADS = 4
_BUFFERS = 2
"""of a thread: one is filled while the GPU reads the other one"""


def gpu_of(map_location: Any) -> Any:
    """The torch device, where that is a GPU; else None."""
    import torch

    if not isinstance(map_location, (str, int, torch.device)) or isinstance(map_location, bool):
        return None
    device = torch.device(map_location)
    return device if device.type == "cuda" else None


class _Lane:
    """A thread's pinned buffers and its stream."""

    def __init__(self, torch: Any, device: Any, after: Any) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_event(after)
        self._buffers = [(torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(_BUFFERS)]
        self._next = 0

    def copy(self, source: Any, target: Any) -> None:
        buffer, read = self._buffers[self._next % _BUFFERS]
        self._next += 1
        read.synchronize()
        ctypes.memmove(buffer.data_ptr(), source.data_ptr(), source.numel())  # torch would take threads of its own in each of ours
        with self._torch.cuda.stream(self._stream):
            target.copy_(buffer[: source.numel()], non_blocking=True)
            read.record()

    def finish(self) -> None:
        self._stream.synchronize()


class Upload:
    """Collects tensors, and copies them when they are many or no more come."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        self._waiting: list[tuple[Any, Any]] = []
        self._waiting_bytes = 0

    def add(self, source: Any) -> Any:
        """Memory on the GPU for a contiguous tensor of the host; it has its bytes after finish()."""
        import torch

        target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        if source.numel():
            self._waiting.append((source, target))
            self._waiting_bytes += source.numel() * source.element_size()
        if self._waiting_bytes >= _AT_ONCE_BYTES:
            self.finish()
        return target

    def finish(self) -> None:
        """Waits for the copies."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        pieces = []
        for source, target in waiting:
            if source.numel() * source.element_size() < _SMALL_BYTES:
                target.copy_(source)
            else:
                pieces += _pieces(source, target)
        if pieces:
            self._copy(pieces)

    def _copy(self, pieces: list[tuple[Any, Any]]) -> None:
        import torch

        after = torch.cuda.current_stream(self._device).record_event()  # the memory may be of what the program has freed with work to do
        lanes: list[_Lane] = []
        local, inference = threading.local(), torch.is_inference_mode_enabled()

        def copy(piece: tuple[Any, Any]) -> None:
            with torch.cuda.device(self._device), torch.inference_mode(inference):  # both are a thread's own
                if not hasattr(local, "lane"):
                    local.lane = _Lane(torch, self._device, after)
                    lanes.append(local.lane)
                local.lane.copy(*piece)

        try:
            with ThreadPoolExecutor(_threads(), thread_name_prefix="dlrover-upload") as pool:
                list(pool.map(copy, pieces))  # raises what one of them has raised
        except RuntimeError:  # no memory can be pinned, say: as torch does it
            for source, target in pieces:
                target.copy_(source)
        finally:
            for lane in lanes:
                lane.finish()


def _pieces(source: Any, target: Any) -> list[tuple[Any, Any]]:
    import torch

    there, here = source.reshape(-1).view(torch.uint8), target.reshape(-1).view(torch.uint8)
    return list(zip(there.split(PIECE_BYTES), here.split(PIECE_BYTES)))


def _threads() -> int:
    """No more than are this rank's share of the processors."""
    sharers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return max(1, min(_THREADS, len(os.sched_getaffinity(0)) // sharers))
