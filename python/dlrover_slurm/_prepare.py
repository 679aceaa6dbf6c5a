# SPDX-License-Identifier: Apache-2.0
"""Memory for checkpoints that is made ready behind an optimizer's first step, for programs that do not call prepare(): from then on the
optimizer has all that it is going to keep, and it is known how the program is going to save."""

from __future__ import annotations

import enum
import math
import warnings
import weakref
from typing import Any

from . import _hook, _optimizers
from ._errors import UnsupportedError

_NAME_BYTES = 256
"""What a tensor's name may take more in the checkpoint than here, where it has a number."""


class Saves(enum.Enum):
    """What a rank's checkpoint holds of what its optimizers own."""

    OWN = enum.auto()
    """its own tensors, and its parts of DTensors"""
    ALIKE = enum.auto()
    """the same; each node's ranks keep one copy between them"""
    WHOLE = enum.auto()
    """DTensors whole; each node's ranks keep one copy between them"""


class _Program:
    """Stands for a program that asks what it goes on from: it is going to save."""


_program = _Program()
_wanted: tuple[weakref.ref[Any], Saves] | None = None


def behind_first_step(saver: Any, saves: Saves) -> None:
    """From now on, for every optimizer's first step, as long as ``saver`` is there. The last one who says it counts."""
    global _wanted
    _wanted = weakref.ref(saver), saves
    _hook.install_guard()


def behind_first_step_of_program() -> None:
    """Where no saver has said how it saves. Each rank's share of what all may have alike, so never more than a save takes: how it saves is not known."""
    if _wanted is None or _wanted[0]() is None:
        behind_first_step(_program, Saves.ALIKE)


def after_first_step() -> None:
    """Of an optimizer, which no failure here may end. What does not fit is a warning: the program may save less, and a save that does not fit
    is an error."""
    if _wanted is None or _wanted[0]() is None:
        return
    from . import _session

    try:
        tensors = _optimizers.owned_tensors()
        _session.prepare_bytes(_bytes_of(tensors, _wanted[1]), map(_optimizers.local_of, tensors))
    except Exception as error:  # a tensor of a class of its own may raise anything
        warnings.warn(f"no memory was made ready for checkpoints: {str(error) or type(error).__name__}", stacklevel=2)


def _bytes_of(tensors: list[Any], saves: Saves) -> int:
    from . import _session

    if saves is not Saves.WHOLE:
        try:
            return _encoded_bytes(tensors, saves) + _NAME_BYTES * len(tensors)
        except UnsupportedError:  # a tensor that no state can hold, so none will
            pass
    whole = saves is Saves.WHOLE
    sizes = [_optimizers.nbytes_of(tensor if whole else _optimizers.local_of(tensor)) + _NAME_BYTES for tensor in tensors]
    sharers = _session.world().local_world_size
    if not whole or sharers < 2:
        return sum(sizes)
    return math.ceil(sum(sizes) / sharers) + max(sizes, default=0)


def _encoded_bytes(tensors: list[Any], saves: Saves) -> int:
    """As save() will encode and, where they are alike, deal them out. That takes about twice as long the first time in a process as later: here, not in the first save."""
    from . import _session, _state, _torch

    state = {str(i): _optimizers.local_of(tensor).detach() for i, tensor in enumerate(tensors)}
    before = _torch.current_plan()
    with _session.collector_waits():
        encoded = _state.encode(state, allow_pickle=False, dealer=_session.dealer(saves is Saves.ALIKE))
    _torch.forget_plan(encoded.host[0], before)
    return encoded.bound()
