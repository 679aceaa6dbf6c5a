# SPDX-License-Identifier: Apache-2.0
"""Going on in the next generation without being started again."""

from __future__ import annotations

import ctypes
import os

from . import _events, _session
from ._errors import DlroverError
from ._library import check, library


def stay() -> None:
    """This process can go on in the next generation: where its generation ends it is not ended, but has 3 s to call next_generation().
    All ranks that one agent runs (one, under srun) have to say so; who does not leave in time is ended and started again, as without it. Say it once, between saves and
    loads. UnsupportedError without a daemon."""
    check(library().dlrover_stay(_session.handle()))


def next_generation() -> _session.World:
    """Leaves this generation, waits until this process is told what it is in the next one, and returns that; SIGTERM comes instead where it is not needed there.

    Call it when a collective fails, something raises StaleError, or EventKind.GENERATION_ENDS has come. Close what belongs to the old generation before (process groups,
    GlobalTensors, what holds tensors of load(views=True)). Where all others go on it counts as this rank's failure after 2 s. ``os.environ`` has RANK, WORLD_SIZE, MASTER_PORT and
    the others of the new generation then. Call load() next, as after a start: all ranks go on from one step. Subscriptions go on. StaleError: the group is over.

    Not from a callback of on_membership(); no other thread may use this package or the environment meanwhile."""
    try:
        _session.wait_saved()
    except DlroverError:  # of a generation that is over: its saves may come to nothing
        pass
    with _events.suspended():
        with _session.exchange() as handle:
            check(library().dlrover_next_generation(ctypes.byref(handle)))
        _read_environment()
    return _session.world()


def _read_environment() -> None:
    """What the library has set is not in os.environ, which is a copy."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    i = 0
    while environ[i] is not None:
        name, _, value = os.fsdecode(environ[i]).partition("=")
        if name and os.environ.get(name) != value:
            os.environ[name] = value
        i += 1
