# SPDX-License-Identifier: Apache-2.0
"""Membership events."""

from __future__ import annotations

import enum
import select
import threading
from ctypes import byref
from dataclasses import dataclass
from typing import Callable

from . import _session
from ._errors import DlroverError, NotFoundError
from ._library import EventStruct, check, library


class EventKind(enum.IntEnum):
    NEW_GENERATION = 1
    RANK_LOST = 2
    NODE_LOST = 3
    CHECKPOINT_COMPLETE = 4
    ENDING = 5
    OTHER = 6


@dataclass(frozen=True)
class Event:
    kind: EventKind
    generation: tuple[int, int]
    rank: int | None
    step: int | None
    time: float
    """seconds since the epoch"""
    text: str


def _to_event(raw: EventStruct) -> Event:
    return Event(
        EventKind(raw.kind),
        (raw.generation_term, raw.generation_number),
        raw.rank if raw.rank >= 0 else None,
        raw.train_step if raw.train_step >= 0 else None,
        raw.time_us / 1e6,
        raw.text.decode(errors="replace"),
    )


def poll_membership() -> list[Event]:
    """The events that have come; never waits. The first call subscribes."""
    events: list[Event] = []
    raw = EventStruct()
    while True:
        try:
            check(library().dlrover_next_event(_session.handle(), byref(raw)))
        except NotFoundError:
            return events
        events.append(_to_event(raw))


class Subscription:
    """Calls ``callback`` in a thread of its own until close(). Without a daemon no event ever comes."""

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self._callback = callback
        self._stop = threading.Event()
        self._fd = library().dlrover_event_fd(_session.handle())
        self._thread = threading.Thread(target=self._run, name="dlrover-events", daemon=True)
        if self._fd >= 0:
            self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while not self._stop.is_set():
            if not poll.poll(500):
                continue
            try:
                events = poll_membership()
            except DlroverError:
                return
            for event in events:
                self._callback(event)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


def on_membership(callback: Callable[[Event], None]) -> Subscription:
    """Calls ``callback(event)`` in a background thread for every membership event."""
    return Subscription(callback)
