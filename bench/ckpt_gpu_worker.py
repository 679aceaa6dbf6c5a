# SPDX-License-Identifier: Apache-2.0
"""The training process of bench/ckpt_gpu: trains a model on a GPU, saves in several ways in turn, and writes what it saw as JSON."""

import argparse
import json
import os
import pathlib
import signal
import sys
import threading
import time

import ckpt_names as names
import dlrover_slurm
import torch
import torch.distributed as dist
from ckpt_ways import DcpAsync, Flash, Ours, OursDcp, TorchSave, make_all
from torch import nn

CONTEXT = 1024
PAUSE = 0.2
SLOW = (names.TORCH, names.DCP_ASYNC, names.FLASH)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 128
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.between(x))


class Training:
    """In mixed precision: weights and the optimizer's state are float32, products bfloat16."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.accumulate = options.accumulate
        self.model = nn.Sequential(*(Block(options.width) for _ in range(options.layers))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.data = torch.randn(options.batch, CONTEXT, options.width, device="cuda", dtype=torch.bfloat16)

    def gradients(self) -> None:
        for _ in range(self.accumulate):
            with torch.autocast("cuda", torch.bfloat16):
                loss = self.model(self.data).float().pow(2).mean()
            loss.backward()

    def step(self) -> None:
        self.gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> "list[torch.Tensor]":
        return [*self.model.parameters(), *(t for values in self.optimizer.state.values() for t in values.values() if t.is_cuda and t.dim())]


class PlainCopy(Ours):
    """No checkpoint, since nothing waits for it: what the training loses to the GPU's reading of as many bytes alone."""

    name = names.PLAIN

    def __init__(self, training: Training) -> None:
        self.tensors = training.tensors()
        self.pinned = pinned_like(self.tensors)
        self.stream = torch.cuda.Stream()

    def save(self, _step: int, _state: dict) -> bool:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            copy_all(self.tensors, self.pinned)
        return True


def pinned_like(tensors: "list[torch.Tensor]") -> "list[torch.Tensor]":
    return [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]


def copy_all(tensors: "list[torch.Tensor]", there: "list[torch.Tensor]") -> None:
    for tensor, target in zip(tensors, there):
        target.copy_(tensor, non_blocking=True)


def seconds(action) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


class Losses:
    """Blocks of steps that begin with a save, and in turn with them blocks that do not. How fast a GPU is depends on what it did before: the same pause and the same steps come
    before each block, and now this one is first, now that one."""

    def __init__(self, options: argparse.Namespace, training: Training) -> None:
        found = dlrover_slurm.load()
        self.options, self.training, self.number = options, training, 0 if found is None else found.step
        self.without: "list[float]" = []

    def block(self, ahead: bool, save=None) -> "tuple[float, float]":
        """(what it took, what of it the call of save() took). ``ahead``: the program waits for no step, other than one that looks at each loss."""
        called = 0.0
        self.lead()

        def steps() -> None:
            nonlocal called
            for number in range(self.options.steps):
                self.training.step()
                if not ahead:
                    torch.cuda.synchronize()
                if number == 0 and save is not None:
                    begun = time.perf_counter()
                    save()
                    called = time.perf_counter() - begun

        return seconds(steps), called

    def lead(self) -> None:
        torch.cuda.synchronize()
        time.sleep(PAUSE)
        for _ in range(self.options.lead):
            self.training.step()

    def save(self, way: Ours) -> None:
        self.number += 1
        if not way.save(self.number, self.training.state()):
            print(f"{way.name} skipped step {self.number}", file=sys.stderr)

    def settle(self, way: Ours) -> None:
        dlrover_slurm.wait_saved()
        way.settle()

    def of(self, way: Ours) -> dict:
        seen = {"first": seconds(lambda: self.save(way)), "behind first": [seconds(self.training.step) for _ in range(4)], "lost": [], "lost ahead": [], "call": []}
        self.settle(way)
        slow = way.name in SLOW
        for turn in range(0 if slow else -1, self.options.slow_rounds if slow else self.options.rounds):
            for key, ahead in (("lost", False), ("lost ahead", True)):
                without, took, called = self.pair(way, ahead, turn % 2 == 0)
                if turn >= 0:
                    self.without.append(without)
                    seen[key].append(took - without)
                    if not ahead:
                        seen["call"].append(called)
        return seen

    def pair(self, way: Ours, ahead: bool, save_first: bool) -> "tuple[float, float, float]":
        """What a block without a save took, one with, and of it the call."""
        without = took = called = 0.0
        for saves in (True, False) if save_first else (False, True):
            if saves:
                took, called = self.block(ahead, lambda: self.save(way))
                self.settle(way)
            else:
                without, _ = self.block(ahead)
        return without, took, called


class Parts:
    """What the time of one save goes to."""

    def __init__(self, training: Training, losses: Losses) -> None:
        self.training, self.losses = training, losses
        self.marks = {name: torch.cuda.Event(enable_timing=True) for name in ("before", "begins", "wants", "may", "ends")}
        # The hooks of all optimizers, ours among them, come before that of one.
        self.hook = training.optimizer.register_step_pre_hook(lambda *_: self.marks["may"].record())

    def between(self, first: str, second: str) -> float:
        return self.marks[first].elapsed_time(self.marks[second]) / 1e3

    def ahead(self) -> "dict[str, float]":
        """A program that waits for no step: how long the GPU had nothing to do between the kernels before the save and those behind it."""
        self.losses.lead()
        self.losses.number += 1
        self.marks["before"].record()
        assert dlrover_slurm.save(self.losses.number, self.training.state()), "it was skipped"
        self.marks["begins"].record()
        self.step()
        dlrover_slurm.wait_saved()
        return self.of_step() | {"gap": self.between("before", "begins")}

    def save(self) -> "dict[str, float]":
        """``staged``: until its copies were made, beside the training."""
        self.losses.lead()
        torch.cuda.synchronize()
        seen = {}

        def watch() -> None:
            dlrover_slurm.wait_staged()
            seen["staged"] = time.perf_counter() - begun

        self.losses.number += 1
        entered = time.perf_counter()
        state = self.training.state()
        begun = time.perf_counter()
        assert dlrover_slurm.save(self.losses.number, state), "it was skipped"
        returned = time.perf_counter()
        watching = threading.Thread(target=watch)
        watching.start()
        self.marks["begins"].record()
        self.marks["begins"].synchronize()
        seen.update({"state_dict": begun - entered, "call": returned - begun, "small": time.perf_counter() - returned})
        self.step()
        watching.join()
        dlrover_slurm.wait_saved()
        return seen | self.of_step()

    def without(self) -> "dict[str, float]":
        self.losses.lead()
        self.marks["begins"].record()
        self.step()
        return self.of_step()

    def step(self) -> None:
        self.training.gradients()
        self.marks["wants"].record()
        self.training.optimizer.step()
        self.marks["ends"].record()
        self.training.optimizer.zero_grad()
        torch.cuda.synchronize()

    def of_step(self) -> "dict[str, float]":
        return {"gradients": self.between("begins", "wants"), "held": self.between("wants", "may"), "update": self.between("may", "ends")}


def parts(options: argparse.Namespace, training: Training, losses: Losses) -> "dict[str, list[dict]]":
    measured = Parts(training, losses)
    seen: "dict[str, list[dict]]" = {"save": [], "ahead": [], "without": []}
    for turn in range(-1, options.rounds):
        once = {"without": measured.without(), "save": measured.save(), "ahead": measured.ahead()}
        if turn >= 0:
            for key, values in once.items():
                seen[key].append(values)
    measured.hook.remove()
    return seen


def copies(options: argparse.Namespace, training: Training, losses: Losses) -> dict:
    tensors = training.tensors()
    pinned = pinned_like(tensors)
    plain = torch.empty(sum(tensor.nbytes for tensor in tensors), dtype=torch.uint8)
    seen: "dict[str, list[float]]" = {"pinned": [], "memory": [], "waited": [], "sealed": []}

    def save(wait) -> None:
        losses.number += 1
        assert dlrover_slurm.save(losses.number, training.state()), "it was skipped"
        wait()

    for turn in range(-1, options.rounds):
        once = {"pinned": seconds(lambda: copy_all(tensors, pinned)), "waited": seconds(lambda: save(dlrover_slurm.wait_staged)), "memory": seconds(lambda: plain.fill_(turn % 100))}
        dlrover_slurm.wait_saved()
        once["sealed"] = seconds(lambda: save(dlrover_slurm.wait_saved))
        if turn >= 0:
            for name, took in once.items():
                seen[name].append(took)
    return seen | {"bytes": plain.nbytes, "tensors": len(tensors)}


def restores(options: argparse.Namespace) -> "dict[str, list[float]]":
    """By a process whose predecessor was killed; the first one of ours is the first thing that it does on the GPU."""
    torch.zeros(1, device="cuda")
    seen: "dict[str, list[float]]" = {names.OURS: [], names.FROM_PINNED: []}
    found = None

    def load() -> None:
        nonlocal found
        found = dlrover_slurm.load(map_location="cuda")
        assert found.state["model"]["0.attended.weight"].is_cuda

    for _ in range(3):
        found = None
        seen[names.OURS].append(seconds(load))
    training = Training(options)
    training.optimizer.load_state_dict(found.state["optimizer"])
    pinned = pinned_like(training.tensors())
    for _ in range(3):
        seen[names.FROM_PINNED].append(seconds(lambda: [there.to("cuda", non_blocking=True) for there in pinned]))
    return seen


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path)
    for name in ("layers", "width", "batch", "steps", "lead", "rounds", "slow-rounds", "accumulate"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--dlrover", action="store_true")
    parser.add_argument("--ours-only", action="store_true")
    return parser.parse_args()


def ways(options: argparse.Namespace, training: Training) -> list:
    makers = [Ours, OursDcp, lambda: PlainCopy(training)]
    if options.ours_only:
        return makers
    return [*makers, *([lambda: Flash(options.folder)] if options.dlrover else []), lambda: DcpAsync(options.folder), lambda: TorchSave(options.folder)]


def saves(options: argparse.Namespace) -> dict:
    training = Training(options)
    losses = Losses(options, training)
    for _ in range(options.warm_up):
        training.step()
    absent = ["all but ours"] if options.ours_only else [] if options.dlrover else ["DLRover"]
    measured = {}
    for make in ways(options, training):
        made = make_all([make])
        if not made:
            absent.append("one way, see above")
            continue
        measured[made[0].name] = losses.of(made[0])
        print(made[0].name, measured[made[0].name], file=sys.stderr, flush=True)  # so that a run that is cut off has said something
        made[0].close()
        del made  # with the memory that it holds
    seen: dict = {"parts": parts(options, training, losses)}
    print(seen, file=sys.stderr, flush=True)
    seen.update(copies(options, training, losses))
    print(seen, file=sys.stderr, flush=True)
    return seen | {"ways": measured, "without": losses.without, "steps": options.steps, "absent": ", ".join(absent), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def main() -> int:
    options = read_options()
    dist.init_process_group("cpu:gloo,cuda:nccl")
    if dlrover_slurm.world().restart_count == 0:
        options.out.write_text(json.dumps(saves(options)))
        os.kill(os.getpid(), signal.SIGKILL)
    options.out.write_text(json.dumps(json.loads(options.out.read_text()) | {"restores": restores(options)}))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
