#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs the training loop: into memory by DLRover's class names, and to a file by torch. See README.md."""

import argparse
import os
import tempfile
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn

from dlrover_slurm.compat import DdpCheckpointer, FsdpFullCheckpointer, FsdpShardCheckpointer, StorageType  # was: dlrover.trainer.torch.flash_checkpoint.ddp and .fsdp


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("ddp", "fsdp-shard", "fsdp-full"), default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=2, metavar="N", help="checkpoint into memory every N steps")
    parser.add_argument("--width", type=int, default=512, help="of the four layers")
    parser.add_argument("--file", action="store_true", help="also save every rank's state to a file in the folder for temporary files, to compare")
    return parser.parse_args()


def make(kind: str, width: int) -> "tuple[nn.Module, torch.optim.Optimizer]":
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


class Saving:
    """The three checkpointers behind one face: DDP's takes a state, those for FSDP model and optimizer."""

    def __init__(self, kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        checkpointers: "dict[str, Callable[[str], Any]]" = {"ddp": DdpCheckpointer, "fsdp-shard": FsdpShardCheckpointer, "fsdp-full": FsdpFullCheckpointer}
        self.checkpointer = checkpointers[kind]("checkpoints")
        self.ddp, self.model, self.optimizer = kind == "ddp", model, optimizer

    def state(self, step: int) -> "dict[str, Any]":
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}

    def save(self, step: int) -> None:
        if self.ddp:
            self.checkpointer.save_checkpoint(step, self.state(step), storage_type=StorageType.MEMORY)
        else:
            self.checkpointer.save_checkpoint(step, self.model, self.optimizer, {"step": step}, storage_type=StorageType.MEMORY)

    def load(self) -> int:
        """The step to begin with."""
        if not self.ddp:
            extra = self.checkpointer.load_checkpoint(self.model, self.optimizer)
            return extra["step"] + 1 if extra else 0
        state = self.checkpointer.load_checkpoint()
        if not state:
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"] + 1


def seconds(action: "Callable[[], None]") -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, width: int) -> float:
    x = torch.randn(16, width, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer = make(options.kind, options.width)
    saving = Saving(options.kind, model, optimizer)
    first = saving.load()
    print(f"rank {rank} begins at step {first}", flush=True)
    die_at, into_memory = int(os.environ.get("DEMO_DIE_AT", -1)), []
    for step in range(first, options.steps):
        loss = train(model, optimizer, step, options.width)
        if step == die_at and rank == 1 and first == 0:
            os._exit(9)  # for a try: as if this rank had crashed
        if step % options.save_every == 0:
            into_memory.append(seconds(lambda: saving.save(step)))
    print(f"rank {rank} ends with loss {loss!r}", flush=True)
    if into_memory:
        print(f"rank {rank}: {len(into_memory)} checkpoints into memory, the quickest {min(into_memory):.4f} s", flush=True)
    if options.file:
        with tempfile.NamedTemporaryFile() as file:
            took = seconds(lambda: (torch.save(saving.state(0), file.name), os.fsync(file.fileno())))
        print(f"rank {rank}: one file by torch.save {took:.4f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
