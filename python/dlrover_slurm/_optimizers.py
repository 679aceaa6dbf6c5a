# SPDX-License-Identifier: Apache-2.0
"""What the program's optimizers own: parameters and their own state. Nothing but their steps changes it, and those can be held back."""

from __future__ import annotations

import bisect
import weakref
from typing import Any, Callable, Iterator

_stepped: weakref.WeakSet[Any] = weakref.WeakSet()


def note_step(optimizer: Any) -> None:
    """After its step: before its first one nobody knows of it, and it has no state."""
    _stepped.add(optimizer)


def _changes_otherwise(optimizer: Any) -> bool:
    """Schedule-free ones change weights between training and evaluation, LOMO in the backward pass; neither is a step."""
    swaps = all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
    return swaps or any(cls.__module__.partition(".")[0] == "lomo_optim" for cls in type(optimizer).__mro__)


def tensors_in(value: Any) -> Iterator[Any]:
    """Of dicts, lists and tuples in each other; local ones, of DTensors too."""
    if isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    else:
        local = getattr(value, "_local_tensor", value)
        if hasattr(local, "data_ptr"):
            yield local


def nbytes_of(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size()


class Owned:
    """The memory that optimizers own now."""

    def __init__(self, smallest: int, device_of: Callable[[Any], Any]) -> None:
        """Tensors of so many bytes or more, on a device."""
        self._ends: dict[int, int] = {}
        for optimizer in list(_stepped):
            if not _changes_otherwise(optimizer):
                for tensor in tensors_in([[group["params"] for group in optimizer.param_groups], dict(optimizer.state)]):
                    if (size := nbytes_of(tensor)) >= smallest and device_of(tensor) is not None:
                        address = tensor.data_ptr()
                        self._ends[address] = max(address + size, self._ends.get(address, 0))
        self._starts = sorted(self._ends)

    def holds(self, address: int, nbytes: int) -> bool:
        i = bisect.bisect_right(self._starts, address)
        return i > 0 and address + nbytes <= self._ends[self._starts[i - 1]]
