# SPDX-License-Identifier: Apache-2.0
"""Chunks on their way into an object, and out of one."""

from __future__ import annotations

import ctypes
import hashlib
from array import array
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

from . import _dtypes
from ._library import MAX_DIMS, ChunkStruct, c_uint64, c_void_p

MAX_NAME_BYTES = 4000
_ALIGNMENT = 64
# Of a chunk's line in the table at most, besides its name: the line itself, and three numbers for each dimension.
_LINE_BYTES = 192
_DIMENSION_BYTES = 24
FIXED_TABLE_BYTES = 8192
"""of the table besides its lines: its root, and who saved it"""


@dataclass
class Chunk:
    """Memory to save. ``owner`` keeps it alive."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    address: int
    nbytes: int
    owner: Any
    global_shape: tuple[int, ...] | None = None
    """of the tensor that this is a piece of; None: it is the whole"""
    offset: tuple[int, ...] = ()
    replica: int = 0
    """greater than 0: another rank saves the same bytes"""
    device: int | None = None
    """the GPU whose memory it is; None: the host's"""
    path: str = ""
    """where it was in the state"""
    keeper: int | None = None
    """the rank of this node that keeps it for all that hold it alike; None: nobody does"""
    ranks: tuple[int, ...] = ()
    """those that hold it alike, if it has a keeper; none: all of the world"""
    packed: bytes | None = None
    """its struct but for the name, once it was made; who changes what is in there forgets it"""

    def of(self, owner: Any) -> Chunk:
        """The same with another owner of the memory."""
        other = object.__new__(Chunk)
        other.__dict__.update(self.__dict__, owner=owner)
        return other


def bytes_chunk(name: str, data: bytes) -> Chunk:
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    return Chunk(name, _dtypes.BYTES, (len(data),), address, len(data), data)


def line_in_table(name: str) -> int:
    """Upper bound of a chunk's line in the table."""
    return _LINE_BYTES + _DIMENSION_BYTES * MAX_DIMS + len(name.encode())


def size_in_object(nbytes: int, name: str) -> int:
    """Upper bound of what a chunk takes, its line in the table included."""
    return nbytes + _ALIGNMENT + line_in_table(name)


def _valid(path: str) -> str:
    name = path.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode() or "value"
    if len(name.encode()) > MAX_NAME_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = name.encode()[: MAX_NAME_BYTES - 20].decode("utf-8", "ignore") + "~" + digest
    return name


class Names:
    """Unique, valid chunk names out of paths through the state."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def taken(self) -> frozenset[str]:
        return frozenset(self._taken)

    def take_all(self, paths: list[str]) -> list[str]:
        """take() of each. Thousands of ordinary ones are checked at once."""
        together, fresh = "".join(paths), set(paths)
        ordinary = together.isascii() and "\0" not in together and all(paths) and max(map(len, paths), default=0) <= MAX_NAME_BYTES
        if not ordinary or len(fresh) < len(paths) or not self._taken.isdisjoint(fresh):
            return [self.take(path) for path in paths]
        self._taken |= fresh
        return list(paths)

    def take(self, path: str) -> str:
        name = path if path.isascii() and "\0" not in path and 0 < len(path) <= MAX_NAME_BYTES else _valid(path)
        unique, n = name, 1
        while unique in self._taken:
            n += 1
            unique = f"{name}#{n}"
        self._taken.add(unique)
        return unique


def to_struct(chunk: Chunk, out: ChunkStruct, name: bytes) -> None:
    out.name = name
    out.dtype = chunk.dtype
    out.ndim = len(chunk.shape)
    out.replica = chunk.replica
    whole = chunk.shape if chunk.global_shape is None else chunk.global_shape
    for i, length in enumerate(chunk.shape):
        out.global_shape[i] = whole[i]
        out.local_shape[i] = length
    for i, first in enumerate(chunk.offset):
        out.global_offset[i] = first


class Form(NamedTuple):
    """What whole chunks of one shape and dtype have in common."""

    nbytes: int
    packed: bytes
    """their struct, but for the name"""


@dataclass
class Columns:
    """Whole chunks of the host, as many as there are names."""

    names: list[str]
    addresses: list[int]
    sizes: list[int]
    packed: list[bytes]


class Batch:
    """Chunks as libdlrover takes them. Does not keep their memory alive."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self._take([chunk.name for chunk in chunks], [chunk.address or None for chunk in chunks], [chunk.nbytes for chunk in chunks])
        self._pack([chunk.packed or pack(chunk) for chunk in chunks])

    @classmethod
    def of_columns(cls, columns: Columns) -> Batch:
        """The same for thousands of chunks: what many have in common is written once and copied."""
        self = cls.__new__(cls)
        self._take(columns.names, columns.addresses, columns.sizes)
        self._pack(columns.packed)
        return self

    def _pack(self, structs: list[bytes]) -> None:
        if not structs:
            self._memory = bytearray()
            self.structs = (ChunkStruct * 0)()
            return
        memory = self._memory = _joined(structs)
        # A struct begins with its name's address.
        words, width = memoryview(memory).cast("Q"), ctypes.sizeof(ChunkStruct) // 8
        words[: width * self.count : width] = memoryview(bytes((ctypes.c_char_p * self.count)(*self._names))).cast("Q")
        self.structs = (ChunkStruct * self.count).from_buffer(memory)

    def recycle(self) -> None:
        """Nobody uses it any more: its memory is the next one's."""
        _spare[:] = [self._memory]

    def _take(self, names: list[str], addresses: Sequence[int | None], sizes: list[int]) -> None:
        self._names = [name.encode() for name in names]
        self.count = len(names)
        line = _ALIGNMENT + _LINE_BYTES + _DIMENSION_BYTES * MAX_DIMS
        self.bound = sum(sizes) + sum(map(len, self._names)) + line * self.count
        """upper bound of what they take in an object"""
        self.addresses = _numbers(c_void_p, [address or 0 for address in addresses])
        self.sizes = _numbers(c_uint64, sizes)


_spare: list[bytearray] = []  # one at most: pages that are there cost the next save less than new ones
_JOINED_AT_ONCE = 256


def _joined(pieces: list[bytes]) -> bytearray:
    """All behind each other, in spare memory where that is large enough. They are of one size."""
    width = len(pieces[0])
    try:
        memory = _spare.pop()  # at once: another thread may encode, too
    except IndexError:
        memory = bytearray()
    if len(memory) < len(pieces) * width:
        return bytearray().join(pieces)
    with memoryview(memory) as view:
        for first in range(0, len(pieces), _JOINED_AT_ONCE):
            some = pieces[first : first + _JOINED_AT_ONCE]
            view[first * width : (first + len(some)) * width] = b"".join(some)
    return memory


def _numbers(kind: Any, values: Sequence[int]) -> Any:
    """As (kind * len(values))(*values), in a fifth of the time."""
    return (kind * len(values)).from_buffer(array("Q", values)) if values else (kind * 0)()


def pack(chunk: Chunk) -> bytes:
    struct = ChunkStruct()
    to_struct(chunk, struct, b"")
    struct.name = None
    chunk.packed = bytes(struct)
    return chunk.packed


_recent_batches: list[tuple[list[Any], Batch]] = []  # newest first; what they refer to may be gone
_RECENT_BATCHES = 4


def batch_of(chunks: list[Chunk]) -> Batch:
    """As Batch(chunks). A training saves the same chunks again and again: those that are alike in all but their owners are not packed again."""
    like = [(chunk.name, chunk.packed or pack(chunk), chunk.address, chunk.nbytes) for chunk in chunks]
    for i, (key, batch) in enumerate(_recent_batches):
        if key == like:
            _recent_batches.insert(0, _recent_batches.pop(i))
            return batch
    batch = Batch(chunks)
    _recent_batches.insert(0, (like, batch))
    del _recent_batches[_RECENT_BATCHES:]
    return batch


def fits_table(dtype_name: str, ndim: int) -> bool:
    """Whether the object table can say it; else the bytes are saved and the skeleton says what they are."""
    return dtype_name in _dtypes.TABLE and ndim <= MAX_DIMS


@dataclass
class StoredChunk:
    """Memory of an opened object. Valid as long as ``owner`` lives."""

    dtype: int
    shape: tuple[int, ...]
    address: int
    nbytes: int
    owner: Any

    def buffer(self) -> Any:
        """An object with the buffer interface; keeps the owner alive."""
        array = (ctypes.c_char * self.nbytes).from_address(self.address)
        array._owner = self.owner
        return array

    def to_bytes(self) -> bytes:
        return ctypes.string_at(self.address, self.nbytes) if self.nbytes else b""
