# SPDX-License-Identifier: Apache-2.0
"""Chunks that several ranks hold alike: each is kept by one rank of the node, the others name it."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any, Callable, Union

from ._chunks import Chunk, line_in_table, size_in_object, to_struct
from ._library import ChunkStruct, c_uint32, check, library

Replicated = Union[bool, Callable[[str], bool]]
"""Of the tensors in a state: all of them, none, or those whose name it says yes to."""

Context = Callable[[], c_void_p]

SMALL_BYTES = 64 << 10
"""A smaller chunk stays each rank's own, as libdlrover has it."""
_NO_KEEPER = 0xFFFFFFFF


class _Lines:
    """Chunks of one set of ranks, without their bytes."""

    def __init__(self, chunks: list[Chunk], ranks: tuple[int, ...]) -> None:
        self.count = len(chunks)
        self.structs = (ChunkStruct * self.count)()
        self.keepers = (c_uint32 * self.count)()
        self._names = [chunk.name.encode() for chunk in chunks]
        for i, chunk in enumerate(chunks):
            to_struct(chunk, self.structs[i], self._names[i])
            self.keepers[i] = _NO_KEEPER if chunk.keeper is None else chunk.keeper
        self.rank_count = len(ranks)
        self.ranks = (c_uint32 * len(ranks))(*ranks) if ranks else None


def deal(context: c_void_p, chunks: list[Chunk], ranks: tuple[int, ...] = ()) -> None:
    """Says of each who keeps it. ``ranks``: that hold them; none: all of the world."""
    lines = _Lines(chunks, ranks)
    check(library().dlrover_share(context, lines.rank_count, lines.ranks, lines.count, lines.structs, lines.keepers))
    for chunk, struct, keeper in zip(chunks, lines.structs, lines.keepers):
        chunk.replica, chunk.packed = struct.replica, None
        chunk.keeper = None if keeper == _NO_KEEPER else keeper
        chunk.ranks = ranks


class Shared:
    """What was dealt of some chunks; it holds no memory of theirs."""

    def __init__(self, chunks: list[Chunk], rank: int) -> None:
        dealt = [chunk for chunk in chunks if chunk.keeper is not None]
        sets = dict.fromkeys(chunk.ranks for chunk in dealt)
        self._lines = [_Lines([chunk for chunk in dealt if chunk.ranks == ranks], ranks) for ranks in sets]
        self.bound = sum(line_in_table(chunk.name) for chunk in dealt if chunk.keeper != rank)
        """upper bound of what those take here that other ranks keep"""

    def add(self, save: c_void_p) -> None:
        for lines in self._lines:
            check(
                library().dlrover_save_add_shared(save, lines.rank_count, lines.ranks, lines.count, lines.structs, lines.keepers)
            )


def with_bytes(chunks: list[Chunk], rank: int) -> list[Chunk]:
    """Those that this rank saves itself."""
    return [chunk for chunk in chunks if chunk.keeper is None or chunk.keeper == rank]


def bound(chunks: list[Chunk], rank: int) -> int:
    """Upper bound of what they take in this rank's object."""
    own = {id(chunk) for chunk in with_bytes(chunks, rank)}
    return sum(size_in_object(chunk.nbytes if id(chunk) in own else 0, chunk.name) for chunk in chunks)


class Dealer:
    """Deals out a state's tensors that the program says are the same on all ranks."""

    def __init__(self, replicated: Replicated, context: Context, rank: int) -> None:
        self._replicated = replicated
        self._context = context
        self.rank = rank

    def key(self, paths: list[str]) -> Any:
        """Two states that are equal but for this are dealt out in different ways."""
        if self._replicated is True or not self._replicated:
            return bool(self._replicated)
        return tuple(bool(self._replicated(path)) for path in paths)

    def __call__(self, chunks: list[Chunk]) -> Shared:
        deal(self._context(), [chunk for chunk in chunks if chunk.nbytes >= SMALL_BYTES and self.wants(chunk.path)])
        return Shared(chunks, self.rank)

    def wants(self, path: str) -> bool:
        """Whether the tensor there is the same on all ranks."""
        return self._replicated is True or (bool(self._replicated) and bool(self._replicated(path)))
