# SPDX-License-Identifier: Apache-2.0
"""The training process of bench/ckpt_save: times saves and restores of one state in several ways, in turn, and writes what it saw as JSON."""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist

import ckpt_loads
import ckpt_names as names
import dlrover_slurm
from ckpt_states import bytes_of, change, make_state, time_state_dict
from ckpt_ways import Flash, Ours, everywhere, make_ways, take_memory_back, timed

LONGEST_FLUSH_S = 60.0
NEW_SLOTS = 3  # of a rank (memory.slots): its first saves need new pages for as many states


def time_saves(options: argparse.Namespace, ways: "list[Ours]", state: dict) -> dict:
    """The first save of each way, then the repeated ones, in turn. Skipped is one that a rank has skipped."""
    seen = {way.name: {"first": [], "repeated": [], "skipped": 0} for way in ways}
    turn = options.turn % len(ways)
    step = 0
    for round_number in range(-1, options.rounds):
        order = ways[turn:] + ways[:turn]
        order = sorted(order, key=lambda way: not way.first) if round_number < 0 else [way for way in order if way.repeated]
        for way in order:
            step += 1
            if options.backed and round_number < 0:
                take_memory_back(NEW_SLOTS * bytes_of(state))
            change(state)
            took, saved = timed(lambda: way.save(step, state))
            saved = everywhere(saved)
            way.settle()
            if round_number >= 0:
                seen[way.name]["repeated"].append(took)
            elif way.first:
                seen[way.name]["first"].append(took)
            seen[way.name]["skipped"] += not saved
        turn = (turn + 1) % len(ways)
    return seen


class Flushes:
    """Saves that go to storage: how long until they are there, and what happens to saves meanwhile."""

    def __init__(self, options: argparse.Namespace, ways: "list[Ours]", state: dict) -> None:
        self.options, self.state, self.step = options, state, 0
        self.by_name = {way.name: way for way in ways}

    def put(self, name: str) -> int:
        """A save that is to be on storage."""
        self.step += 1
        way = self.by_name[name]
        saved = way.put(self.step, self.state, way.types.DISK) if name == Flash.name else way.save(self.step, self.state)
        if not saved:
            raise SystemExit(f"{name} skipped step {self.step} though nothing was under way")
        return self.step

    def stored(self, name: str) -> int:
        if name == Flash.name:
            return self.by_name[name].stored()
        manifests = [path.name for path in self.options.storage.glob("*/step-*.manifest")]
        return max((int(manifest.split(".")[0].removeprefix("step-")) for manifest in manifests), default=-1)

    def wait(self, name: str, step: int) -> None:
        deadline = time.perf_counter() + LONGEST_FLUSH_S
        while self.stored(name) < step:
            if time.perf_counter() > deadline:
                raise SystemExit(f"{name}: step {step} was not on storage after {LONGEST_FLUSH_S:g} s")
            time.sleep(0.001)

    def time_alone(self, name: str) -> float:
        change(self.state)

        def store() -> None:
            step = self.put(name)
            if not self.by_name[name].sync():
                self.wait(name, step)

        took, _ = timed(store)
        self.by_name[name].settle()
        os.sync()  # what the other way left in the page cache is not this one's burden
        return took

    def await_writing(self, name: str, step: int) -> None:
        """DLRover gives a checkpoint up when a save comes before its saver looked at it."""
        path = self.by_name[name].folder / str(step) / "rank_0.pt" if name == Flash.name else self.options.storage
        deadline = time.monotonic() + LONGEST_FLUSH_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.001)

    def save_meanwhile(self, name: str) -> "tuple[int, int]":
        """(saves that were taken, saves in all) while one is on its way to storage."""
        dist.barrier()
        change(self.state)
        target, newest, taken, tried, deadline = self.put(name), 0, 0, 0, time.monotonic() + LONGEST_FLUSH_S
        self.await_writing(name, target)
        while not everywhere(self.stored(name) >= target):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: step {target} did not come to storage")
            self.step += 1
            tried += 1
            if everywhere(self.by_name[name].save(self.step, self.state)):
                newest, taken = self.step, taken + 1
            time.sleep(self.options.pause)
        if name == Ours.name:
            self.wait(name, newest)  # the last one goes there too
        dist.barrier()
        self.by_name[name].settle()
        return taken, tried

    def run(self) -> dict:
        seen = {name: {"seconds": [], "taken": 0, "tried": 0} for name in self.by_name}
        for round_number in range(-NEW_SLOTS, self.options.rounds):  # first of all into each slot once: the memory is there in a training
            for name in seen:
                took = self.time_alone(name)
                if round_number >= 0:
                    seen[name]["seconds"].append(took)
        for _ in range(3):
            for name in (Ours.name, Flash.name):
                if name in seen:
                    taken, tried = self.save_meanwhile(name)
                    seen[name]["taken"] += taken
                    seen[name]["tried"] += tried
        return seen


def restore(options: argparse.Namespace, state: dict) -> dict:
    """A world restores what the world before it has saved, so the first life of this process ends as in a crash."""
    if dlrover_slurm.world().restart_count == 0:
        ckpt_loads.save_for_restore(options, state)
        dist.barrier()
        time.sleep(0.5)  # every rank has left the barrier, and knows nothing of the others' end
        os.kill(os.getpid(), signal.SIGKILL)
    flash = Flash(options.folder.parent) if options.dlrover else None
    seen = ckpt_loads.time_loads(options, ckpt_loads.make_loads(options, state, flash), state)
    if flash is not None:
        flash.close()
    return seen


def save(options: argparse.Namespace, state: dict) -> dict:
    ways = make_ways(options, state)
    dlrover_slurm.world()  # connects, and asks for nothing that would make memory ready
    if options.prepare:
        step_once(state, options.only in (None, "ours"))
        time.sleep(options.prepare)  # the steps until its first checkpoint
    seen = Flushes(options, ways, state).run() if options.flush else time_saves(options, ways, state)
    for way in ways:
        way.close()
    return seen


def step_once(state: dict, with_ours: bool) -> None:
    """What a program written for DLRover does before its first save; that makes our memory ready where it has our checkpointer."""
    from dlrover_slurm.compat import DdpCheckpointer

    ranks = dist.get_world_size()
    checkpointer = DdpCheckpointer("unused", local_shard_num=ranks, global_shard_num=ranks) if with_ours else None
    # No gradients: nothing changes.
    torch.optim.SGD([torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point()) for tensor in state["model"].values()], 0.1).step()
    del checkpointer  # which had to be there for the step


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--storage", type=pathlib.Path)
    parser.add_argument("--state", choices=("large", "small", "mixed"))
    parser.add_argument("--size", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--prepare", type=float, default=0.0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--backed", action="store_true")
    parser.add_argument("--flush", action="store_true")
    parser.add_argument("--restore", choices=("save", "dcp"), help="what of ours has saved what is restored")
    parser.add_argument("--first", choices=tuple(names.GROUPS), help="whose first restore is the first of the process")
    parser.add_argument("--dlrover", action="store_true")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--only", choices=names.APART, help="this way alone, and a state that takes little memory")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    dist.init_process_group("gloo")
    options.folder /= str(dist.get_rank())
    options.folder.mkdir(parents=True, exist_ok=True)
    state = make_state(options.state, options.size, bool(options.only))
    seen = restore(options, state) if options.restore else save(options, state)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "threads": torch.get_num_threads(),
                                           "tensors": len(state["model"]), "state_dict": time_state_dict(state), "ways": seen}))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
