# SPDX-License-Identifier: Apache-2.0
"""The training of cycles.py: one rank. Its state is a walk with a closed form, so whoever finds a state knows what every byte of it must be.

FOLDER holds what the ranks and the campaign tell each other: a page with each rank's progress, each rank's log of what it restored, and the
orders to die at a named point."""

import json
import mmap
import os
import pathlib
import struct
import sys
import time

import numpy
import walk
from walk import INCREMENT, MULTIPLIER

COLUMNS = 1000
#: Of a rank's place in the page, each 8 bytes: steps begun, steps when it sealed last and the time before, where it is in its loop.
FIELDS = {"begun": 0, "saved": 8, "saved_before": 16, "phase": 24}
PLACE_BYTES = 64
COMPUTING, SAVING = 1, 2
#: What all ranks hold alike is the walk of a rank that there is not.
NOBODY = 1 << 20


def first_row(rank: int) -> "numpy.ndarray":
    return numpy.arange(COLUMNS, dtype="<u8") * numpy.uint64(1000003) + numpy.uint64(rank + 1)


def state_after(steps: int, rank: int) -> "numpy.ndarray":
    """A row after so many steps; every row is the same."""
    a, c = walk.after(steps)
    return first_row(rank) * numpy.uint64(a) + numpy.uint64(c)


def differs(x: "numpy.ndarray", steps: int, rank: int) -> str:
    """What is wrong with a rank's state after so many steps; empty: nothing."""
    rows = x.reshape(-1, COLUMNS)
    wrong = (rows != state_after(steps, rank)).any(axis=1)
    return f"{int(wrong.sum())} of {len(rows)} rows are not those after {steps} steps, the first is row {int(wrong.argmax())}" if wrong.any() else ""


class Page:
    """The progress of all ranks of one generation of a job."""

    def __init__(self, path: pathlib.Path, ranks: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(descriptor, ranks * PLACE_BYTES)
            self.memory = mmap.mmap(descriptor, ranks * PLACE_BYTES)
        finally:
            os.close(descriptor)
        self.ranks = ranks

    def get(self, rank: int, field: str) -> int:
        return struct.unpack_from("<q", self.memory, rank * PLACE_BYTES + FIELDS[field])[0]

    def set(self, rank: int, field: str, value: int) -> None:
        struct.pack_into("<q", self.memory, rank * PLACE_BYTES + FIELDS[field], value)

    def all(self, field: str) -> "list[int]":
        return [self.get(rank, field) for rank in range(self.ranks)]


def take_order(folder: pathlib.Path, rank: int) -> None:
    """An order is POINT:NTH; from then on the library stops this process there."""
    order, taken = folder / f"order-rank-{rank}", folder / f"taken-rank-{rank}"
    if not order.exists():
        return
    order.rename(taken)
    os.environ["DLROVER_FAULT"] = taken.read_text()


class Rank:
    """``alike``: so many rows more, which all ranks hold alike, as a tensor of torch. A node keeps them once."""

    def __init__(self, folder: pathlib.Path, rows: int, alike: int) -> None:
        import dlrover_slurm  # not for those who only want to know what a state must be
        self.dlrover, self.folder = dlrover_slurm, folder
        self.world = dlrover_slurm.world()
        self.rank = self.world.rank
        self.x = numpy.tile(first_row(self.rank), rows)
        self.w = numpy.tile(first_row(NOBODY), alike)
        self.first = self.restore()

    def restore(self) -> int:
        found = self.dlrover.load()
        wrong = self.take_over(found) if found else ""
        step = found.step if found else -1
        generation = os.environ.get("DLROVER_GENERATION", "0:0")
        line = {"job": os.environ.get("SLURM_JOB_ID", ""), "generation": [int(n) for n in generation.split(":")], "step": step,
                "wrong": wrong, "node": os.environ.get("SLURMD_NODENAME", ""), "pid": os.getpid()}
        with open(self.folder / f"restored-{self.rank}", "ab", buffering=0) as log:
            log.write(json.dumps(line).encode() + b"\n")
        self.page = Page(self.folder / f"page-{line['job']}-{generation}", self.world.world_size)
        return step + 1

    def take_over(self, found) -> str:
        """The state must be that of the step it is said to be of."""
        self.x[:] = found.state["x"]
        if found.state["steps"] != found.step + 1 or found.ledger != found.step:
            return f"the state of step {found.step} says {found.state['steps']} steps and a ledger of {found.ledger}"
        wrong = differs(self.x, found.step + 1, self.rank)
        if wrong or not self.w.size:
            return wrong
        self.w[:] = found.state["w"].numpy().view("<u8")
        wrong = differs(self.w, found.step + 1, NOBODY)
        return f"what all hold alike: {wrong}" if wrong else ""

    def save(self, step: int) -> bool:
        if not self.w.size:
            return self.dlrover.save(step, {"x": self.x, "steps": step + 1}, ledger=step)
        import torch  # starts slowly
        state = {"x": self.x, "steps": step + 1, "w": torch.from_numpy(self.w.view("<i8"))}
        return self.dlrover.save(step, state, ledger=step, replicated=lambda name: name == "w")

    def keep_pace(self, step: int) -> None:
        """As a training's collectives do: nobody is more than a step ahead."""
        self.page.set(self.rank, "begun", step + 1)
        while min(self.page.all("begun")) < step + 1:
            time.sleep(0.0005)

    def train(self, steps: int, pause: float) -> None:
        for step in range(self.first, steps):
            self.keep_pace(step)
            self.x *= numpy.uint64(MULTIPLIER)
            self.x += numpy.uint64(INCREMENT)
            self.w *= numpy.uint64(MULTIPLIER)
            self.w += numpy.uint64(INCREMENT)
            self.dlrover.report_step(step)
            take_order(self.folder, self.rank)
            self.page.set(self.rank, "phase", SAVING)
            if self.save(step):
                self.page.set(self.rank, "saved_before", self.page.get(self.rank, "saved"))
                self.page.set(self.rank, "saved", step + 1)
            self.page.set(self.rank, "phase", COMPUTING)
            time.sleep(pause)


if __name__ == "__main__":
    Rank(pathlib.Path(sys.argv[1]), rows=int(sys.argv[2]), alike=int(sys.argv[5])).train(steps=int(sys.argv[3]), pause=float(sys.argv[4]))
