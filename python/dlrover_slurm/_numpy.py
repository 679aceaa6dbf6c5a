# SPDX-License-Identifier: Apache-2.0
"""numpy arrays and scalars in a state. numpy is only touched when the program has imported it already."""

from __future__ import annotations

import base64
import sys
from typing import Any

from ._chunks import Chunk, StoredChunk, fits_table
from ._dtypes import BYTES, TABLE


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def is_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject


def _descr(dtype: Any) -> Any:
    import numpy

    return numpy.lib.format.dtype_to_descr(dtype)


def _dtype(descr: Any) -> Any:
    import numpy

    def tuples(item: Any) -> Any:
        """JSON made lists of the tuples in a structured type's description."""
        if isinstance(item, list) and item and isinstance(item[0], list):
            return [tuple(tuples(part) if i == 1 else _shape(part) for i, part in enumerate(f)) for f in item]
        return item

    def _shape(part: Any) -> Any:
        return tuple(part) if isinstance(part, list) else part

    return numpy.lib.format.descr_to_dtype(tuples(descr))


def encode_array(array: Any, name: str) -> tuple[dict[str, Any], Chunk]:
    node: dict[str, Any] = {"$": "array", "c": name}
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    source = array.T if fortran else array
    if not source.flags.c_contiguous:
        source = source.copy(order="C")
    kind = array.dtype.name if array.dtype.isnative else "foreign"
    if fits_table(kind, array.ndim) and not fortran:
        return node, Chunk(name, TABLE[kind][0], array.shape, source.ctypes.data, source.nbytes, source)
    node.update(d=_descr(array.dtype), s=list(source.shape), f=int(fortran))
    return node, Chunk(name, BYTES, (source.nbytes,), source.ctypes.data, source.nbytes, source)


def decode_array(node: dict[str, Any], chunk: StoredChunk, views: bool) -> Any:
    import numpy

    if "d" in node:
        dtype, shape = _dtype(node["d"]), tuple(node["s"])
    else:
        from ._dtypes import NAMES

        dtype, shape = numpy.dtype(NAMES[chunk.dtype]), chunk.shape
    if chunk.nbytes == 0:
        array = numpy.empty(shape, dtype)
    else:
        array = numpy.frombuffer(chunk.buffer(), dtype=dtype).reshape(shape)
        array.flags.writeable = False
    if node.get("f"):
        array = array.T
    return array if views or chunk.nbytes == 0 else array.copy(order="K")


def encode_scalar(value: Any) -> dict[str, Any]:
    return {"$": "scalar", "d": _descr(value.dtype), "v": base64.b64encode(value.tobytes()).decode()}


def decode_scalar(node: dict[str, Any]) -> Any:
    import numpy

    return numpy.frombuffer(base64.b64decode(node["v"]), dtype=_dtype(node["d"]))[0]
