#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on handwritten digits; killed at any moment, it goes on and ends with the very same bits. See README.md."""

import argparse
import os
import pathlib
import random
import sys
import time

import numpy
import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import dlrover_slurm  # noqa: E402
from data import Digits, Order, load_images, make_loader  # noqa: E402
from model import Average, digest, make_model, ordered_mean, warm_up  # noqa: E402

PIECES = ("optimizer", "bn", "rng", "scheduler", "ema", "data")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all")
    parser.add_argument("--save-every", type=int, default=1, metavar="N", help="checkpoint into memory every N steps (0: never)")
    parser.add_argument("--save-at", type=int, default=0, metavar="K", help="take it K micro-batches into the next step, with the gradients so far")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--batch", type=int, default=16, help="images per rank and micro-batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--big", action="store_true", help="at least 256 MB of state per rank")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="shortest time of a step")
    parser.add_argument("--omit", choices=PIECES, help="leave this piece out of the checkpoints, to see that it matters")
    parser.add_argument("--out", metavar="FILE", help="final state of all ranks (.npz) and its digest (.sha256)")
    options = parser.parse_args()
    if not 0 <= options.save_at < options.accumulate:
        parser.error("--save-at must be less than --accumulate")
    return options


def join_group() -> "tuple[int, int]":
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if "MASTER_PORT" in os.environ:
        dist.init_process_group("gloo")
    elif ranks == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        raise SystemExit("WORLD_SIZE is set but MASTER_PORT is not: start this program with srun --dlrover-elastic, dlrover-run or torchrun")
    return rank, ranks


def make_deterministic(seed: int) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


class Training:
    """Everything that one rank trains with, and its position."""

    def __init__(self, options: argparse.Namespace, rank: int, ranks: int) -> None:
        self.options, self.rank, self.ranks = options, rank, ranks
        make_deterministic(options.seed)  # the same first weights everywhere ...
        self.model = make_model(2048, 5) if options.big else make_model(96, 2)
        make_deterministic(options.seed * 1000 + rank)  # ... but each rank's own dropout
        # Each rank keeps its own BatchNorm statistics; they are part of its checkpoint.
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.model, broadcast_buffers=False)
        self.ddp.register_comm_hook(None, ordered_mean)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)
        self.average = Average(self.model)
        self.epoch = self.batch = self.micro = self.step = 0
        self.images, self.labels = load_images()

    def state(self) -> dict:
        model = self.model.state_dict()
        buffers = {name: model.pop(name) for name, _ in self.model.named_buffers()}
        state = {
            "model": model,
            "bn": buffers,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "ema": self.average.values,
            "rng": {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()},
            "data": {"epoch": self.epoch, "batch": self.batch},
            "step": self.step,
            "micro": self.micro,
            "gradients": {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None} if self.micro else {},
        }
        state.pop(self.options.omit, None)
        return state

    def resume(self, state: dict) -> None:
        self.model.load_state_dict({**state["model"], **state.get("bn", {})}, strict="bn" in state)
        self.step, self.micro = state["step"], state["micro"]
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        if "scheduler" in state:
            self.scheduler.load_state_dict(state["scheduler"])
        with torch.no_grad():
            for name, value in state.get("ema", {}).items():
                self.average.values[name].copy_(value)
            for name, p in self.model.named_parameters():
                p.grad = state["gradients"][name].clone() if name in state["gradients"] else None
        if "data" in state:
            self.epoch, self.batch = state["data"]["epoch"], state["data"]["batch"]
        if "rng" in state:
            random.setstate(state["rng"]["python"])
            numpy.random.set_state(state["rng"]["numpy"])
            torch.set_rng_state(state["rng"]["torch"])

    def loader(self) -> torch.utils.data.DataLoader:
        dataset = Digits(self.images, self.labels, self.options.seed)
        self.order = Order(len(dataset), self.options.batch, self.rank, self.ranks, self.options.seed, self.epoch, self.batch)
        return make_loader(dataset, self.order)

    def learn(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """One micro-batch. All three random sources take part: mixing by numpy, brightness by Python, dropout by torch."""
        share = float(numpy.random.beta(0.2, 0.2))
        partner = torch.from_numpy(numpy.random.permutation(len(labels)))
        images = (share * images + (1 - share) * images[partner]) * random.uniform(0.9, 1.1)
        last = self.micro + 1 == self.options.accumulate
        self.ddp.require_backward_grad_sync = last
        output = self.ddp(images)
        entropy = torch.nn.functional.cross_entropy
        loss = share * entropy(output, labels) + (1 - share) * entropy(output, labels[partner])
        (loss / self.options.accumulate).backward()
        self.micro += 1
        self.batch += 1
        if self.batch == self.order.batches_per_epoch:
            self.epoch, self.batch = self.epoch + 1, 0
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        self.average.update(self.model)
        self.step, self.micro = self.step + 1, 0

    def save_if_due(self) -> None:
        every = self.options.save_every
        if not every or not self.step or self.step % every or self.micro != self.options.save_at:
            return
        try:
            dlrover_slurm.save(self.step, self.state(), ledger={"epoch": self.epoch, "batch": self.batch})
        except (dlrover_slurm.UnavailableError, dlrover_slurm.TimeoutError) as error:
            print(f"rank {self.rank}: the checkpoint of step {self.step} is missed: {error}", file=sys.stderr, flush=True)

    def final_tensors(self) -> "dict[str, torch.Tensor]":
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors.update({f"ema.{name}": value for name, value in self.average.values.items()})
        for number, values in self.optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in values.items()})
        return tensors

    def accuracy(self) -> float:
        """Of the averaged weights, over all images."""
        self.model.load_state_dict(self.average.values, strict=False)
        self.model.eval()
        with torch.no_grad():
            return (self.model(self.images).argmax(1) == self.labels).float().mean().item()


def train(training: Training) -> None:
    options, begun = training.options, time.monotonic()
    for images, labels in training.loader():
        if training.step == options.steps:
            break
        if training.micro == 0:
            begun = time.monotonic()
        loss = training.learn(images, labels)
        if training.micro == options.accumulate:
            training.update()
            time.sleep(max(0.0, begun + options.step_time - time.monotonic()))
            dlrover_slurm.report_step(training.step)
            if training.rank == 0 and training.step % 10 == 0:
                print(f"step {training.step} epoch {training.epoch} loss {loss:.6f}", flush=True)
        training.save_if_due()


def finish(training: Training) -> None:
    tensors = training.final_tensors()
    digests = [""] * training.ranks
    dist.all_gather_object(digests, digest(tensors))
    if training.rank == 0:
        total = digest({"ranks": torch.tensor(bytearray("".join(digests).encode()), dtype=torch.uint8)})
        if training.options.out:
            write_result(pathlib.Path(training.options.out), tensors, total)
        print(f"digest {total} of {training.ranks} ranks after {training.step} steps, accuracy {training.accuracy():.4f}", flush=True)
    dist.barrier()


def write_result(path: pathlib.Path, tensors: "dict[str, torch.Tensor]", total: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        numpy.savez(file, **{name: value.numpy() for name, value in tensors.items()})
    temporary.rename(path)
    path.with_name(path.name + ".sha256").write_text(total + "\n")


def main() -> None:
    options = parse_options()
    rank, ranks = join_group()
    training = Training(options, rank, ranks)
    checkpoint = dlrover_slurm.load()
    if checkpoint is not None:
        training.resume(checkpoint.state)
        if rank == 0:
            print(f"resumed after step {training.step}", flush=True)
    train(training)
    finish(training)


if __name__ == "__main__":
    main()
