# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint calls write items <-> an object's chunks and skeleton (docs/format-object.md, "Skeleton")."""

from __future__ import annotations

import json
from ctypes import c_void_p
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Iterator

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, TensorWriteData, WriteItem, WriteItemType

from . import _cuda
from ._chunks import Chunk, Names, StoredChunk, bytes_chunk, fits_table, size_in_object
from ._dtypes import BYTES, TABLE
from ._errors import UnsupportedError
from ._share import SMALL_BYTES, Replicated, bound, deal
from ._state import SKELETON_VERSION
from ._torch import dtype_name, plain_types

_BATCH_BYTES = 256 << 20
_SKELETON_BYTES_PER_ITEM = 512


@dataclass(frozen=True)
class Box:
    """A rectangular part of a tensor, in elements."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A box of a tensor in a chunk. ``raw``: its elements are bytes in the table, which can not say their type or shape."""

    chunk: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    raw: bool


@dataclass
class Entry:
    """A tensor of which an object holds pieces."""

    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    pieces: list[Piece] = field(default_factory=list)


@dataclass
class Layout:
    """What an object holds."""

    tensors: dict[str, Entry] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    """values that are no tensors: name of the chunk"""
    paths: dict[str, Any] | None = None
    ledger: str = "none"


def elsewhere(shape: tuple[int, ...], boxes: list[Box]) -> list[Box]:
    """The rest of the tensor, in boxes that do not overlap."""
    rest = [Box((0,) * len(shape), shape)] if all(shape) else []
    for taken in boxes:
        rest = without(rest, taken)
    return rest


def without(boxes: list[Box], taken: Box) -> list[Box]:
    return [part for box in boxes for part in _without(box, taken)]


def common(a: Box, b: Box) -> Box | None:
    """What two boxes of one tensor share; None: nothing."""
    first = [max(x, y) for x, y in zip(a.offset, b.offset)]
    after = [min(x + n, y + m) for x, n, y, m in zip(a.offset, a.shape, b.offset, b.shape)]
    if any(x >= y for x, y in zip(first, after)):
        return None
    return Box(tuple(first), tuple(y - x for x, y in zip(first, after)))


def _without(box: Box, taken: Box) -> list[Box]:
    shared = common(box, taken)
    if shared is None:
        return [box]
    parts, offset, shape = [], list(box.offset), list(box.shape)
    for dim, (first, length) in enumerate(zip(shared.offset, shared.shape)):
        for low, high in ((offset[dim], first), (first + length, offset[dim] + shape[dim])):
            if low < high:
                parts.append(Box((*offset[:dim], low, *offset[dim + 1 :]), (*shape[:dim], high - low, *shape[dim + 1 :])))
        offset[dim], shape[dim] = first, length
    return parts


def _replicated_by_another(tensor: Any) -> bool:
    """Whether a rank before this one in the device mesh holds the same piece of a DTensor."""
    placements, mesh = getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None:
        return False
    place = mesh.get_coordinate()
    return place is not None and any(p.is_replicate() and index > 0 for p, index in zip(placements, place))


def _holders(tensor: Any) -> tuple[int, ...] | None:
    """The ranks that hold the same piece of a DTensor; None: this one alone, or it is none."""
    placements, mesh = getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)
    place = mesh.get_coordinate() if placements is not None and mesh is not None else None
    if place is None or any(p.is_partial() for p in placements):
        return None
    along = tuple(slice(None) if p.is_replicate() else index for p, index in zip(placements, place))
    ranks = sorted(mesh.mesh[along].flatten().tolist())
    return tuple(ranks) if len(ranks) > 1 else None


class ObjectBuilder:
    """Chunks and skeleton of a rank's write items.

    ``kept``: the items that the coordinator gave to this rank; the others are marked as replicas. None: there was no coordinator; a
    piece is a replica if its tensor says so. ``replicated``: of tensors that are no DTensors. ``context``, ``rank``: to deal out among the
    ranks of the node what several of them hold; who keeps what is settled then, and that goes before what the coordinator says.
    """

    def __init__(
        self,
        items: list[WriteItem],
        planner: SavePlanner,
        kept: set[MetadataIndex] | None,
        paths: Any,
        replicated: Replicated,
        context: c_void_p,
        rank: int,
    ) -> None:
        self._tensors = [item for item in items if item.type != WriteItemType.BYTE_IO and not _empty_shard(item)]
        self._planner = planner
        self._kept = kept
        self._names = Names()
        self._chunk_names: dict[str, str] = {}
        self._layout = Layout(paths=_plain_paths(paths))
        for item in items:
            if item.type != WriteItemType.BYTE_IO:
                self._entry(item)
        values = (item for item in items if item.type == WriteItemType.BYTE_IO)
        self._values: list[tuple[WriteItem, bytes]] = [(item, _resolve(planner, item).getvalue()) for item in values]
        self._written: list[tuple[WriteItem, int]] = []
        self._left: Iterable[tuple[WriteItem, torch.Tensor]] = ((item, _resolve(planner, item).detach()) for item in self._tensors)
        # The same memory under two names (tied weights) is saved once. Only where the planner hands out the state's own tensors: a
        # copy's address says nothing once it is gone.
        self._saved: dict[Any, Piece] | None = {} if type(planner) is DefaultSavePlanner else None
        self._rank = rank
        self._dealt: dict[MetadataIndex, Chunk] = {}
        self._deal(replicated, context)

    def _deal(self, replicated: Replicated, context: c_void_p) -> None:
        sets: dict[tuple[int, ...], list[tuple[WriteItem, Chunk]]] = {}
        for item in self._tensors:
            ranks = self._held_by(item, replicated)
            box, data = _box(item), _data(item)
            nbytes = torch.Size(box.shape).numel() * data.properties.dtype.itemsize
            kind = dtype_name(data.properties.dtype)
            if ranks is None or nbytes < SMALL_BYTES or not fits_table(kind, len(box.shape)):
                continue
            chunk = Chunk(item.index.fqn, TABLE[kind][0], box.shape, 0, nbytes, None, tuple(data.size), box.offset)
            sets.setdefault(ranks, []).append((item, chunk))
        for ranks, members in sets.items():
            deal(context, [chunk for _, chunk in members], ranks)
            self._dealt.update((item.index, chunk) for item, chunk in members)

    def _held_by(self, item: WriteItem, replicated: Replicated) -> tuple[int, ...] | None:
        """Of the world: (). None: this rank alone."""
        fqn = item.index.fqn
        tensor = getattr(self._planner, "state_dict", {}).get(fqn)
        if hasattr(tensor, "placements"):
            return _holders(tensor)
        if not replicated or item.type != WriteItemType.TENSOR:
            return None
        return () if replicated is True or replicated(fqn) else None

    def bound(self) -> int:
        """Upper bound of the object's size."""
        total = sum(size_in_object(len(data), item.index.fqn) for item, data in self._values)
        total += bound(list(self._dealt.values()), self._rank)
        for item in self._tensors:
            if item.index in self._dealt:
                continue
            count = torch.Size(_data(item).chunk.sizes).numel()
            total += size_in_object(count * _data(item).properties.dtype.itemsize, item.index.fqn)
        names = sum(len(json.dumps(item.index.fqn)) for item in self._tensors) + sum(len(p) for p in self._layout.values)
        paths = len(json.dumps(self._layout.paths))
        return total + 3 * names + paths + _SKELETON_BYTES_PER_ITEM * (len(self._tensors) + len(self._values) + 1)

    def gpu(self) -> list[Chunk]:
        """Before batches(), which leaves them out: those that are copied from where they lie on a GPU. Only where the planner hands out the state's own
        tensors: what another one makes for each call would have to stay there until all is copied."""
        if self._saved is None:
            return []
        chunks, left = [], []
        for item, tensor in self._left:
            device = _gpu_of(tensor)
            if device is None:
                left.append((item, tensor))
                continue
            chunk = self._chunk(item, tensor, device)
            if chunk is not None:
                chunks.append(chunk)
                self._written.append((item, chunk.nbytes))
        self._left = left
        return chunks

    def batches(self) -> Iterator[list[Chunk]]:
        """All other chunks; a batch ends when the copies made for it (of tensors on a device, or not contiguous) are many."""
        batch, copied = [], 0
        for item, data in self._values:
            name = self._layout.values[item.index.fqn] = self._names.take(item.index.fqn)
            batch.append(bytes_chunk(name, data))
            self._written.append((item, len(data)))
        for item, tensor in self._left:
            chunk = self._chunk(item, tensor, None)
            if chunk is None:
                continue
            batch.append(chunk)
            self._written.append((item, chunk.nbytes))
            copied += chunk.nbytes if chunk.address not in (0, _address(tensor)) else 0
            if copied > _BATCH_BYTES:
                yield batch
                batch, copied = [], 0
        yield batch

    def written(self) -> list[tuple[WriteItem, int]]:
        return self._written

    def skeleton(self, ledger: str) -> bytes:
        tensors = {
            name: {
                "d": entry.dtype,
                "s": entry.shape,
                **({"g": 1} if entry.requires_grad else {}),
                "p": [[p.chunk, p.offset, p.shape] + ([1] if p.raw else []) for p in entry.pieces],
            }
            for name, entry in self._layout.tensors.items()
        }
        body: dict[str, Any] = {"tensors": tensors, "values": self._layout.values}
        if self._layout.paths is not None:
            body["paths"] = self._layout.paths
        document = {"version": SKELETON_VERSION, "ledger": ledger, "dcp": body}
        return json.dumps(document, separators=(",", ":")).encode()

    def _entry(self, item: WriteItem) -> Entry:
        name, data = item.index.fqn, _data(item)
        if name not in self._layout.tensors:
            made = Entry(dtype_name(data.properties.dtype), tuple(data.size), bool(data.properties.requires_grad))
            self._layout.tensors[name] = made
        return self._layout.tensors[name]

    def _chunk(self, item: WriteItem, tensor: torch.Tensor, device: int | None) -> Chunk | None:
        """``device``: the GPU that it is copied from in place. None: the same memory is in the object already, under another name."""
        entry, box = self._entry(item), _box(item)
        _check(item, tensor, entry)
        key = (tensor.device, _address(tensor), tensor.stride(), entry.dtype, box.offset, box.shape, entry.shape)
        known = self._saved.get(key) if self._saved is not None and tensor.numel() else None
        if known is not None:
            entry.pieces.append(known)
            return None
        raw = not fits_table(entry.dtype, len(box.shape))
        piece = Piece(self._name(item.index.fqn, raw), box.offset, box.shape, raw)
        entry.pieces.append(piece)
        if self._saved is not None:
            self._saved[key] = piece
        dealt = self._dealt.get(item.index)
        if dealt is not None and dealt.keeper not in (None, self._rank):
            return replace(dealt, name=piece.chunk)
        if device is None:
            return self._to_chunk(piece, entry, item, _on_host(tensor), dealt)
        made = self._to_chunk(piece, entry, item, tensor, dealt)
        made.device, made.path, made.owner = device, item.index.fqn, self._watched(item, tensor)
        return made

    def _watched(self, item: WriteItem, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Whose versions tell of changes: what is done to a DTensor torch counts there, and not in its local part."""
        whole: Any = getattr(self._planner, "state_dict", {}).get(item.index.fqn)
        return [tensor, whole] if hasattr(whole, "placements") else [tensor]

    def _to_chunk(self, piece: Piece, entry: Entry, item: WriteItem, here: torch.Tensor, dealt: Chunk | None) -> Chunk:
        """``here``: its memory is what is saved."""
        nbytes = here.numel() * here.element_size()
        if piece.raw:
            return Chunk(piece.chunk, BYTES, (nbytes,), here.data_ptr(), nbytes, here, replica=self._replica(item))
        if dealt is not None:
            return replace(dealt, name=piece.chunk, address=here.data_ptr(), owner=here)
        code = TABLE[entry.dtype][0]
        return Chunk(piece.chunk, code, piece.shape, here.data_ptr(), nbytes, here, entry.shape, piece.offset, self._replica(item))

    def _name(self, fqn: str, raw: bool) -> str:
        """All pieces of a tensor have one name; raw ones have no offset to tell them apart, so each has its own."""
        if raw:
            return self._names.take(fqn)
        if fqn not in self._chunk_names:
            self._chunk_names[fqn] = self._names.take(fqn)
        return self._chunk_names[fqn]

    def _replica(self, item: WriteItem) -> int:
        if self._kept is not None:
            return int(item.index not in self._kept)
        return int(_replicated_by_another(getattr(self._planner, "state_dict", {}).get(item.index.fqn)))


def _data(item: WriteItem) -> TensorWriteData:
    """Of an item that is a tensor or a shard."""
    if item.tensor_data is None:
        raise UnsupportedError(f"{item.index.fqn}: the planner says nothing of the tensor's shape")
    return item.tensor_data


def _resolve(planner: SavePlanner, item: WriteItem) -> Any:
    if type(planner) is DefaultSavePlanner:
        # What it would find too, after a look at protocols that takes 0.1 ms for each tensor (Python before 3.12).
        value = planner.state_dict.get(item.index.fqn)
        if type(value) in plain_types():
            return value
    return planner.resolve_data(item)


def _gpu_of(tensor: torch.Tensor) -> int | None:
    """Where all of its bytes lie in their order. None: on the host, or they have to be put in order first."""
    device = _cuda.device_of(tensor)
    if device is None or tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    return device


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    here = tensor.to("cpu").contiguous()
    here = here.resolve_conj() if here.is_complex() else here
    return here.resolve_neg() if here.is_neg() else here


def _box(item: WriteItem) -> Box:
    chunk = _data(item).chunk
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def _empty_shard(item: WriteItem) -> bool:
    """Of a tensor that is not empty: a rank may have nothing of it."""
    return 0 in _data(item).chunk.sizes and 0 not in _data(item).size


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def _check(item: WriteItem, tensor: torch.Tensor, entry: Entry) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"{item.index.fqn} is a sparse or quantized tensor: not in this version")
    if tuple(tensor.shape) != tuple(_data(item).chunk.sizes) or dtype_name(tensor.dtype) != entry.dtype:
        raise UnsupportedError(f"{item.index.fqn}: the planner announced another shape or type than it gave")


def _plain_paths(paths: Any) -> dict[str, Any] | None:
    """The default planner's way back from flat names to the nested state, if it is what it was."""
    if not isinstance(paths, dict):
        return None
    plain = all(type(k) is str and all(type(part) in (str, int) for part in path) for k, path in paths.items())
    return {name: list(path) for name, path in paths.items()} if plain else None


def _document(skeleton: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(skeleton) if skeleton else {}
    if document.get("dcp") is None:
        raise UnsupportedError("the checkpoint was not saved by dlrover_slurm.dcp: load it with dlrover_slurm.load()")
    if document.get("version") != SKELETON_VERSION:
        raise UnsupportedError(f"the checkpoint's skeleton is of version {document.get('version')}")
    return document


def body_of(skeleton: bytes) -> dict[str, Any]:
    body: dict[str, Any] = _document(skeleton)["dcp"]
    return body


def entry_of(node: dict[str, Any]) -> Entry:
    pieces = [Piece(p[0], tuple(p[1]), tuple(p[2]), len(p) > 3) for p in node["p"]]
    return Entry(node["d"], tuple(node["s"]), bool(node.get("g")), pieces)


def parse(skeleton: bytes) -> Layout:
    document = _document(skeleton)
    body = document["dcp"]
    layout = Layout(values=body["values"], ledger=document["ledger"])
    layout.tensors = {name: entry_of(node) for name, node in body["tensors"].items()}
    if "paths" in body:
        layout.paths = {name: tuple(path) for name, path in body["paths"].items()}
    return layout


def tensor_of(piece: Piece, dtype: str, chunks: dict[tuple[str, tuple[int, ...]], StoredChunk]) -> torch.Tensor:
    """A view of the checkpoint's own memory: read it only."""
    chunk = chunks[piece.chunk, (0,) if piece.raw else piece.offset]
    if chunk.nbytes == 0:
        return torch.empty(piece.shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(chunk.buffer(), dtype=getattr(torch, dtype)).reshape(piece.shape)
