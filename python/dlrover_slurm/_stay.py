# SPDX-License-Identifier: Apache-2.0
"""Going on in the next generation without being started again."""

from __future__ import annotations

import ctypes
import os
import threading

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
    GlobalTensors, what holds tensors of load(views=True)). Where all others go on it counts as this rank's failure after some seconds. ``os.environ`` has RANK, WORLD_SIZE, MASTER_PORT and
    the others of the new generation then. Call load() next, as after a start: all ranks go on from one step. Subscriptions (on_membership) go on. StaleError: the group is over, or
    this process is being ended, since the next generation has ended before it had begun here.

    A signal's handler that raises leaves it: what follows in this package raises StaleError then.

    Not from a callback of on_membership(); no other thread may use this package or the environment meanwhile."""
    try:
        _session.wait_saved()
    except DlroverError:  # of a generation that is over: its saves may come to nothing
        pass
    with _events.suspended():
        before = _environment()
        with _session.exchange() as handle:
            _wait(handle)
        _take_over(before, _environment())
    return _session.world()


def _wait(handle: ctypes.c_void_p) -> None:
    """In a thread of its own: signals' handlers run here meanwhile. What one raises leaves the thread behind: nobody can call it back."""
    errors: list[BaseException] = []
    lock, over, abandoned = threading.Lock(), threading.Event(), threading.Event()

    def ask() -> None:
        try:
            check(library().dlrover_next_generation(ctypes.byref(handle)))
        except BaseException as error:
            errors.append(error)
        with lock:
            over.set()
        if abandoned.is_set() and handle:
            library().dlrover_close(handle)

    threading.Thread(target=ask, name="dlrover-next", daemon=True).start()
    try:
        while not over.wait(0.1):
            pass
    except BaseException:
        with lock:
            if not over.is_set():
                abandoned.set()
                _session.lose("next_generation() was left by an exception of a signal's handler: this process can not go on in another generation")
        raise
    if errors:
        raise errors[0]


def _environment() -> dict[str, str]:
    """The process's own, of which os.environ is a copy."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: dict[str, str] = {}
    i = 0
    while (entry := environ[i]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        found[name] = value
        i += 1
    return found


def _take_over(before: dict[str, str], after: dict[str, str]) -> None:
    for name, value in after.items():
        if name and before.get(name) != value:
            os.environ[name] = value
    for name in before.keys() - after.keys():
        os.environ.pop(name, None)
