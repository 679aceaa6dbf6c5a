# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in node memory, world, progress and membership events of an elastic Slurm job.

    import dlrover_slurm as dlrover

    checkpoint = dlrover.load()
    if checkpoint:
        model.load_state_dict(checkpoint.state["model"])
    for step in range(checkpoint.step + 1 if checkpoint else 0, steps):
        train(step)
        dlrover.save(step, {"model": model.state_dict(), "rng": dlrover.rng_state()})
"""

from ._errors import (
    ChangedError,
    CorruptError,
    DlroverError,
    ForkedError,
    InvalidError,
    NoMemoryError,
    NotFoundError,
    SkippedError,
    StaleError,
    TimeoutError,
    UnavailableError,
    UnsupportedError,
)
from ._events import Event, EventKind, Subscription, on_membership, poll_membership
from ._global import GlobalTensors, TensorInfo
from ._hook import install_optimizer_hook
from ._progress import phase, report_step
from ._rng import RngState, rng_state, set_rng_state
from ._session import Checkpoint, World, load, prepare, save, wait_saved, wait_staged, world
from ._stay import next_generation, stay
from ._version import __version__

__all__ = [
    "ChangedError",
    "Checkpoint",
    "CorruptError",
    "DlroverError",
    "Event",
    "EventKind",
    "ForkedError",
    "GlobalTensors",
    "InvalidError",
    "NoMemoryError",
    "NotFoundError",
    "RngState",
    "SkippedError",
    "StaleError",
    "Subscription",
    "TensorInfo",
    "TimeoutError",
    "UnavailableError",
    "UnsupportedError",
    "World",
    "__version__",
    "install_optimizer_hook",
    "load",
    "next_generation",
    "on_membership",
    "phase",
    "poll_membership",
    "prepare",
    "report_step",
    "rng_state",
    "save",
    "set_rng_state",
    "stay",
    "wait_saved",
    "wait_staged",
    "world",
]
