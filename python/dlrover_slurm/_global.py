# SPDX-License-Identifier: Apache-2.0
"""Global tensors of a checkpoint, read by global offset: from storage at any world size."""

from __future__ import annotations

import math
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Sequence

from . import _session
from ._dtypes import BYTES, NAMES, TABLE
from ._errors import InvalidError, NotFoundError, UnsupportedError
from ._library import MAX_DIMS, ChunkStruct, check, library


@dataclass(frozen=True)
class TensorInfo:
    """``dtype`` as numpy and torch call it; "bytes" for what is no tensor of theirs."""

    dtype: str
    shape: tuple[int, ...]


class GlobalTensors:
    """The global tensors of the checkpoint that this generation goes on from. NotFoundError: there is none.

    From storage every box of every tensor, whatever the number of ranks that saved it; from memory and plain files what lies
    in this rank's own pieces. One at a time, and not beside views of load().
    """

    def __init__(self, folder: _session.Folder | None = None, *, opened: _session.Opened | None = None) -> None:
        """``folder``: of a lineage (its newest complete checkpoint) or of one checkpoint, whatever this generation goes on from."""
        self._opened: Any = _session.Opened(folder) if opened is None else opened
        self.step: int = self._opened.step()
        self.saved_by: int = self._opened.saved_by()
        """ranks that saved it"""

    def __enter__(self) -> GlobalTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened = None

    def _handle(self) -> c_void_p:
        if self._opened is None:
            raise InvalidError("these tensors are closed")
        return self._opened.pointer()

    def infos(self) -> dict[str, TensorInfo]:
        """What there is, by name. From storage the first call reads the tables of all ranks."""
        lib, count, info = library(), c_uint64(), ChunkStruct()
        check(lib.dlrover_restore_global_count(self._handle(), byref(count)))
        found = {}
        for i in range(count.value):
            check(lib.dlrover_restore_global(self._handle(), i, byref(info)))
            dtype = "bytes" if info.dtype == BYTES else NAMES[info.dtype]
            found[info.name.decode()] = TensorInfo(dtype, tuple(info.global_shape[: info.ndim]))
        return found

    def has(self, name: str) -> bool:
        """Whether any rank has a chunk of that name, be it a piece of a global tensor or not."""
        try:
            self.read_into(name, "bytes", (), (), 0, 0)
        except NotFoundError:
            return False
        except (InvalidError, UnsupportedError):
            pass  # no box of its; or no one tensor
        return True

    def read_into(
        self, name: str, dtype: str, offset: Sequence[int], shape: Sequence[int], address: int, nbytes: int
    ) -> None:
        """Fills memory with the box of ``shape`` at ``offset``, in row-major order."""
        if len(offset) != len(shape) or len(shape) > MAX_DIMS:
            raise InvalidError("offset and shape differ in length, or have too many dimensions")
        if min((*offset, *shape), default=0) < 0:
            raise InvalidError("offset and shape are not negative")
        box = c_uint64 * max(1, len(shape))
        number = BYTES if dtype == "bytes" else TABLE[dtype][0]
        check(
            library().dlrover_restore_read(
                self._handle(), name.encode(), number, len(shape), box(*offset), box(*shape), address, nbytes
            )
        )

    def _box(
        self, name: str, dtype: str | None, offset: Sequence[int] | None, shape: Sequence[int] | None
    ) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        if dtype is None or shape is None:
            infos = self.infos()
            info = infos.get(name)
            if info is None:
                raise InvalidError(f"there is no global tensor {name!r}")
            dtype, shape = dtype or info.dtype, info.shape if shape is None else shape
        return dtype, tuple(offset) if offset is not None else (0,) * len(shape), tuple(shape)

    def numpy(
        self,
        name: str,
        offset: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """A box as an array; by default the whole tensor. numpy has no bfloat16 and no float8."""
        import numpy

        kind, at, size = self._box(name, dtype, offset, shape)
        array = numpy.empty(size, numpy.dtype("uint8" if kind == "bytes" else kind))
        self.read_into(name, kind, at, size, array.ctypes.data, array.nbytes)
        return array

    def torch(
        self,
        name: str,
        offset: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """A box as a tensor on the CPU; by default the whole tensor."""
        import torch

        kind, at, size = self._box(name, dtype, offset, shape)
        tensor = torch.empty(size, dtype=getattr(torch, "uint8" if kind == "bytes" else kind))
        self.read_into(name, kind, at, size, tensor.data_ptr(), math.prod(size) * tensor.element_size())
        return tensor
