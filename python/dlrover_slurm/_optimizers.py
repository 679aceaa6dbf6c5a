# SPDX-License-Identifier: Apache-2.0
"""What the program's optimizers own: parameters and their own state. Nothing but their steps changes it, and those can be held back."""

from __future__ import annotations

import bisect
import weakref
from typing import Any, Callable, Iterator

_stepped: weakref.WeakSet[Any] = weakref.WeakSet()


def note_step(optimizer: Any) -> bool:
    """After its step: before its first one nobody knows of it, and it has no state. True: it was the first."""
    first = optimizer not in _stepped
    _stepped.add(optimizer)
    return first


def _tensors_of(optimizer: Any) -> list[Any]:
    """Parameters and its own state, DTensors as they are."""
    return _whole_tensors_in([[group["params"] for group in optimizer.param_groups], dict(optimizer.state)])


def owned_tensors() -> list[Any]:
    """All tensors that optimizers own now, each once, DTensors as they are."""
    seen = {id(tensor): tensor for optimizer in list(_stepped) for tensor in _tensors_of(optimizer)}
    return list(seen.values())


def _changes_otherwise(optimizer: Any) -> bool:
    """Schedule-free ones change weights between training and evaluation, LOMO in the backward pass; neither is a step."""
    swaps = all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
    return swaps or any(cls.__module__.partition(".")[0] == "lomo_optim" for cls in type(optimizer).__mro__)


def _whole_tensors_in(value: Any) -> list[Any]:
    """Tensors of dicts, lists and tuples in each other, DTensors as they are."""
    found: list[Any] = []
    _find_tensors(value, found)
    return found


def _find_tensors(value: Any, found: list[Any]) -> None:
    if hasattr(value, "data_ptr"):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _find_tensors(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _find_tensors(item, found)


def local_of(tensor: Any) -> Any:
    """This rank's part of a DTensor; another tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def tensors_in(value: Any) -> Iterator[Any]:
    """Of dicts, lists and tuples in each other; local ones, of DTensors too."""
    for tensor in _whole_tensors_in(value):
        yield local_of(tensor)


def nbytes_of(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size()


class Owned:
    """The memory that optimizers own now."""

    def __init__(self, smallest: int, device_of: Callable[[Any], Any]) -> None:
        """Tensors of so many bytes or more, on a device."""
        self._ends: dict[int, int] = {}
        for optimizer in list(_stepped):
            if not _changes_otherwise(optimizer):
                for tensor in map(local_of, _tensors_of(optimizer)):
                    if (size := nbytes_of(tensor)) >= smallest and device_of(tensor) is not None:
                        address = tensor.data_ptr()
                        self._ends[address] = max(address + size, self._ends.get(address, 0))
        self._starts = sorted(self._ends)

    def holds(self, address: int, nbytes: int) -> bool:
        i = bisect.bisect_right(self._starts, address)
        return i > 0 and address + nbytes <= self._ends[self._starts[i - 1]]
