# SPDX-License-Identifier: Apache-2.0
"""Exceptions; one class per code of dlrover.h that a program may want to tell apart."""

from __future__ import annotations


class DlroverError(RuntimeError):
    """A call failed; ``code`` is the number of ``enum dlrover_error``."""

    code = -10


class InvalidError(DlroverError, ValueError):
    code = -1


class UnavailableError(DlroverError):
    """The node's daemon is away; it comes back by itself."""

    code = -2


class StaleError(DlroverError):
    """This process belongs to an old generation: end it."""

    code = -3


class NotFoundError(DlroverError):
    code = -4


class NoMemoryError(DlroverError):
    """Quota or memory of the node; the text says what is needed."""

    code = -5


class CorruptError(DlroverError):
    """A checksum or the table of a checkpoint is wrong."""

    code = -6


class SkippedError(DlroverError):
    """No slot is free: this save was skipped."""

    code = -7


class ChangedError(DlroverError):
    """A tensor on a GPU was changed while a save was copying it: that save is given up."""


class ForkedError(DlroverError):
    """Called in a forked child (a data-loader worker, say)."""

    code = -8


class TimeoutError(DlroverError):  # noqa: A001  (the name belongs to this package)
    code = -9


class UnsupportedError(DlroverError):
    code = -11


_BY_CODE = {
    cls.code: cls
    for cls in (
        InvalidError,
        UnavailableError,
        StaleError,
        NotFoundError,
        NoMemoryError,
        CorruptError,
        SkippedError,
        ForkedError,
        TimeoutError,
        UnsupportedError,
    )
}


def error_for(code: int, text: str) -> DlroverError:
    error = _BY_CODE.get(code, DlroverError)(text)
    error.code = code
    return error
