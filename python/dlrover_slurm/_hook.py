# SPDX-License-Identifier: Apache-2.0
"""Counts optimizer steps without any code of the user, and holds them back until what they change has been copied from the GPU.

torch >= 2 has a global hook. For older ones the class methods are wrapped: those of the classes that are there, and of later
ones when their first instance is made. Of several optimizers the first that steps is the one that counts.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from typing import Any

from . import _optimizers, _prepare

_counting = False
_stopped = False
_handle: Any = None
_counted: Any = None  # weak reference to the optimizer that counts
_inside = threading.local()


def _stepped(optimizer: Any) -> None:
    """After an optimizer's step."""
    global _counted
    if _forked():
        return
    if _optimizers.note_step(optimizer):
        _prepare.after_first_step()
    if not _counting:
        return
    counted = _counted() if _counted is not None else None
    if counted is None:
        _counted = weakref.ref(optimizer)
    elif counted is not optimizer:
        return
    from . import _session
    from ._library import library

    _session.note_step(_session.last_step + 1)
    library().dlrover_report_step(_session.handle(), _session.last_step)


def _before_change() -> None:
    """Before an optimizer's step or the replay of a CUDA graph."""
    if not _forked():
        from . import _session

        _session.fence_staged()


def _forked() -> bool:
    from . import _session

    session = _session._session
    return session is not None and session.pid != os.getpid()


def _wrap(cls: type) -> None:
    """cls.step counts, also when it calls the step of its base class."""
    step = cls.__dict__.get("step")
    if step is None or hasattr(step, "_dlrover_counts") or not callable(step):
        return

    @functools.wraps(step)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(_inside, "depth", 0)
        _inside.depth = outer + 1
        try:
            if outer == 0:
                _before_change()
            result = step(self, *args, **kwargs)
        finally:
            _inside.depth = outer
        if outer == 0:
            _stepped(self)
        return result

    counted._dlrover_counts = True  # type: ignore[attr-defined]
    cls.step = counted  # type: ignore[attr-defined]


def _wrap_all(cls: type) -> None:
    _wrap(cls)
    for sub in cls.__subclasses__():
        _wrap_all(sub)


def _patch_classes(base: type) -> None:
    """torch 1: no global hook."""
    _wrap_all(base)
    original = base.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for cls in type(self).__mro__:
            if issubclass(cls, base):
                _wrap(cls)

    base.__init__ = init  # type: ignore[misc]


def _guard_graphs(torch: Any) -> None:
    """A graph may hold an optimizer's step, and its replay calls no hook of the optimizer."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    replay = getattr(graph, "replay", None)
    if replay is None:
        return

    @functools.wraps(replay)
    def guarded(self: Any) -> Any:
        _before_change()
        return replay(self)

    graph.replay = guarded  # type: ignore[union-attr]


def install_guard() -> bool:
    """From now on optimizer steps and replayed graphs wait for what is being copied. False: torch is not imported. Safe to call again."""
    global _handle
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if _handle is None:
        from torch.optim import optimizer

        after = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if after is not None:
            before = optimizer.register_optimizer_step_pre_hook
            _handle = (before(lambda *_: _before_change()), after(lambda opt, _args, _kwargs: _stepped(opt)))
        else:
            _patch_classes(optimizer.Optimizer)
            _handle = True
        _guard_graphs(torch)
    return True


def install_optimizer_hook() -> bool:
    """Counts every optimizer step from now on. False: torch is not imported. Safe to call again."""
    global _counting, _stopped
    if not install_guard():
        return False
    _counting, _stopped = True, False
    return True


def install_if_managed() -> None:
    """Under a daemon the hook is there as soon as the program has torch and talks to us, unless DLROVER_OPTIMIZER_HOOK=0."""
    if _counting or _stopped:
        return
    if os.environ.get("DLROVER_MANAGED") == "1" and os.environ.get("DLROVER_OPTIMIZER_HOOK") != "0":
        install_optimizer_hook()


def stop() -> None:
    """The program reports its steps itself."""
    global _counting, _stopped
    _counting, _stopped = False, True
