# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint's planner is told of a checkpoint, found out as it asks."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

from ._dcp_object import Box, Entry, Layout, elsewhere
from ._dcp_stored import AllRanks


def _tensor(entry: Entry, boxes: list[Box]) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.shape)) for box in boxes]
    properties = TensorProperties(dtype=getattr(torch, entry.dtype), requires_grad=entry.requires_grad)
    return TensorStorageMetadata(properties, torch.Size(entry.shape), chunks)


def own_entries(layout: Layout) -> dict[str, Any]:
    """Of the pieces only ours are known, the rest of each tensor is one or a few boxes that are elsewhere."""
    entries: dict[str, Any] = {name: BytesStorageMetadata() for name in layout.values}
    for name, entry in layout.tensors.items():
        boxes = [Box(piece.offset, piece.shape) for piece in entry.pieces]
        entries[name] = _tensor(entry, boxes + elsewhere(entry.shape, boxes))
    return entries


def _of_all(everyone: AllRanks, name: str) -> Any:
    """Each tensor is one box. None: there is no such name."""
    entry = everyone.entry(name)
    if entry is not None:
        return _tensor(entry, [Box((0,) * len(entry.shape), entry.shape)])
    return BytesStorageMetadata() if everyone.has_value(name) else None


class OwnFirst(dict[str, Any]):
    """Metadata of this rank's own items; of the others' where a name is asked for that is not among them."""

    def __init__(self, own: dict[str, Any], everyone: Callable[[], AllRanks | None]) -> None:
        super().__init__(own)
        self._everyone = everyone
        self._others: dict[str, Any] = {}

    def _other(self, name: Any) -> Any:
        if name not in self._others:
            everyone = self._everyone()
            self._others[name] = None if everyone is None else _of_all(everyone, name)
        return self._others[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._other(name) is not None

    def __missing__(self, name: str) -> Any:
        found = self._other(name)
        if found is None:
            raise KeyError(name)
        return found

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class _Lazy(dict[str, Any]):
    """A dictionary of which a value is looked up when it is asked for. Who goes through all of it makes every rank's skeleton be read."""

    def __init__(self, everyone: AllRanks) -> None:
        super().__init__()
        self._everyone = everyone

    def _find(self, name: Any) -> Any:
        raise NotImplementedError

    def _names(self) -> list[str]:
        raise NotImplementedError

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __getitem__(self, name: str) -> Any:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = self._find(name)
        return default if found is None else found

    def _whole(self) -> dict[str, Any]:
        return {name: self[name] for name in self._names()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def keys(self) -> Any:
        return self._whole().keys()

    def items(self) -> Any:
        return self._whole().items()

    def values(self) -> Any:
        return self._whole().values()

    def __reduce__(self) -> Any:
        return dict, (self._whole(),)


class AllEntries(_Lazy):
    """Metadata of all names. keys() leaves out what only other ranks' skeletons tell of (values that this rank's has not, say): the default
    planner asks for it, to tell names of old versions of torch, before it looks at what it wants."""

    def __init__(self, everyone: AllRanks) -> None:
        super().__init__(everyone)
        self._found: dict[Any, Any] = {}

    def _find(self, name: Any) -> Any:
        if name not in self._found:
            self._found[name] = _of_all(self._everyone, name)
        return self._found[name]

    def _names(self) -> list[str]:
        return self._everyone.names()

    def keys(self) -> Any:
        return dict.fromkeys(self._everyone.known()).keys()


class AllPaths(_Lazy):
    """The way to each name in the nested state."""

    def __init__(self, everyone: AllRanks) -> None:
        super().__init__(everyone)
        self._paths: dict[str, Any] | None = None

    def _all(self) -> dict[str, Any]:
        if self._paths is None:
            self._paths = self._everyone.paths() or {}
        return self._paths

    def _find(self, name: Any) -> Any:
        return self._all().get(name)

    def _names(self) -> list[str]:
        return list(self._all())
