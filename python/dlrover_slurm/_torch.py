# SPDX-License-Identifier: Apache-2.0
"""torch tensors in a state. torch is only touched when the program has imported it already, or a checkpoint holds tensors.

Tensors that share their storage are saved once: the same view gives one chunk; different views that overlap give one chunk
with the whole storage. They share memory again after load().
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from . import _cuda
from ._chunks import Batch, Chunk, Columns, Form, Names, StoredChunk, fits_table, pack
from ._dtypes import BYTES, TABLE
from ._errors import UnsupportedError
from ._share import Dealer, Shared, with_bytes
from ._upload import Upload, gpu_of


def torch_if_there() -> Any:
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    torch = torch_if_there()
    return torch is not None and isinstance(value, torch.Tensor)


def to_cpu(state: Any) -> Any:
    """The same state with a copy of each tensor on a device that save() does not take; one object stays one object."""
    done: dict[int, tuple[Any, Any]] = {}

    def go(value: Any) -> Any:
        if is_tensor(value) and value.device.type != "cpu" and _cuda.device_of(value) is None:
            return done.setdefault(id(value), (value, value.detach().to("cpu")))[1]
        if type(value) is dict:
            return {key: go(item) for key, item in value.items()}
        if type(value) is OrderedDict:
            copy = OrderedDict((key, go(item)) for key, item in value.items())
            copy.__dict__.update(value.__dict__)
            return copy
        if type(value) in (list, tuple):
            return type(value)(go(item) for item in value)
        return value

    return go(state)


_dtype_names: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).split(".", 1)[1]
    return name


_plain_types: set[type] = set()


def plain_types() -> set[type]:
    """The types of tensors that are saved as they are; empty as long as the program has no torch."""
    torch = torch_if_there()
    if torch is not None and not _plain_types:
        _plain_types.update((torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)))
    return _plain_types


def _refuse(torch: Any, tensor: Any, path: str) -> None:
    what = None
    if type(tensor) not in plain_types():
        what = f"a {type(tensor).__module__}.{type(tensor).__qualname__}"
    elif tensor.device.type != "cpu" and _cuda.device_of(tensor) is None:
        what = f"a tensor on {tensor.device}"
    elif tensor.layout != torch.strided or tensor.is_quantized or getattr(tensor, "is_nested", False):
        what = "a sparse, quantized or nested tensor"
    if what is not None:
        raise UnsupportedError(f"{path or 'the state'} is {what}: not in this version; save a plain CPU tensor instead")


@dataclass
class _View:
    """One way of looking at a storage: all tensors with the same key are one chunk."""

    tensor: Any
    path: str
    place: int
    """of the first of these tensors in the state"""
    nodes: list[dict[str, Any]] = field(default_factory=list)


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _extent(tensor: Any) -> tuple[int, int]:
    """First byte and the byte after the last that the tensor can touch; equal when it is empty."""
    size = tensor.element_size()
    start = tensor.data_ptr()
    count = tensor.numel()
    if count == 0:
        return start, start
    if tensor.is_contiguous():
        return start, start + size * count
    return start, start + size * (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())))


def _dense(tensor: Any) -> bool:
    """Whether the elements fill their extent, each once (contiguous up to the order of the dimensions)."""
    expected = 1
    for stride, length in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride()) if n != 1):
        if stride != expected:
            return False
        expected *= length
    return True


class _Fingerprint(NamedTuple):
    """All that names, nodes and chunks of the tensors of a state depend on, but the bytes."""

    places: list[int]
    properties: list[tuple[Any, ...]]
    """shape, dtype, requires_grad, is_cpu"""
    strides: list[Any]
    types: list[type]
    numbers: list[int]
    paths: list[str]
    taken: frozenset[str]
    dealt: Any


@dataclass
class _Plan:
    """What was worked out for the tensors of a state. It holds for others that are equal in everything that it was made of."""

    fingerprint: _Fingerprint
    told: list[str]
    batch: Batch
    shared: Shared | None
    gpu: list[tuple[int, Chunk]]
    """chunks on a GPU without their owners: those are the tensors with these places in the state"""


_last_plan: _Plan | None = None  # a training saves the same tensors again and again
_PROPERTIES = attrgetter("shape", "dtype", "requires_grad", "is_cpu")


def current_plan() -> Any:
    return _last_plan


def forget_plan(batch: Batch, before: Any) -> None:
    """Of what was encoded to see how large it is: no save comes that is like it, so the plan's memory is the next one's. ``before``: the plan until then,
    whose memory a save may be reading."""
    global _last_plan
    plan = _last_plan
    if plan is None or plan is before or plan.batch is not batch:
        return
    _last_plan = None
    batch.recycle()


def _form(tensor: Any) -> Form | None:
    """Of a tensor with memory of its own. None: there are no bytes, or not in the order of its elements, or the table can not say it."""
    name = dtype_name(tensor.dtype)
    if not fits_table(name, tensor.dim()) or not tensor.is_contiguous() or tensor.numel() == 0:
        return None
    number, width = TABLE[name]
    nbytes = tensor.numel() * width
    return Form(nbytes, pack(Chunk("", number, tensor.shape, 0, nbytes, None))) if nbytes else None


def _in_json(nodes: list[dict[str, Any]]) -> list[str]:
    """Of each; at once, since one by one takes several times as long."""
    mark = os.urandom(12).hex()
    marked: list[Any] = [mark] * (2 * len(nodes) - 1)
    marked[::2] = nodes
    return json.dumps(marked, separators=(",", ":"), check_circular=False)[1:-1].split(f',"{mark}",') if nodes else []


class TensorEncoder:
    """Collects the tensors of a state; chunks come out when all are known."""

    def __init__(self, names: Names, dealer: Dealer | None = None) -> None:
        """``dealer``: None where no tensor is the same on other ranks."""
        self._names = names
        self._dealer = dealer
        self.shared: Shared | None = None
        """what was dealt, after finish()"""
        self._tensors: list[Any] = []
        self._paths: list[str] = []
        self._mark = os.urandom(12).hex()
        self._told: list[str] = []
        self._views: dict[Any, _View] = {}
        self._places: dict[str, int] = {}  # by the names of chunks that are one view
        self._in_place = True

    def add(self, tensor: Any, path: str) -> str:
        """What stands for it in the skeleton, until fill()."""
        self._tensors.append(tensor)
        self._paths.append(path)
        return self._mark

    def count(self) -> int:
        return len(self._tensors)

    def fill(self, skeleton: str) -> str:
        """After finish(). Marks stand in JSON in the order of add()."""
        parts = skeleton.split(f'"{self._mark}"')
        pieces = [""] * (2 * len(parts) - 1)
        pieces[::2], pieces[1::2] = parts, self._told
        return "".join(pieces)

    def finish(self) -> tuple[Batch, list[Chunk]]:
        """(those on the host, those on a GPU), without those that other ranks keep. The host's refer to memory that lives as long as this object."""
        global _last_plan
        fingerprint = self._fingerprint()
        plan = _last_plan
        if plan is not None and fingerprint is not None and plan.fingerprint == fingerprint:
            self._told = plan.told
            self.shared = plan.shared
            return plan.batch, [chunk.of(self._tensors[place]) for place, chunk in plan.gpu]
        if fingerprint is not None and self._dealer is None:
            columns = self._columns(fingerprint)
            if columns is not None:
                return self._finish_separate(fingerprint, columns), []
        nodes: list[dict[str, Any]] = [{"$": "tensor", "o": number} for number in self._numbers()]
        for place, (tensor, path, node) in enumerate(zip(self._tensors, self._paths, nodes)):
            self._look(tensor, path, node, place)
        self._chunks = self._make_chunks()
        self._told = _in_json(nodes)
        own = self._chunks
        if self._dealer is not None:
            self.shared = self._dealer(own)
            own = with_bytes(own, self._dealer.rank)
        gpu = [chunk for chunk in own if chunk.device is not None]
        batch = Batch([chunk for chunk in own if chunk.device is None])
        if self._in_place and fingerprint is not None:
            _last_plan = _Plan(fingerprint, self._told, batch, self.shared, [(self._places[chunk.name], chunk.of(None)) for chunk in gpu if pack(chunk)])
        return batch, gpu

    def _columns(self, fingerprint: _Fingerprint) -> Columns | None:
        """Where each tensor is an object of its own with memory of its own on the host that the table can say, in order. None: some need a closer look."""
        if not _cuda.all_on_host(self._tensors):
            return None
        kinds = list(zip(fingerprint.properties, fingerprint.strides))
        of_kind = {kind: _form(tensor) for kind, tensor in dict(zip(kinds, self._tensors)).items()}
        if None in of_kind.values():
            return None
        forms = [of_kind[kind] for kind in kinds]
        sizes = [form.nbytes for form in forms]
        extents = sorted(zip(fingerprint.places, sizes))
        if any(map(operator.gt, itertools.starmap(operator.add, extents), [place for place, _ in extents[1:]])):
            return None
        return Columns(self._names.take_all(self._paths), fingerprint.places, sizes, [form.packed for form in forms])

    def _finish_separate(self, fingerprint: _Fingerprint, columns: Columns) -> Batch:
        global _last_plan
        torch = torch_if_there()
        examples = dict(zip(fingerprint.types, self._tensors))
        parameters = {kind for kind, tensor in examples.items() if kind is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)}
        flagged = {(kind, grad): (',"p":1' if kind in parameters else "") + (',"g":1' if grad else "") for kind in examples for grad in (False, True)}
        flags = [flagged[kind, properties[2]] for kind, properties in zip(fingerprint.types, fingerprint.properties)]
        quoted = map(json.encoder.encode_basestring_ascii, columns.names)
        self._told = [f'{{"$":"tensor","o":{number}{flag},"c":{name}}}' for number, (flag, name) in enumerate(zip(flags, quoted))]
        batch = Batch.of_columns(columns)
        _last_plan = _Plan(fingerprint, self._told, batch, None, [])
        return batch

    def _numbers(self) -> list[int]:
        """Which object each tensor is."""
        first: dict[int, int] = {}
        return [first.setdefault(id(tensor), len(first)) for tensor in self._tensors]

    def _fingerprint(self) -> _Fingerprint | None:
        """Cheap, since it is taken for each save. None: names, nodes and chunks depend on more."""
        torch, tensors = torch_if_there(), self._tensors
        if not tensors or not plain_types().issuperset(map(type, tensors)):
            return None
        of = torch.Tensor
        try:
            if any(map(of.is_neg, tensors)) or any(map(of.is_conj, tensors)):
                return None
            places, strides = list(map(of.data_ptr, tensors)), list(map(of.stride, tensors))
            properties = list(map(_PROPERTIES, tensors))
        except (RuntimeError, AttributeError):  # sparse tensors have no place, older versions of torch not all of this
            return None
        dealt = self._dealer.key(self._paths) if self._dealer is not None else False
        return _Fingerprint(places, properties, strides, list(map(type, tensors)), self._numbers(), self._paths, self._names.taken(), dealt)

    def _look(self, tensor: Any, path: str, node: dict[str, Any], place: int) -> None:
        torch = torch_if_there()
        _refuse(torch, tensor, path)
        if type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter):
            node["p"] = 1
        plain = tensor
        if tensor.requires_grad:
            node["g"] = 1
            plain = tensor.detach()
        plain = plain.resolve_conj() if plain.is_complex() else plain
        plain = plain.resolve_neg() if hasattr(plain, "resolve_neg") else plain
        key = self._key(plain, id(tensor))
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = _View(plain, path, place)
        view.nodes.append(node)

    @staticmethod
    def _key(tensor: Any, identity: int) -> Any:
        if tensor.numel() == 0:
            return identity
        return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)

    def _make_chunks(self) -> list[Chunk]:
        """Fills in the nodes of its views."""
        result = []
        for group in self._overlapping():
            if len(group) == 1:
                result.append(self._single(group[0]))
            else:
                result.append(self._shared(group))
                self._in_place = False  # where it begins depends on their storage
        return result

    def _overlapping(self) -> list[list[_View]]:
        """Views in the order of the state; those whose extents touch the same bytes are together."""
        placed = [(*_extent(view.tensor), i, view) for i, view in enumerate(self._views.values())]
        placed.sort(key=lambda p: p[:3])
        groups: list[list[tuple[int, _View]]] = []
        end = -1
        for first, after, i, view in placed:
            if groups and first < end and first != after:
                groups[-1].append((i, view))
            else:
                groups.append([(i, view)])
            end = max(end, after) if first != after else end
        for group in groups:
            if len(group) > 1:
                group.sort(key=lambda member: member[0])
        groups.sort(key=lambda group: group[0][0])
        return [[view for _, view in group] for group in groups]

    def _single(self, view: _View) -> Chunk:
        tensor, name = view.tensor, self._names.take(view.path)
        self._places[name] = view.place
        extra: dict[str, Any] = {"c": name, **self._said(view.path)}
        kind = dtype_name(tensor.dtype)
        if not tensor.is_contiguous():
            if tensor.numel() != 0 and _dense(tensor):
                extra["t"] = list(tensor.stride())
            tensor = tensor.contiguous()
            self._in_place = False
        nbytes = tensor.numel() * tensor.element_size()
        if fits_table(kind, tensor.dim()):
            chunk = Chunk(name, TABLE[kind][0], tuple(tensor.shape), tensor.data_ptr(), nbytes, tensor)
        else:
            extra.update(d=kind, s=list(tensor.shape))
            chunk = Chunk(name, BYTES, (nbytes,), tensor.data_ptr(), nbytes, tensor)
        chunk.device = _cuda.device_of(view.tensor)
        chunk.path = view.path
        for node in view.nodes:
            node.update(extra)
        return chunk

    def _said(self, path: str) -> dict[str, Any]:
        """What the skeleton tells of the program's word on a tensor."""
        return {"r": 1} if self._dealer is not None and self._dealer.wants(path) else {}

    def _shared(self, group: list[_View]) -> Chunk:
        """One chunk of raw bytes for views that overlap, and where in it each of them is."""
        start = min(_extent(v.tensor)[0] for v in group)
        if start - start % 16 >= _storage(group[0].tensor).data_ptr():
            start -= start % 16  # so that views of larger elements stay aligned
        end = max(_extent(v.tensor)[1] for v in group)
        name = self._names.take(group[0].path + ".storage")
        said = self._said(group[0].path)
        for view in group:
            where = {
                **said,
                "c": name,
                "d": dtype_name(view.tensor.dtype),
                "s": list(view.tensor.shape),
                "t": list(view.tensor.stride()),
                "b": view.tensor.data_ptr() - start,
            }
            for node in view.nodes:
                node.update(where)
        device = _cuda.device_of(group[0].tensor)
        return Chunk(name, BYTES, (end - start,), start, end - start, [v.tensor for v in group], device=device, path=group[0].path)


class TensorDecoder:
    """Makes tensors of chunks; what shared memory does so again, what was one object is one object."""

    def __init__(self, map_location: Any, views: bool) -> None:
        import torch

        self._torch = torch
        self._map_location = map_location
        self._views = views
        self._bases: dict[str, Any] = {}
        self._objects: dict[int, Any] = {}
        self._reordered: list[tuple[Any, Any]] = []  # each to be filled from the other one
        gpu = gpu_of(map_location)
        self._upload = Upload(gpu) if gpu is not None else None

    def finish(self) -> None:
        """After all: from then on the tensors may be used."""
        if self._upload is not None:
            self._upload.finish()
        for tensor, base in self._reordered:
            tensor.copy_(base)
        self._reordered.clear()

    def decode(self, node: dict[str, Any], chunk: StoredChunk) -> Any:
        if node["o"] not in self._objects:
            self._objects[node["o"]] = self._dress(node, self._plain(node, chunk))
        return self._objects[node["o"]]

    def _base(self, name: str, dtype: Any, shape: tuple[int, ...], chunk: StoredChunk) -> Any:
        """The chunk's tensor: one per chunk, so that all of its users share it."""
        torch = self._torch
        if name not in self._bases:
            if chunk.nbytes == 0:
                base = torch.empty(shape, dtype=dtype)
            else:
                base = torch.frombuffer(chunk.buffer(), dtype=dtype).reshape(shape)
            self._bases[name] = self._to_location(base)
        return self._bases[name]

    def _to_location(self, tensor: Any) -> Any:
        if self._upload is not None:
            return self._upload.add(tensor)
        if not self._views:
            tensor = tensor.clone()
        if self._map_location is None or str(self._map_location) == "cpu":
            return tensor
        return tensor.to(self._map_location)

    def _plain(self, node: dict[str, Any], chunk: StoredChunk) -> Any:
        torch = self._torch
        if "b" in node:
            dtype = getattr(torch, node["d"])
            raw = self._base(node["c"], torch.uint8, (chunk.nbytes,), chunk)
            size = torch.empty((), dtype=dtype).element_size()
            count = chunk.nbytes - node["b"]
            typed = raw[node["b"] : node["b"] + count // size * size].view(dtype)
            return typed.as_strided(node["s"], node["t"])
        if "d" in node:
            dtype, shape = getattr(torch, node["d"]), tuple(node["s"])
        else:
            from ._dtypes import NAMES

            dtype, shape = getattr(torch, NAMES[chunk.dtype]), chunk.shape
        base = self._base(node["c"], dtype, shape, chunk)
        if "t" in node and not self._views:
            return self._strided(node, base)
        return base.detach()

    def _strided(self, node: dict[str, Any], base: Any) -> Any:
        """In the order of memory that the tensor had (channels last, say)."""
        name = node["c"] + "\0strided"
        if name not in self._bases:
            self._bases[name] = self._torch.empty_strided(base.shape, node["t"], dtype=base.dtype, device=base.device)
            self._reordered.append((self._bases[name], base))
        return self._bases[name].detach()

    def _dress(self, node: dict[str, Any], tensor: Any) -> Any:
        wants_grad = bool(node.get("g"))
        if node.get("p"):
            return self._torch.nn.Parameter(tensor, requires_grad=wants_grad)
        return tensor.requires_grad_(wants_grad) if wants_grad else tensor
