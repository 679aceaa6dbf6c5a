# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of torch.distributed.checkpoint's items of which every rank's part is at hand: on storage. Read at any world size and
sharding, only what is wanted."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Iterable, Iterator

import torch

from . import _session
from ._dcp_object import Box, Entry, Piece, body_of, common, entry_of, tensor_of, without
from ._errors import NotFoundError, UnsupportedError
from ._global import GlobalTensors, TensorInfo

Source = tuple[int, Piece, Box]
"""Rank, its piece, and what of that is wanted."""


def _cover(box: Box, pieces: Iterable[tuple[int, Piece]]) -> list[Source] | None:
    """Every element of the box from exactly one of the pieces, of which no more are asked for than that takes; None: they leave a hole."""
    rest, sources = [box], []
    for rank, piece in pieces:
        place = Box(piece.offset, piece.shape)
        parts = [part for part in (common(left, place) for left in rest) if part is not None]
        sources += [(rank, piece, part) for part in parts]
        rest = without(rest, place) if parts else rest
        if not rest:
            return sources
    return None


def _direct(out: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes of that type may be read into the tensor's memory as they are."""
    return out.device.type == "cpu" and out.dtype == dtype and out.is_contiguous() and not out.is_conj() and not out.is_neg()


class _Skeleton:
    """What a rank's object says of itself. Entries are made as they are asked for: that takes longer than to read all of the JSON."""

    def __init__(self, text: bytes) -> None:
        body = body_of(text)
        self._nodes: dict[str, Any] = body["tensors"]
        self._entries: dict[str, Entry] = {}
        self.values: dict[str, str] = body["values"]
        self.paths: dict[str, Any] | None = body.get("paths")

    def __contains__(self, name: str) -> bool:
        return name in self._nodes or name in self.values

    def names(self) -> Iterable[str]:
        return chain(self._nodes, self.values)

    def entry(self, name: str) -> Entry | None:
        if name not in self._entries:
            node = self._nodes.get(name)
            if node is None:
                return None
            self._entries[name] = entry_of(node)
        return self._entries[name]


class AllRanks:
    """What is one tensor over all ranks is read by global offset. For the rest, values that are no tensors and tensors that differ between
    the ranks, each rank takes what the rank of its number (modulo theirs) saved, and where that has none of it the lowest that has.

    A rank looks at the skeleton of that one rank, and at the plan of the global tensors. Only a name that neither knows is looked for in the
    skeletons of the others, one after the other until it is found: each is read once."""

    def __init__(self, opened: _session.Opened, rank: int) -> None:
        """UnsupportedError: only this rank's own part is there (memory, plain files)."""
        saved_by = opened.saved_by()
        mine = rank % saved_by
        self._opened = opened
        self._order = [mine, *(other for other in range(saved_by) if other != mine)]
        self._tensors = GlobalTensors(opened=opened)
        self._objects: dict[int, _session.RankObject] = {}
        self._skeletons: dict[int, _Skeleton] = {}
        self._first: dict[str, int] = {}
        self._names: dict[str, str | None] = {}
        self._infos: dict[str, TensorInfo] | None = None
        self._read: tuple[tuple[int, str, tuple[int, ...]], torch.Tensor] | None = None
        self._object(self._order[-1]).check()
        self._own = self._skeleton(mine)

    def _object(self, rank: int) -> _session.RankObject:
        if rank not in self._objects:
            self._objects[rank] = _session.RankObject(self._opened, rank)
        return self._objects[rank]

    def _skeleton(self, rank: int) -> _Skeleton:
        if rank not in self._skeletons:
            made = self._skeletons[rank] = _Skeleton(self._object(rank).skeleton())
            for name in made.names():
                self._first.setdefault(name, rank)
        return self._skeletons[rank]

    def _plan(self) -> dict[str, TensorInfo]:
        """Global tensors by the name of their chunks."""
        if self._infos is None:
            self._infos = self._tensors.infos()
        return self._infos

    def _planned(self, name: str) -> TensorInfo | None:
        """A tensor by the plan alone. Bytes may be a value, and after a # may be the number of another name's chunk."""
        info = self._plan().get(name)
        return None if info is None or info.dtype == "bytes" or "#" in name else info

    def _finder(self, name: str) -> _Skeleton | None:
        """Of the first rank that has the name."""
        for rank in self._order[len(self._skeletons) :] if name not in self._first else ():
            if name in self._skeleton(rank):
                break
        rank = self._first.get(name, -1)
        return None if rank < 0 else self._skeletons[rank]

    def entry(self, name: str) -> Entry | None:
        """Type and shape; None: no tensor. Of one that the rank whose part we take has nothing of, without what only skeletons know (pieces,
        requires_grad) where the plan knows it."""
        if name in self._own:
            return self._own.entry(name)
        info = self._planned(name)
        if info is not None:
            return Entry(info.dtype, info.shape, False)
        finder = self._finder(name)
        return None if finder is None else finder.entry(name)

    def has_value(self, name: str) -> bool:
        if name in self._own or self._planned(name) is not None:
            return name in self._own.values
        finder = self._finder(name)
        return finder is not None and name in finder.values

    def known(self) -> list[str]:
        """Names, without a look at further ranks' skeletons."""
        planned = (name for name in self._plan() if self._planned(name) is not None)
        return list(dict.fromkeys(chain(self._first, planned)))

    def names(self) -> list[str]:
        """All names. Reads all skeletons."""
        for rank in self._order:
            self._skeleton(rank)
        return list(self._first)

    def paths(self) -> dict[str, Any] | None:
        """The way to each name in the nested state, if every rank says it. Reads all skeletons."""
        merged: dict[str, Any] = {}
        for rank in self._order:
            paths = self._skeleton(rank).paths
            if paths is None:
                return None
            for name, path in paths.items():
                merged.setdefault(name, tuple(path))
        return merged

    def has_paths(self) -> bool:
        return self._own.paths is not None

    def _entry(self, name: str) -> Entry:
        entry = self.entry(name)
        if entry is None:
            raise NotFoundError(f"no rank saved a tensor {name}")
        return entry

    def _holders(self, name: str) -> Iterator[list[tuple[int, Piece]]]:
        """Pieces of the ranks that have some under that name of the type and shape that we go by, in the order in which we ask them."""
        chosen = self._entry(name)
        for rank in self._order:
            entry = self._skeleton(rank).entry(name)
            if entry is not None and entry.pieces and (entry.dtype, entry.shape) == (chosen.dtype, chosen.shape):
                yield [(rank, piece) for piece in entry.pieces]

    def global_name(self, name: str) -> str | None:
        """Of the global tensor that it is; None: it is none."""
        if name not in self._names:
            entry = self._entry(name)
            chunk = self._chunk_of(name, entry)
            same = chunk is not None and self._plan().get(chunk) == TensorInfo(entry.dtype, entry.shape)
            self._names[name] = chunk if same else None
        return self._names[name]

    def _chunk_of(self, name: str, entry: Entry) -> str | None:
        """The chunk in which all ranks keep their pieces; None: there is no such."""
        pieces = entry.pieces
        if not pieces:
            if self._planned(name) is not None:
                return name
            pieces = [piece for _, piece in next(self._holders(name), [])]
        chunks = {(piece.chunk, piece.raw) for piece in pieces}
        if chunks and chunks != {(name, False)} and self._tensors.has(name):
            # Of another name here (tied weights), and of this one elsewhere: the ranks may differ.
            chunks = {(piece.chunk, piece.raw) for holder in self._holders(name) for _, piece in holder}
        chunk, raw = chunks.pop() if len(chunks) == 1 else ("", True)
        return None if raw else chunk

    def sources(self, name: str, box: Box) -> list[Source]:
        """For what is no global tensor. A type that tables can not say is put together from all ranks; what the ranks differ in is one
        rank's, whole."""
        holders = self._holders(name)
        for pieces in holders:
            raw = any(piece.raw for _, piece in pieces)
            found = _cover(box, chain(pieces, chain.from_iterable(holders)) if raw else pieces)
            if found is not None:
                return found
        raise UnsupportedError(
            f"{name} from {list(box.offset)} on, of shape {list(box.shape)}, can not be put together: the pieces that the ranks saved under this "
            "name leave a hole, or contradict each other"
        )

    def check(self, name: str, box: Box) -> int | None:
        """UnsupportedError: it is not there. Which rank's it is, where the ranks differ."""
        if self.global_name(name) is not None or not all(box.shape):
            return None
        sources = self.sources(name, box)
        return None if sources[0][1].raw else sources[0][0]

    def read(self, name: str, box: Box, out: torch.Tensor) -> None:
        """Fills ``out``, of the box's shape. After an error it is worth nothing."""
        if not all(box.shape):
            return
        entry, chunk = self._entry(name), self.global_name(name)
        if chunk is None:
            for rank, piece, part in self.sources(name, box):
                stored = self._piece(rank, piece, entry.dtype)
                _cut(out, part, box.offset).copy_(_cut(stored, part, piece.offset))
            return
        dtype: torch.dtype = getattr(torch, entry.dtype)
        target = out if _direct(out, dtype) else torch.empty(box.shape, dtype=dtype)
        nbytes = math.prod(box.shape) * target.element_size()
        self._tensors.read_into(chunk, entry.dtype, box.offset, box.shape, target.data_ptr(), nbytes)
        if target is not out:
            out.copy_(target)

    def _piece(self, rank: int, piece: Piece, dtype: str) -> torch.Tensor:
        """The whole piece; the last one is kept."""
        offset = (0,) if piece.raw else piece.offset
        key = (rank, piece.chunk, offset)
        if self._read is None or self._read[0] != key:
            self._read = None
            self._read = (key, tensor_of(piece, dtype, {(piece.chunk, offset): self._object(rank).read(piece.chunk, offset)}))
        return self._read[1]

    def value(self, name: str) -> bytes:
        for rank in self._order:
            chunk = self._skeleton(rank).values.get(name)
            if chunk is not None:
                return self._object(rank).read(chunk, (0,)).to_bytes()
        raise NotFoundError(f"no rank saved a value {name}")


def _cut(tensor: torch.Tensor, part: Box, origin: tuple[int, ...]) -> torch.Tensor:
    for dim, (first, length) in enumerate(zip(part.offset, part.shape)):
        tensor = tensor.narrow(dim, first - origin[dim], length)
    return tensor
