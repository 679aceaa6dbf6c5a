# SPDX-License-Identifier: Apache-2.0
"""The training process of bench/ckpt_save: times saves of one state in several ways, in turn, and writes what it saw as JSON."""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist

import dlrover_slurm

LONGEST_FLUSH_S = 60.0
TRY_AGAIN = 75


#: As mixed-precision training has them: half of the bytes are an optimizer's float32, the rest weights and what goes with them.
MIXED = ((torch.float32, 50), (torch.bfloat16, 25), (torch.float16, 12), (torch.int64, 8), (torch.uint8, 4), (torch.bool, 1))


def mixed_tensors(size: int, generator: torch.Generator) -> "list[torch.Tensor]":
    """Of each dtype its share of the bytes, in tensors from 1 KiB to 32 MiB; about as many of each power of two."""
    tensors = []
    for dtype, percent in MIXED:
        rest, lengths = size * percent // 100, itertools.cycle(1 << k for k in range(10, 26))
        width = torch.empty(0, dtype=dtype).element_size()
        while rest >= 1024:
            length = min(next(lengths), rest)
            rest -= length
            tensors.append(torch.rand(length // width, generator=generator).mul_(2).to(dtype))
    return tensors


def make_state(kind: str, size: int) -> dict:
    """Weights in plain tensors, and the few other things that a state holds."""
    generator = torch.Generator().manual_seed(1)
    if kind == "mixed":
        tensors = mixed_tensors(size, generator)
    else:
        count, numbers = (8, size // 8 // 4) if kind == "large" else (10000, 256)
        tensors = [torch.rand(numbers, generator=generator) for _ in range(count)]
    model = {f"model.layers.{i}.weight": tensor for i, tensor in enumerate(tensors)}
    return {"model": model, "epoch": 3, "rate": 1e-3, "name": "bench"}


def change(state: dict) -> None:
    """What a step of the optimizer does to the caches."""
    for tensor in state["model"].values():
        if tensor.is_floating_point():
            tensor.add_(1e-6)
        else:
            tensor.logical_not_()


def time_state_dict(state: dict) -> float:
    """What a module of these tensors takes for its state_dict(), which every way of saving needs first."""
    module = torch.nn.Module()
    for name, tensor in state["model"].items():
        module.register_buffer(name.replace(".", "_"), tensor)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        module.state_dict()
        times.append(time.perf_counter() - begun)
    return sorted(times)[2]


class Ours:
    name = "dlrover_slurm.save"

    def save(self, step: int, state: dict) -> bool:
        return dlrover_slurm.save(step, state)

    def settle(self) -> None:
        """Ends what a save left behind, outside the timing."""

    def close(self) -> None:
        """At the end of the process."""


class OursDcp(Ours):
    name = "dlrover_slurm.dcp.save"

    def __init__(self) -> None:
        from dlrover_slurm import dcp
        self.dcp = dcp

    def save(self, step: int, state: dict) -> bool:
        return self.dcp.save(step, state)


class TorchSave(Ours):
    name = "torch.save"

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "torch-save.pt"

    def save(self, step: int, state: dict) -> bool:
        torch.save(state, self.path)
        return True

    def settle(self) -> None:
        self.path.unlink(missing_ok=True)


class Dcp(Ours):
    name = "torch DCP save"

    def __init__(self, folder: pathlib.Path) -> None:
        import torch.distributed.checkpoint as dcp
        self.dcp, self.path = dcp, folder / "dcp"
        self.dcp.save  # torch 1.13 has the module under another name and without this

    def save(self, step: int, state: dict) -> bool:
        self.dcp.save(state, checkpoint_id=self.path)
        return True

    def settle(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class DcpAsync(Dcp):
    name = "torch DCP async_save"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.path, self.future = folder / "dcp-async", None
        self.dcp.async_save

    def save(self, step: int, state: dict) -> bool:
        self.future = self.dcp.async_save(state, checkpoint_id=self.path)
        return True

    def settle(self) -> None:
        if self.future is not None:
            self.future.result()
        super().settle()


class Flash(Ours):
    """DLRover's own; its saver runs in a process that it forks itself, as where dlrover-run did not start the program."""

    name = "DLRover save_checkpoint"

    def __init__(self, folder: pathlib.Path) -> None:
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
        from dlrover.trainer.torch.flash_checkpoint.engine import CheckpointEngine, start_saver_process
        self.folder, self.types = folder / "dlrover", StorageType
        self.folder.mkdir(parents=True, exist_ok=True)
        CheckpointEngine.saver_proc = start_saver_process()
        time.sleep(2)  # it must listen before the first message, as under dlrover-run
        try:
            self.checkpointer = DdpCheckpointer(str(self.folder))
        except TimeoutError as error:  # its first message was lost all the same
            print(error, file=sys.stderr)
            os._exit(TRY_AGAIN)

    def save(self, step: int, state: dict) -> bool:
        return self.put(step, state, self.types.MEMORY)

    def put(self, step: int, state: dict, kind: object) -> bool:
        self.checkpointer.save_checkpoint(step, state, storage_type=kind)
        return self.checkpointer._engine._cached_step == step  # it tells nobody that a save was skipped

    def close(self) -> None:
        """Its saver would outlive this process otherwise, and its memory too."""
        saver = self.checkpointer._engine.saver_proc
        if saver is not None:
            saver.terminate()
            saver.join()
        self.checkpointer._engine._shm_handler.shared_memory.unlink()

    def settle(self) -> None:
        """It keeps every checkpoint."""
        for path in self.folder.glob("[0-9]*"):
            shutil.rmtree(path, ignore_errors=True)

    def stored(self) -> int:
        try:
            return int((self.folder / "dlrover_latest.txt").read_text() or -1)
        except OSError:
            return -1


def make_ways(options: argparse.Namespace) -> "list[Ours]":
    """Those that the interpreter at hand has."""
    makers = [Ours]
    if options.dlrover:
        makers.append(lambda: Flash(options.folder))
    if not options.without_torch:
        makers.append(lambda: TorchSave(options.folder))
    if not options.flush and not options.without_torch and dist.get_world_size() == 1:
        makers += [OursDcp, lambda: Dcp(options.folder), lambda: DcpAsync(options.folder)]
    ways, absent = [], []
    for make in makers:
        try:
            ways.append(make())
        except (ImportError, AttributeError, dlrover_slurm.UnsupportedError) as error:
            absent.append(str(error))
    print("not here:", "; ".join(absent) or "nothing", file=sys.stderr)
    return ways


def timed(way: Ours, step: int, state: dict) -> "tuple[float, bool]":
    """The longest of all ranks, which begin together: a training waits for it. Not saved where one rank has skipped it."""
    dist.barrier()
    begun = time.perf_counter()
    saved = way.save(step, state)
    worst = torch.tensor([time.perf_counter() - begun, float(not saved)], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst[0]), not worst[1]


def time_saves(options: argparse.Namespace, ways: "list[Ours]", state: dict) -> dict:
    """The first save of each way, then the repeated ones, in turn."""
    seen = {way.name: {"first": [], "repeated": [], "skipped": 0} for way in ways}
    turn = options.turn % len(ways)
    step = 0
    for round_number in range(-1, options.rounds):
        order = ways[turn:] + ways[:turn]
        if round_number < 0:  # the two of ours have their memory in common: the later one's first save is none
            order.sort(key=lambda way: way.name == OursDcp.name)
        for way in order:
            step += 1
            change(state)
            took, saved = timed(way, step, state)
            way.settle()
            if round_number >= 0:
                seen[way.name]["repeated"].append(took)
            elif way.name != OursDcp.name:
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
        names = [p.name for p in self.options.storage.glob("*/step-*.manifest")]
        return max((int(n.split(".")[0].removeprefix("step-")) for n in names), default=-1)

    def wait(self, name: str, step: int) -> None:
        deadline = time.perf_counter() + LONGEST_FLUSH_S
        while self.stored(name) < step:
            if time.perf_counter() > deadline:
                raise SystemExit(f"{name}: step {step} was not on storage after {LONGEST_FLUSH_S:g} s")
            time.sleep(0.001)

    def time_alone(self, name: str) -> float:
        change(self.state)
        begun = time.perf_counter()
        step = self.put(name)
        if name == TorchSave.name:  # with an fsync it is on storage
            with open(self.by_name[name].path, "rb") as file:
                os.fsync(file.fileno())
        else:
            self.wait(name, step)
        took = time.perf_counter() - begun
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
        change(self.state)
        target, taken, tried, deadline = self.put(name), 0, 0, time.monotonic() + LONGEST_FLUSH_S
        self.await_writing(name, target)
        while self.stored(name) < target:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: step {target} did not come to storage")
            self.step += 1
            tried += 1
            taken += self.by_name[name].save(self.step, self.state)
            time.sleep(self.options.pause)
        if name == Ours.name and taken:
            self.wait(name, self.step)  # the last one goes there too
        self.by_name[name].settle()
        return taken, tried

    def run(self) -> dict:
        seen = {name: {"seconds": [], "taken": 0, "tried": 0} for name in self.by_name}
        for round_number in range(-1, self.options.rounds):
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


def main() -> int:
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
    parser.add_argument("--flush", action="store_true")
    parser.add_argument("--dlrover", action="store_true")
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    options.folder /= str(dist.get_rank())
    options.folder.mkdir(parents=True, exist_ok=True)
    state = make_state(options.state, options.size)
    ways = make_ways(options)
    dlrover_slurm.load()  # connects
    if options.prepare:
        dlrover_slurm.prepare(state)
        time.sleep(options.prepare)  # what a program does before its first checkpoint
    seen = Flushes(options, ways, state).run() if options.flush else time_saves(options, ways, state)
    tensors = len(state["model"])
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "tensors": tensors, "state_dict": time_state_dict(state), "ways": seen}))
    for way in ways:
        way.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
