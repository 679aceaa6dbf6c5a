# SPDX-License-Identifier: Apache-2.0
"""Progress: steps and phases, so that a hang can be told from an evaluation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from . import _hook, _session
from ._library import check, library


def report_step(step: int) -> None:
    """The optimizer finished training step ``step``. From the first call on the optimizer hook does not count any more."""
    step = _session.note_step(step)
    _hook.stop()
    check(library().dlrover_report_step(_session.handle(), step))


@contextmanager
def phase(name: str) -> Iterator[None]:
    """While it is open nobody expects steps: ``with phase("eval"): ...``. Nests."""
    context = _session.handle()
    check(library().dlrover_phase_begin(context, name.encode()))
    try:
        yield
    finally:
        check(library().dlrover_phase_end(context))
