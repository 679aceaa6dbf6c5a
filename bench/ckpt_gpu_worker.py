# SPDX-License-Identifier: Apache-2.0
"""The training process of bench/ckpt_gpu: trains a model on a GPU, saves in several ways in turn, and writes what it saw as JSON."""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

import ckpt_names as names
import dlrover_slurm
import torch
import torch.distributed as dist
from ckpt_ways import DcpAsync, Flash, Ours, OursDcp, TorchSave, make_all
from torch import nn

CONTEXT = 1024
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

    def step(self) -> None:
        for _ in range(self.accumulate):
            with torch.autocast("cuda", torch.bfloat16):
                loss = self.model(self.data).float().pow(2).mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> "list[torch.Tensor]":
        return [*self.model.parameters(), *(t for values in self.optimizer.state.values() for t in values.values() if t.is_cuda and t.dim())]


def seconds(action) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


class Losses:
    """Blocks of steps that begin with a save, and in turn with them blocks that do not."""

    def __init__(self, options: argparse.Namespace, training: Training) -> None:
        found = dlrover_slurm.load()
        self.options, self.training, self.number = options, training, 0 if found is None else found.step
        self.without: "list[float]" = []

    def block(self, ahead: bool, save=None) -> "tuple[float, float]":
        """(what it took, what of it the call of save() took). ``ahead``: the program waits for no step, other than one that looks at each loss."""
        called = 0.0

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

    def save(self, way: Ours) -> None:
        self.number += 1
        if not way.save(self.number, self.training.state()):
            print(f"{way.name} skipped step {self.number}", file=sys.stderr)

    def settle(self, way: Ours) -> None:
        dlrover_slurm.wait_saved()
        way.settle()
        time.sleep(0.2)

    def of(self, way: Ours) -> dict:
        seen = {"first": seconds(lambda: self.save(way)), "behind first": [seconds(self.training.step) for _ in range(4)], "lost": [], "lost ahead": [], "call": []}
        self.settle(way)
        for turn in range(-1, self.options.slow_rounds if way.name in SLOW else self.options.rounds):
            for key, ahead in (("lost", False), ("lost ahead", True)):
                without, _ = self.block(ahead)
                took, called = self.block(ahead, lambda: self.save(way))
                self.settle(way)
                if turn >= 0:
                    self.without.append(without)
                    seen[key].append(took - without)
                    if not ahead:
                        seen["call"].append(called)
        return seen


def copies(options: argparse.Namespace, training: Training, losses: Losses) -> dict:
    tensors = training.tensors()
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    plain = torch.empty(sum(tensor.nbytes for tensor in tensors), dtype=torch.uint8)
    seen: "dict[str, list[float]]" = {"pinned": [], "memory": [], "waited": [], "sealed": []}

    def to_pinned() -> None:
        for there, tensor in zip(pinned, tensors):
            there.copy_(tensor, non_blocking=True)

    def save(wait) -> None:
        losses.number += 1
        assert dlrover_slurm.save(losses.number, training.state()), "it was skipped"
        wait()

    for turn in range(-1, options.rounds):
        once = {"pinned": seconds(to_pinned), "waited": seconds(lambda: save(dlrover_slurm.wait_staged)), "memory": seconds(lambda: plain.fill_(turn % 100))}
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
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in training.tensors()]
    for _ in range(3):
        seen[names.FROM_PINNED].append(seconds(lambda: [there.to("cuda", non_blocking=True) for there in pinned]))
    return seen


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path)
    for name in ("layers", "width", "batch", "steps", "rounds", "slow-rounds", "accumulate"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--dlrover", action="store_true")
    return parser.parse_args()


def saves(options: argparse.Namespace) -> dict:
    training = Training(options)
    losses = Losses(options, training)
    for _ in range(options.warm_up):
        training.step()
    absent = [] if options.dlrover else ["DLRover"]
    ways = {}
    for make in (Ours, OursDcp, *([lambda: Flash(options.folder)] if options.dlrover else []), lambda: DcpAsync(options.folder), lambda: TorchSave(options.folder)):
        made = make_all([make])
        if not made:
            absent.append("one way, see above")
            continue
        ways[made[0].name] = losses.of(made[0])
        print(made[0].name, ways[made[0].name], file=sys.stderr, flush=True)  # so that a run that is cut off has said something
        made[0].close()
    seen = copies(options, training, losses)
    return seen | {"ways": ways, "without": losses.without, "steps": options.steps, "absent": ", ".join(absent), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


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
