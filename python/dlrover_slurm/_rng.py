# SPDX-License-Identifier: Apache-2.0
"""State of the random number generators that the program uses."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any


def rng_state() -> dict[str, Any]:
    """Of Python, and of numpy and torch (CPU; CUDA where it is initialised) if they are imported. Part of a state to save."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """What rng_state() returned, also after save() and load(), whatever device that put it on."""
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"].cpu())
        if "cuda" in state:
            torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])


class RngState:
    """The generators as an object with ``state_dict()``, as torch.distributed.checkpoint and others want one.

    The state is bytes: DCP takes a tensor that all ranks have for one and the same, and each rank has its own random numbers.
    """

    def state_dict(self) -> dict[str, bytes]:
        return {"rng": pickle.dumps(rng_state(), protocol=4)}

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        set_rng_state(pickle.loads(state["rng"]))
