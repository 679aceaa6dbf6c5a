# SPDX-License-Identifier: Apache-2.0
"""libdlrover by ctypes: structures and prototypes of dlrover.h."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

from . import _version
from ._errors import error_for

MAX_DIMS = 16
SONAME = "libdlrover.so.0"


class WorldStruct(ctypes.Structure):
    _fields_ = [
        (name, c_uint32)
        for name in ("rank", "world_size", "local_rank", "local_world_size", "group_rank", "group_world_size")
    ] + [
        ("generation_term", c_uint64),
        ("generation_number", c_uint64),
        ("restart_count", c_uint32),
        ("restore_step", c_int64),
        ("managed", c_int),
    ]


class ChunkStruct(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_uint32),
        ("ndim", c_uint32),
        ("global_shape", c_uint64 * MAX_DIMS),
        ("global_offset", c_uint64 * MAX_DIMS),
        ("local_shape", c_uint64 * MAX_DIMS),
        ("replica", c_uint32),
    ]


class EventStruct(ctypes.Structure):
    _fields_ = [
        ("kind", c_uint32),
        ("generation_term", c_uint64),
        ("generation_number", c_uint64),
        ("rank", c_int64),
        ("train_step", c_int64),
        ("time_us", c_int64),
        ("text", c_char * 256),
        ("node", c_char * 256),
    ]


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "dlrover_version": (c_char_p, []),
    "dlrover_error_text": (c_char_p, []),
    "dlrover_open": (c_int, [POINTER(c_void_p)]),
    "dlrover_close": (None, [c_void_p]),
    "dlrover_get_world": (c_int, [c_void_p, POINTER(WorldStruct)]),
    "dlrover_prepare": (c_int, [c_void_p, c_uint64]),
    "dlrover_prepare_cuda": (c_int, [c_void_p, c_uint64, c_void_p]),
    "dlrover_save_wait": (c_int, [c_void_p, c_uint32]),
    "dlrover_stay": (c_int, [c_void_p]),
    "dlrover_next_generation": (c_int, [POINTER(c_void_p)]),
    "dlrover_save_begin": (c_int, [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)]),
    "dlrover_save_add_many": (
        c_int,
        [c_void_p, c_uint64, POINTER(ChunkStruct), POINTER(c_void_p), POINTER(c_uint64)],
    ),
    "dlrover_save_add_cuda": (
        c_int,
        [c_void_p, c_uint64, POINTER(ChunkStruct), POINTER(c_void_p), POINTER(c_uint64), c_void_p],
    ),
    "dlrover_share": (
        c_int,
        [c_void_p, c_uint64, POINTER(c_uint32), c_uint64, POINTER(ChunkStruct), POINTER(c_uint32)],
    ),
    "dlrover_save_add_shared": (
        c_int,
        [c_void_p, c_uint64, POINTER(c_uint32), c_uint64, POINTER(ChunkStruct), POINTER(c_uint32)],
    ),
    "dlrover_wait_staged": (c_int, [c_void_p]),
    "dlrover_fence_staged": (c_int, [c_void_p, c_void_p]),
    "dlrover_save_skeleton": (c_int, [c_void_p, c_char_p, c_uint64]),
    "dlrover_save_ledger": (c_int, [c_void_p, c_char_p, c_uint64]),
    "dlrover_save_to_storage": (c_int, [c_void_p]),
    "dlrover_save_commit": (c_int, [c_void_p]),
    "dlrover_save_abort": (None, [c_void_p]),
    "dlrover_restore_open": (c_int, [c_void_p, POINTER(c_void_p)]),
    "dlrover_restore_open_folder": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "dlrover_restore_step": (c_int64, [c_void_p]),
    "dlrover_restore_count": (c_uint64, [c_void_p]),
    "dlrover_restore_chunk": (
        c_int,
        [c_void_p, c_uint64, POINTER(ChunkStruct), POINTER(c_void_p), POINTER(c_uint64)],
    ),
    "dlrover_restore_skeleton": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_uint64)]),
    "dlrover_restore_ledger": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_uint64)]),
    "dlrover_restore_world_size": (c_int, [c_void_p]),
    "dlrover_restore_read": (
        c_int,
        [c_void_p, c_char_p, c_uint32, c_uint32, POINTER(c_uint64), POINTER(c_uint64), c_void_p, c_uint64],
    ),
    "dlrover_restore_global_count": (c_int, [c_void_p, POINTER(c_uint64)]),
    "dlrover_restore_global": (c_int, [c_void_p, c_uint64, POINTER(ChunkStruct)]),
    "dlrover_restore_rank_count": (c_int, [c_void_p, c_uint32, POINTER(c_uint64)]),
    "dlrover_restore_rank_chunk": (
        c_int,
        [c_void_p, c_uint32, c_uint64, POINTER(ChunkStruct), POINTER(c_uint64)],
    ),
    "dlrover_restore_rank_read": (c_int, [c_void_p, c_uint32, c_uint64, c_void_p, c_uint64]),
    "dlrover_restore_rank_skeleton": (c_int, [c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_uint64)]),
    "dlrover_restore_close": (None, [c_void_p]),
    "dlrover_report_step": (c_int, [c_void_p, c_uint64]),
    "dlrover_phase_begin": (c_int, [c_void_p, c_char_p]),
    "dlrover_phase_end": (c_int, [c_void_p]),
    "dlrover_event_fd": (c_int, [c_void_p]),
    "dlrover_next_event": (c_int, [c_void_p, POINTER(EventStruct)]),
}


def _candidates() -> list[str]:
    """Where the library may be: told by the environment (then only there), installed with us, the loader's path."""
    told = os.environ.get("DLROVER_LIBRARY")
    if told:
        return [told]
    found = []
    try:
        from ._paths import LIBDIR  # written by "make install"

        found.append(os.path.join(LIBDIR, SONAME))
    except ImportError:
        pass
    return found + [SONAME]


def _open_library() -> ctypes.CDLL:
    failures = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            failures.append(str(error))
    raise ImportError(
        f"{SONAME} was not found: install dlrover-slurm, or set DLROVER_LIBRARY to the file ({'; '.join(failures)})"
    )


def _check_version(found: str) -> None:
    if found.split(".")[:2] != _version.__version__.split(".")[:2]:
        raise ImportError(
            f"libdlrover is version {found}, the Python package {_version.__version__}: they must agree; "
            "install both from the same release"
        )


def load() -> ctypes.CDLL:
    """The library with its prototypes set, after the check of versions."""
    library = _open_library()
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"libdlrover lacks {name}: it is of another version than the Python package")
        function.restype = result
        function.argtypes = arguments
    _check_version(library.dlrover_version().decode())
    return library


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = load()
    return _library


def check(code: int) -> None:
    """Raises what the code means."""
    if code != 0:
        raise error_for(code, library().dlrover_error_text().decode(errors="replace"))


def read_pointer(function: Any, handle: Any) -> bytes:
    """Calls f(handle, &pointer, &bytes) and copies what it points to."""
    pointer, count = c_void_p(), c_uint64()
    check(function(handle, byref(pointer), byref(count)))
    return ctypes.string_at(pointer, count.value) if count.value else b""
