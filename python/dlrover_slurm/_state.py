# SPDX-License-Identifier: Apache-2.0
"""A Python state <-> a JSON skeleton and named chunks (docs/format-object.md, "Skeleton")."""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import struct
import warnings
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Protocol

from . import _numpy, _torch
from ._chunks import FIXED_TABLE_BYTES, Batch, Chunk, Names, StoredChunk, bytes_chunk, size_in_object
from ._errors import CorruptError, InvalidError, UnsupportedError
from ._share import Dealer, Shared

SKELETON_VERSION = 1
_INLINE_BYTES = 64
_INLINE_TEXT = 4096
_INLINE_INT = 1 << 2048  # 617 decimal digits; Python (3.11) may refuse to write and read more than 640 in a program, and more than 4300 by default
_pickled_types: set[type] = set()


@dataclass
class Encoded:
    """Refers to the state's memory, which it keeps alive."""

    skeleton: bytes
    host: list[Batch]
    gpu: list[Chunk]
    ledger: bytes
    owner: Any
    shared: Shared | None = None

    def bound(self) -> int:
        """Upper bound of the object's size."""
        shared = self.shared.bound if self.shared is not None else 0
        gpu = sum(size_in_object(chunk.nbytes, chunk.name) for chunk in self.gpu)
        return sum(batch.bound for batch in self.host) + gpu + len(self.skeleton) + shared + FIXED_TABLE_BYTES


def _float_to_json(value: float) -> Any:
    """JSON numbers round-trip all finite values; the others keep their bits."""
    if value - value == 0.0:
        return value
    return {"$": "float", "v": struct.pack(">d", value).hex()}


def _float_bits(text: str) -> float:
    return struct.unpack(">d", bytes.fromhex(text))[0]


def _key_text(key: Any) -> str:
    try:
        return f"{key}"
    except ValueError:  # it is or has an int of more digits than Python writes
        return "#"


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and type(value) is not tuple and hasattr(type(value), "_fields")


class _Encoder:
    def __init__(self, allow_pickle: bool, dealer: Dealer | None = None) -> None:
        self._names = Names()
        self._tensors = _torch.TensorEncoder(self._names, dealer)
        self._plain_tensors = _torch.plain_types()
        self._chunks: list[Chunk] = []
        self._arrays: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._open: set[int] = set()
        self._allow_pickle = allow_pickle

    def encode(self, state: Any, ledger: Any) -> Encoded:
        tree = self._node(state, "")
        tensors, gpu = self._tensors.finish()
        kind, data = encode_ledger(ledger)
        document = {"version": SKELETON_VERSION, "ledger": kind, "state": tree}
        skeleton = self._tensors.fill(json.dumps(document, separators=(",", ":"), check_circular=False)).encode()
        return Encoded(skeleton, [tensors, Batch(self._chunks)], gpu, data, (state, self._tensors, self._chunks), self._tensors.shared)

    def _node(self, value: Any, path: str) -> Any:
        if type(value) in self._plain_tensors:
            return self._tensors.add(value, path)
        if value is None or type(value) is bool:
            return value
        if type(value) is int:
            return value if -_INLINE_INT < value < _INLINE_INT else {"$": "int", "v": f"{value:x}"}
        scalar = _SCALARS.get(type(value))
        if scalar is not None:
            return scalar(self, value, path)
        container = _CONTAINERS.get(type(value))
        if container is not None:
            return self._inside(container, value, path)
        return self._other(value, path)

    def _inside(self, encode: Callable[..., Any], value: Any, path: str) -> Any:
        if id(value) in self._open:
            raise UnsupportedError(f"{path or 'the state'} contains itself: that can not be saved")
        self._open.add(id(value))
        try:
            return encode(self, value, path)
        finally:
            self._open.discard(id(value))

    def _other(self, value: Any, path: str) -> Any:
        if _torch.is_tensor(value):
            return self._tensors.add(value, path)
        if _numpy.is_array(value):
            return self._array(value, path)
        if _numpy.is_scalar(value):
            return _numpy.encode_scalar(value)
        if _is_namedtuple(value):
            return self._inside(_Encoder._namedtuple, value, path)
        torch = _torch.torch_if_there()
        if torch is not None:
            if isinstance(value, torch.dtype):
                return {"$": "dtype", "v": _torch.dtype_name(value)}
            if isinstance(value, torch.device):
                return {"$": "device", "v": str(value)}
            if isinstance(value, torch.Size):
                return {"$": "size", "v": list(value)}
        return self._pickle(value, path)

    def _float(self, value: float, _path: str) -> Any:
        return _float_to_json(value)

    def _complex(self, value: complex, _path: str) -> Any:
        return {"$": "complex", "v": [_float_to_json(value.real), _float_to_json(value.imag)]}

    def _text(self, value: str, path: str) -> Any:
        if len(value) <= _INLINE_TEXT:
            return value
        return {"$": "text", "c": self._bytes_chunk(value.encode("utf-8", "surrogatepass"), path)}

    def _bytes(self, value: Any, path: str) -> Any:
        kind = type(value).__name__
        if len(value) <= _INLINE_BYTES:
            return {"$": kind, "v": base64.b64encode(value).decode()}
        return {"$": kind, "c": self._bytes_chunk(bytes(value), path)}

    def _bytes_chunk(self, data: bytes, path: str) -> str:
        name = self._names.take(path)
        self._chunks.append(bytes_chunk(name, data))
        return name

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        """The same array twice is saved once and is one array again."""
        known = self._arrays.get(id(value))
        if known is None:
            node, chunk = _numpy.encode_array(value, self._names.take(path))
            self._chunks.append(chunk)
            known = self._arrays[id(value)] = (value, node)
        return known[1]

    def _items(self, values: Any, path: str) -> list[Any]:
        prefix = path + "." if path else ""
        return [self._node(item, f"{prefix}{i}") for i, item in enumerate(values)]

    def _pairs(self, mapping: Any, path: str) -> list[Any]:
        prefix, node = path + "." if path else "", self._node
        pairs = ((prefix + _key_text(key), key, value) for key, value in mapping.items())
        return [[node(key, place + "#key"), node(value, place)] for place, key, value in pairs]

    def _dict(self, value: dict[Any, Any], path: str) -> Any:
        if all(type(key) is str for key in value):
            prefix, node = path + "." if path else "", self._node
            return {"$": "dict", "v": {key: node(item, prefix + key) for key, item in value.items()}}
        return {"$": "map", "v": self._pairs(value, path)}

    def _ordered(self, value: Any, path: str) -> Any:
        if value.__dict__:  # attributes, as the _metadata of a module's state_dict
            return {"$": "ordered", "v": self._pairs(value, path), "a": self._pairs(value.__dict__, path + "#attributes")}
        return {"$": "ordered", "v": self._pairs(value, path)}

    def _counter(self, value: Any, path: str) -> Any:
        return {"$": "counter", "v": self._pairs(value, path)}

    def _list(self, value: list[Any], path: str) -> Any:
        return self._items(value, path)

    def _tuple(self, value: tuple[Any, ...], path: str) -> Any:
        return {"$": "tuple", "v": self._items(value, path)}

    def _set(self, value: Any, path: str) -> Any:
        before = self._tensors.count()
        items = self._items(value, path)
        if self._tensors.count() == before:  # tensors stay in the order in which they came
            items.sort(key=lambda node: json.dumps(node, sort_keys=True))
        return {"$": type(value).__name__, "v": items}

    def _namedtuple(self, value: Any, path: str) -> Any:
        cls = type(value)
        if "<locals>" in cls.__qualname__:
            raise UnsupportedError(f"{path or 'the state'}: {cls.__qualname__} is local to a function, it could not be found again")
        return {"$": "namedtuple", "m": cls.__module__, "q": cls.__qualname__, "v": self._items(value, path)}

    def _pickle(self, value: Any, path: str) -> Any:
        try:
            data = pickle.dumps(value, protocol=4)
        except Exception as error:
            raise UnsupportedError(f"{path or 'the state'} ({type(value).__qualname__}) can not be saved: {error}") from error
        if not self._allow_pickle and type(value) not in _pickled_types:
            _pickled_types.add(type(value))
            cls = type(value)
            warnings.warn(
                f"{path or 'the state'}: a {cls.__module__}.{cls.__qualname__} is saved by pickle (allow_pickle=True: say nothing)",
                stacklevel=4,
            )
        return {"$": "pickle", "c": self._bytes_chunk(data, path)}


_SCALARS: dict[type, Callable[..., Any]] = {
    float: _Encoder._float,
    complex: _Encoder._complex,
    str: _Encoder._text,
    bytes: _Encoder._bytes,
    bytearray: _Encoder._bytes,
}
_CONTAINERS: dict[type, Callable[..., Any]] = {
    dict: _Encoder._dict,
    OrderedDict: _Encoder._ordered,
    Counter: _Encoder._counter,
    list: _Encoder._list,
    tuple: _Encoder._tuple,
    set: _Encoder._set,
    frozenset: _Encoder._set,
}


def encode_ledger(ledger: Any) -> tuple[str, bytes]:
    if ledger is None:
        return "none", b""
    if isinstance(ledger, (bytes, bytearray, memoryview)):
        return "bytes", bytes(ledger)
    try:
        return "json", json.dumps(ledger).encode()
    except (TypeError, ValueError) as error:
        raise InvalidError(f"ledger: {error}: it takes bytes, or what JSON can say") from None


def encode(state: Any, ledger: Any = None, allow_pickle: bool = False, dealer: Dealer | None = None) -> Encoded:
    """The result refers to the state's memory: it must not change until that is copied. ``dealer``: of tensors that other ranks hold, too."""
    return _Encoder(allow_pickle, dealer).encode(state, ledger)


class Chunks(Protocol):
    """By name."""

    def __getitem__(self, name: str, /) -> StoredChunk: ...


class _Decoder:
    def __init__(self, chunks: Chunks, map_location: Any, views: bool) -> None:
        self._chunks = chunks
        self._map_location = map_location
        self._views = views
        self._tensors: _torch.TensorDecoder | None = None
        self._arrays: dict[str, Any] = {}

    def finish(self) -> None:
        if self._tensors is not None:
            self._tensors.finish()

    def node(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.node(item) for item in node]
        if not isinstance(node, dict):
            return node
        decode = _DECODERS.get(node.get("$", ""))
        if decode is None:
            raise CorruptError(f"the skeleton has an unknown kind of value: {node.get('$')!r}")
        return decode(self, node)

    def _chunk(self, node: dict[str, Any]) -> StoredChunk:
        return self._chunks[node["c"]]

    def _tensor(self, node: dict[str, Any]) -> Any:
        if self._tensors is None:
            self._tensors = _torch.TensorDecoder(self._map_location, self._views)
        return self._tensors.decode(node, self._chunk(node))

    def _array(self, node: dict[str, Any]) -> Any:
        if node["c"] not in self._arrays:
            self._arrays[node["c"]] = _numpy.decode_array(node, self._chunk(node), self._views)
        return self._arrays[node["c"]]

    def _scalar(self, node: dict[str, Any]) -> Any:
        return _numpy.decode_scalar(node)

    def _int(self, node: dict[str, Any]) -> Any:
        return int(node["v"], 16)

    def _float(self, node: dict[str, Any]) -> Any:
        return _float_bits(node["v"])

    def _complex(self, node: dict[str, Any]) -> Any:
        return complex(self.node(node["v"][0]), self.node(node["v"][1]))

    def _text(self, node: dict[str, Any]) -> Any:
        return self._chunk(node).to_bytes().decode("utf-8", "surrogatepass")

    def _raw(self, node: dict[str, Any]) -> bytes:
        return base64.b64decode(node["v"]) if "v" in node else self._chunk(node).to_bytes()

    def _bytearray(self, node: dict[str, Any]) -> Any:
        return bytearray(self._raw(node))

    def _dict(self, node: dict[str, Any]) -> Any:
        return {key: self.node(item) for key, item in node["v"].items()}

    def _pairs(self, pairs: list[Any]) -> list[tuple[Any, Any]]:
        return [(self.node(key), self.node(value)) for key, value in pairs]

    def _map(self, node: dict[str, Any]) -> Any:
        return dict(self._pairs(node["v"]))

    def _ordered(self, node: dict[str, Any]) -> Any:
        result: Any = OrderedDict(self._pairs(node["v"]))
        result.__dict__.update(self._pairs(node.get("a", [])))
        return result

    def _counter(self, node: dict[str, Any]) -> Any:
        return Counter(dict(self._pairs(node["v"])))

    def _tuple(self, node: dict[str, Any]) -> Any:
        return tuple(self.node(node["v"]))

    def _set(self, node: dict[str, Any]) -> Any:
        return set(self.node(node["v"]))

    def _frozenset(self, node: dict[str, Any]) -> Any:
        return frozenset(self.node(node["v"]))

    def _namedtuple(self, node: dict[str, Any]) -> Any:
        cls: Any = importlib.import_module(node["m"])
        for part in node["q"].split("."):
            cls = getattr(cls, part)
        if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
            raise CorruptError(f"{node['m']}.{node['q']} is no named tuple")
        return cls._make(self.node(node["v"]))

    def _dtype(self, node: dict[str, Any]) -> Any:
        import torch

        return getattr(torch, node["v"])

    def _device(self, node: dict[str, Any]) -> Any:
        import torch

        return torch.device(node["v"])

    def _size(self, node: dict[str, Any]) -> Any:
        import torch

        return torch.Size(node["v"])

    def _pickle(self, node: dict[str, Any]) -> Any:
        return pickle.loads(self._chunk(node).to_bytes())


_DECODERS: dict[str, Callable[..., Any]] = {
    "tensor": _Decoder._tensor,
    "array": _Decoder._array,
    "scalar": _Decoder._scalar,
    "int": _Decoder._int,
    "float": _Decoder._float,
    "complex": _Decoder._complex,
    "text": _Decoder._text,
    "bytes": _Decoder._raw,
    "bytearray": _Decoder._bytearray,
    "dict": _Decoder._dict,
    "map": _Decoder._map,
    "ordered": _Decoder._ordered,
    "counter": _Decoder._counter,
    "tuple": _Decoder._tuple,
    "set": _Decoder._set,
    "frozenset": _Decoder._frozenset,
    "namedtuple": _Decoder._namedtuple,
    "dtype": _Decoder._dtype,
    "device": _Decoder._device,
    "size": _Decoder._size,
    "pickle": _Decoder._pickle,
}


def decode_ledger(kind: str, data: bytes) -> Any:
    if kind == "json":
        return json.loads(data)
    return data if kind == "bytes" else None


def _document(skeleton: bytes) -> dict[str, Any]:
    if not skeleton:
        raise UnsupportedError("the checkpoint was not saved by Python: read it with dlrover.h")
    document: dict[str, Any] = json.loads(skeleton)
    if document.get("version") != SKELETON_VERSION:
        raise UnsupportedError(f"the checkpoint's skeleton is of version {document.get('version')}")
    if "state" not in document:
        raise UnsupportedError("the checkpoint was saved through torch.distributed.checkpoint: load it with dlrover_slurm.dcp")
    return document


def decode(skeleton: bytes, chunks: Chunks, map_location: Any = "cpu", views: bool = False) -> Any:
    """The state."""
    decoder = _Decoder(chunks, map_location, views)
    state = decoder.node(_document(skeleton)["state"])
    decoder.finish()
    return state


def ledger_of(skeleton: bytes, data: bytes) -> Any:
    return decode_ledger(_document(skeleton)["ledger"], data)


# ---- what of a state is one rank's own ----

_SEQUENCES = ("tuple", "set", "frozenset", "namedtuple")
_MAPPINGS = ("map", "ordered", "counter")


def _parts(node: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, by place; None: it is no container."""
    if isinstance(node, list):
        return [(str(i), item) for i, item in enumerate(node)]
    kind = node.get("$") if isinstance(node, dict) else None
    if kind == "dict":
        return sorted(node["v"].items())
    if kind in _SEQUENCES:
        return _parts(node["v"])
    if kind not in _MAPPINGS:
        return None
    parts = [("#attributes", node.get("a", []))]
    for i, (key, value) in enumerate(node["v"]):
        parts += [(f"#{i}", key), (str(key) if isinstance(key, (str, int)) else f"#{i}", value)]
    return parts


def _own(node: Any, other: Any, path: str) -> Iterator[str]:
    """``other``: the same place in another rank's state."""
    if isinstance(node, dict) and "c" in node:
        if not node.get("r"):
            yield path
        return
    parts, others = _parts(node), _parts(other)
    if parts is None or others is None:
        if node != other:
            yield path
    elif [name for name, _ in parts] != [name for name, _ in others]:
        yield path
    else:
        for (name, part), (_, there) in zip(parts, others):
            yield from _own(part, there, f"{path}.{name}" if path else name)


def own_parts(skeleton: bytes, others: Iterable[bytes] = ()) -> Iterator[str]:
    """Places in a state whose values are that rank's own: tensors that were not saved as replicated, all else that has a chunk, and values that differ from
    those of another rank."""
    state = _document(skeleton)["state"]
    yield from _own(state, state, "")
    for other in others:
        if other != skeleton:
            yield from _own(state, _document(other)["state"], "")
