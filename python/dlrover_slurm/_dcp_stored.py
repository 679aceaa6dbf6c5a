# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of torch.distributed.checkpoint's items of which every rank's part is at hand: on storage. Read at any world size and
sharding, only what is wanted."""

from __future__ import annotations

import math

import torch

from . import _session
from ._dcp_object import Box, Entry, Layout, Piece, common, parse, tensor_of, without
from ._errors import NotFoundError, UnsupportedError
from ._global import GlobalTensors, TensorInfo

Source = tuple[int, Piece, Box]
"""Rank, its piece, and what of that is wanted."""


def _cover(box: Box, pieces: list[tuple[int, Piece]]) -> list[Source] | None:
    """Every element of the box from exactly one of the pieces; None: they leave a hole."""
    rest, sources = [box], []
    for rank, piece in pieces:
        place = Box(piece.offset, piece.shape)
        parts = [part for part in (common(left, place) for left in rest) if part is not None]
        sources += [(rank, piece, part) for part in parts]
        rest = without(rest, place) if parts else rest
    return None if rest else sources


def _direct(out: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes of that type may be read into the tensor's memory as they are."""
    return out.device.type == "cpu" and out.dtype == dtype and out.is_contiguous() and not out.is_conj() and not out.is_neg()


class AllRanks:
    """What is one tensor over all ranks is read by global offset. For the rest, values that are no tensors and tensors that differ between
    the ranks, each rank takes what the rank of its number (modulo theirs) saved, and where that has none of it the lowest that has."""

    def __init__(self, opened: _session.Opened, rank: int) -> None:
        """UnsupportedError: only this rank's own part is there (memory, plain files)."""
        saved_by = opened.saved_by()
        mine = rank % saved_by
        order = [mine, *(other for other in range(saved_by) if other != mine)]
        self._tensors = GlobalTensors(opened=opened)
        self._objects = {number: _session.RankObject(opened, number) for number in order}
        self._layouts = {number: parse(self._objects[number].skeleton()) for number in order}
        self._names: dict[str, str | None] = {}
        self._infos: dict[str, TensorInfo] | None = None
        self._read: tuple[tuple[int, str, tuple[int, ...]], torch.Tensor] | None = None
        self.layout = self._merged()

    def _merged(self) -> Layout:
        """All names; pieces are those of the first rank that has the name."""
        merged = Layout(paths={})
        for layout in self._layouts.values():
            for name, entry in layout.tensors.items():
                merged.tensors.setdefault(name, entry)
            for name, chunk in layout.values.items():
                merged.values.setdefault(name, chunk)
            merged.paths = None if layout.paths is None or merged.paths is None else {**layout.paths, **merged.paths}
        return merged

    def _holders(self, name: str) -> list[tuple[int, Entry]]:
        """Ranks that have something under that name of the type and shape that we go by, in the order in which we ask them."""
        chosen = self.layout.tensors[name]
        found = ((rank, layout.tensors.get(name)) for rank, layout in self._layouts.items())
        return [(rank, e) for rank, e in found if e is not None and (e.dtype, e.shape) == (chosen.dtype, chosen.shape)]

    def global_name(self, name: str) -> str | None:
        """Of the global tensor that it is; None: it is none."""
        if name not in self._names:
            if self._infos is None:
                self._infos = self._tensors.infos()
            entry = self.layout.tensors[name]
            chunks = {(piece.chunk, piece.raw) for _, holder in self._holders(name) for piece in holder.pieces}
            chunk, raw = chunks.pop() if len(chunks) == 1 else ("", True)
            same = not raw and self._infos.get(chunk) == TensorInfo(entry.dtype, entry.shape)
            self._names[name] = chunk if same else None
        return self._names[name]

    def sources(self, name: str, box: Box) -> list[Source]:
        """For what is no global tensor. A type that tables can not say is put together from all ranks; what the ranks differ in is one
        rank's, whole."""
        holders = [[(rank, piece) for piece in entry.pieces] for rank, entry in self._holders(name)]
        if any(piece.raw for pieces in holders for _, piece in pieces):
            holders = [[piece for pieces in holders for piece in pieces]]
        for pieces in holders:
            found = _cover(box, pieces)
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
        entry, chunk = self.layout.tensors[name], self.global_name(name)
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
            self._read = (key, tensor_of(piece, dtype, {(piece.chunk, offset): self._objects[rank].read(piece.chunk, offset)}))
        return self._read[1]

    def value(self, name: str) -> bytes:
        for rank, layout in self._layouts.items():
            if name in layout.values:
                return self._objects[rank].read(layout.values[name], (0,)).to_bytes()
        raise NotFoundError(f"no rank saved a value {name}")


def _cut(tensor: torch.Tensor, part: Box, origin: tuple[int, ...]) -> torch.Tensor:
    for dim, (first, length) in enumerate(zip(part.offset, part.shape)):
        tensor = tensor.narrow(dim, first - origin[dim], length)
    return tensor
