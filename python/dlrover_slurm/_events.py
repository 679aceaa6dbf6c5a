# SPDX-License-Identifier: Apache-2.0
"""Membership events."""

from __future__ import annotations

import atexit
import enum
import os
import select
import threading
from ctypes import byref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Iterator

from . import _session
from ._errors import DlroverError, InvalidError, NotFoundError
from ._library import EventStruct, check, library


class EventKind(enum.IntEnum):
    """Every rank hears RANK_LOST, NODE_LOST, GENERATION_ENDS, CHECKPOINT_SAFE, CHECKPOINT_DURABLE,
    ALLOCATION_CHANGED and DRAINING, on whatever node; the others are lines of this node's time line (``dlrover events``), most of them on the leader's alone."""

    NEW_GENERATION = 1
    RANK_LOST = 2
    NODE_LOST = 3
    CHECKPOINT_COMPLETE = 4
    ENDING = 5
    OTHER = 6
    GENERATION_ENDS = 7
    CHECKPOINT_SAFE = 8
    CHECKPOINT_DURABLE = 9
    ALLOCATION_CHANGED = 10
    DRAINING = 11


@dataclass(frozen=True)
class Event:
    kind: EventKind
    generation: tuple[int, int]
    rank: int | None
    step: int | None
    time: float
    """seconds since the epoch"""
    text: str
    node: str = ""
    """that is lost, or that the rank is on, or that says it"""


def _to_event(raw: EventStruct) -> Event:
    return Event(
        EventKind(raw.kind),
        (raw.generation_term, raw.generation_number),
        raw.rank if raw.rank >= 0 else None,
        raw.train_step if raw.train_step >= 0 else None,
        raw.time_us / 1e6,
        raw.text.decode(errors="replace"),
        raw.node.decode(errors="replace"),
    )


def poll_membership() -> list[Event]:
    """The events that have come; never waits. The first call subscribes."""
    events: list[Event] = []
    raw = EventStruct()
    while True:
        try:
            check(library().dlrover_next_event(_session.open_handle(), byref(raw)))
        except NotFoundError:
            return events
        events.append(_to_event(raw))


class Subscription:
    """Calls ``callback`` in a thread of its own until close(). Without a daemon no event ever comes."""

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self._callback = callback
        self._fd = library().dlrover_event_fd(_session.handle())
        self._begin()
        # Before the session's own end, which is registered already: the thread must not use it afterwards.
        atexit.register(self._end, 1.0)
        _open.add(self)

    def _begin(self) -> None:
        self._stop = threading.Event()
        self._awake, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="dlrover-events", daemon=True)
        if self._fd >= 0:
            self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._awake, select.POLLIN)
        while not self._stop.is_set():
            poll.poll()
            try:
                events = [] if self._stop.is_set() else poll_membership()
            except DlroverError:
                return
            for event in events:
                self._callback(event)

    def _end(self, timeout: float | None = None) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        os.write(self._wake, b".")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def close(self) -> None:
        if self._stop.is_set():
            return
        _open.discard(self)
        self._suspend()
        atexit.unregister(self._end)

    def _suspend(self) -> None:
        self._end()
        if self._thread is not threading.current_thread():
            os.close(self._awake)
            os.close(self._wake)


_open: set[Subscription] = set()


@contextmanager
def suspended() -> Iterator[None]:
    """No subscription uses the context meanwhile; afterwards all go on, on the one that is there then."""
    waiting = list(_open)
    if any(subscription._thread is threading.current_thread() for subscription in waiting):
        raise InvalidError("next_generation() was called from a callback of on_membership()")
    for subscription in waiting:
        subscription._suspend()
    try:
        yield
    finally:
        for subscription in waiting:
            subscription._fd = library().dlrover_event_fd(_session.handle_if_open())
            subscription._begin()


def on_membership(callback: Callable[[Event], None]) -> Subscription:
    """Calls ``callback(event)`` in a background thread for every membership event from this call on: when it returns the daemon has taken note.
    Where the daemon is away just then, from its return on."""
    return Subscription(callback)
