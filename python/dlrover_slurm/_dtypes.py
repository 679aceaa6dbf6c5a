# SPDX-License-Identifier: Apache-2.0
"""Element types of the object table beside those of torch and numpy."""

from __future__ import annotations

BYTES = 0

# Name, as torch and numpy call it: (number in the object table, bytes of an element).
TABLE: dict[str, tuple[int, int]] = {
    "bool": (1, 1),
    "uint8": (2, 1),
    "int8": (3, 1),
    "uint16": (4, 2),
    "int16": (5, 2),
    "uint32": (6, 4),
    "int32": (7, 4),
    "uint64": (8, 8),
    "int64": (9, 8),
    "float16": (10, 2),
    "bfloat16": (11, 2),
    "float32": (12, 4),
    "float64": (13, 8),
    "float8_e4m3fn": (14, 1),
    "float8_e5m2": (15, 1),
    "complex64": (16, 8),
    "complex128": (17, 16),
}
NAMES: dict[int, str] = {number: name for name, (number, _) in TABLE.items()}
