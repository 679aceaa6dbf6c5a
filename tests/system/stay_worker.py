# SPDX-License-Identifier: Apache-2.0
"""A training whose processes stay: "FOLDER STEPS [pmix | torch | late]". Where a generation ends they leave it and go on in the next one, in the same process. Each beginning
goes to FOLDER/log-RANK as "restart pid step right|wrong port". pmix: each is a client of PMIx in every generation, too, publishes a number, finds what all others have and had
in the generation before, and writes down which end it hears of.
torch: the ranks add up a tensor in each step, and leave when that fails. late: rank 0 does not leave its first generation in time."""

import os
import pathlib
import sys
import threading
import time
import warnings

import dlrover_slurm as dlrover
import numpy
from event_codes import event_code

warnings.simplefilter("ignore")
FOLDER, STEPS, MODE = pathlib.Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [""])[0]


def expected(step: int, rank: int) -> numpy.ndarray:
    return numpy.full(1000, 1000.0 * step + rank)


class PmixPart:
    """What a rank says and finds by PMIx in one generation."""

    events = None

    def __init__(self, world: dlrover.World) -> None:
        import pmix

        # python3-pmix 4.2 has one thread for events, which can be started once: each generation's client needs one of its own.
        self.pmix, thread = pmix, pmix.progressThread
        PmixPart.events = PmixPart.events or thread._target
        pmix.progressThread, pmix.stop_progress = threading.Thread(target=PmixPart.events, daemon=True), False
        self.client = pmix.PMIxClient()
        status, me = self.client.init([])
        assert status == pmix.PMIX_SUCCESS, self.client.error_string(status)
        assert me["rank"] == world.rank, me
        self.ended, self.heard = threading.Event(), FOLDER / f"ended-{world.restart_count}-{world.rank}"
        self.client.register_event_handler([event_code("GENERATION")], [], self.on_end)
        everybody = [{"nspace": me["nspace"], "rank": pmix.PMIX_RANK_WILDCARD}]
        mine = [{"key": f"stay.{world.restart_count}.{world.rank}", "value": 1 + world.rank, "val_type": pmix.PMIX_UINT32}]
        found = 0
        if self.client.publish(mine) == pmix.PMIX_SUCCESS and self.client.fence(everybody, []) == pmix.PMIX_SUCCESS:
            found = self.look_up(world, world.restart_count)
        before = self.look_up(world, world.restart_count - 1) if world.restart_count else 0
        (FOLDER / f"pmix-{world.restart_count}-{world.rank}").write_text(f"{me['nspace']} {found} {before}")

    def look_up(self, world: dlrover.World, generation: int) -> int:
        """The sum of what the ranks published in that generation."""
        total = 0
        for rank in range(world.world_size):
            status, data = self.client.lookup([{"key": f"stay.{generation}.{rank}"}], [])
            total += data[0]["value"] if status == self.pmix.PMIX_SUCCESS else -1000
        return total

    def on_end(self, _handler: int, _code: int, _source: dict, infos: "list[dict]", _results: list) -> tuple:
        self.heard.write_text(" ".join(info["value"] for info in infos if info["key"] == "dlrover.generation"))
        self.ended.set()
        return self.pmix.PMIX_EVENT_ACTION_COMPLETE, []

    def step(self) -> None:
        pass

    def end(self, done: bool) -> None:
        if not done:
            self.ended.wait(10)
        self.client.finalize([])


class TorchPart:
    """A process group of torch in one generation."""

    def __init__(self, world: dlrover.World) -> None:
        import torch
        import torch.distributed

        self.torch, self.size = torch, world.world_size
        torch.distributed.init_process_group("gloo")

    def step(self) -> None:
        one = self.torch.ones(1000)
        self.torch.distributed.all_reduce(one)
        assert one[0] == self.size

    def end(self, _done: bool) -> None:
        self.torch.distributed.destroy_process_group()


class Ends:
    """The newest generation whose end was heard: the word of an older one may come when the next has begun."""

    def __init__(self) -> None:
        self.newest, self.changed = (0, 0), threading.Condition()

    def note(self, generation: "tuple[int, int]") -> None:
        with self.changed:
            self.newest = max(self.newest, generation)
            self.changed.notify_all()

    def on_event(self, event: dlrover.Event) -> None:
        if event.kind is dlrover.EventKind.GENERATION_ENDS:
            self.note(event.generation)

    def has(self, generation: "tuple[int, int]") -> bool:
        return self.newest >= generation

    def wait(self, generation: "tuple[int, int]") -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.has(generation), 10)


ends = Ends()


def run(world: dlrover.World) -> bool:
    """Until the training is done (True) or the generation ends."""
    part = PmixPart(world) if MODE == "pmix" else TorchPart(world) if MODE == "torch" else None
    checkpoint = dlrover.load()
    step = checkpoint.step if checkpoint else 0
    right = checkpoint is None or numpy.array_equal(checkpoint.state["value"], expected(step, world.rank))
    with open(FOLDER / f"log-{world.rank}", "a", encoding="utf-8") as log:
        print(world.restart_count, os.getpid(), step, "right" if right else "wrong", os.environ["MASTER_PORT"], file=log)
    assert (int(os.environ["RANK"]), int(os.environ["SLURM_PROCID"]), int(os.environ["WORLD_SIZE"])) == (world.rank, world.rank, world.world_size)
    while step < STEPS and not ends.has(world.generation):
        step += 1
        dlrover.report_step(step)
        try:
            if part is not None:
                part.step()
            dlrover.save(step, {"value": expected(step, world.rank)}, wait=30)  # for the others: nothing else keeps the ranks in step
        except (dlrover.StaleError, RuntimeError):
            ends.note(world.generation)
            break
        time.sleep(0.02)
    done = step >= STEPS and not ends.has(world.generation)
    if part is not None:
        part.end(done)
    return done


dlrover.stay()
dlrover.on_membership(ends.on_event)
world = dlrover.world()
while not run(world):
    if MODE == "late" and world.rank == 0 and world.restart_count == 0:
        time.sleep(3600)
    ends.wait(world.generation)
    world = dlrover.next_generation()
