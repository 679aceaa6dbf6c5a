#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the letters of a text with DistributedDataParallel, saving by DLRover's class names. See README.md."""

import argparse
import gc
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn

from dlrover_slurm.compat import DdpCheckpointer, StorageType  # was: dlrover.trainer.torch.flash_checkpoint.ddp

CONTEXT = 32


class Block(nn.Module):
    """Causal attention, then a small network, each beside a direct way."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.before_network(x))


class Gpt(nn.Module):
    """Letters in, scores of the next letter out; the first and the last layer share their weights."""

    def __init__(self, letters: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.score.weight = self.letter.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letter(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.score(self.norm(x))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="pieces of text per rank and step")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--memory-every", type=int, default=1, metavar="N", help="checkpoint into memory every N steps")
    parser.add_argument("--storage-every", type=int, default=0, metavar="N", help="checkpoint to storage every N steps (0: only what the job's options say)")
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__).with_name("README.md"), help="what to learn")
    parser.add_argument("--checkpoint-dir", default="", help="a folder of checkpoints to begin from, where the job has none")
    return parser.parse_args()


def draw(text: torch.Tensor, count: int, step: int, rank: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """The same pieces for the same step and rank, whatever happened before."""
    generator = torch.Generator().manual_seed(1000003 * step + rank)
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator).tolist()
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def train(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    text = options.text.read_text()
    letters = sorted(set(text))
    encoded = torch.tensor([letters.index(letter) for letter in text])

    model = nn.parallel.DistributedDataParallel(Gpt(len(letters), options.layers, options.heads, options.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    checkpointer = DdpCheckpointer(options.checkpoint_dir or "checkpoints")

    first = 0
    checkpoint = checkpointer.load_checkpoint(resume_path=options.checkpoint_dir)
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        torch.set_rng_state(checkpoint["rng"])
        first = checkpoint["step"] + 1
    print(f"rank {rank} begins at step {first}", flush=True)
    stop_at = int(os.environ.get("GPT_DIE_AT", -1))
    for step in range(first, options.steps):
        x, y = draw(encoded, options.batch, step, rank)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if rank == 0 and (step % 10 == 9 or step + 1 == options.steps):
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if step == stop_at and rank == dist.get_world_size() - 1 and not checkpoint:
            os._exit(9)  # for a try: as if this rank had crashed
        to_storage = options.storage_every > 0 and step % options.storage_every == 0
        if to_storage or step % options.memory_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                     "rng": torch.get_rng_state(), "step": step}  # fmt: skip
            checkpointer.save_checkpoint(step, state, storage_type=StorageType.DISK if to_storage else StorageType.MEMORY)


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    train(options)
    gc.collect()  # the model, which keeps the process group: its threads end before the interpreter does
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
