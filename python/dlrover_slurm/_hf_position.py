# SPDX-License-Identifier: Apache-2.0
"""Where Hugging Face's Trainer goes on in its data when another number of ranks saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.trainer_utils import has_length


@dataclass(frozen=True)
class Position:
    """Behind a step, as the Trainer works it out: as if all steps had been made by as many ranks, in batches as large."""

    step: int
    batch: int
    """samples in a step, those of all ranks"""
    epochs: int
    samples: int
    """of the epoch after these"""
    max_steps: int

    @classmethod
    def of(cls, args: Any, state: Any, loader: Any) -> Position:
        """``loader``: the rank's own, with the batches of one epoch."""
        found = state.train_batch_size if getattr(args, "auto_find_batch_size", False) else None
        batch = (found or args.train_batch_size) * args.gradient_accumulation_steps * args.world_size
        # Where it has no length the Trainer takes all steps for one epoch.
        steps = -(-len(loader) // args.gradient_accumulation_steps) if has_length(loader) else state.max_steps
        epochs, more = divmod(state.global_step, max(1, steps))
        return cls(state.global_step, batch, epochs, more * batch, state.max_steps)

    def place(self, ignore_data_skip: bool) -> tuple[int, int]:
        return self.epochs, 0 if ignore_data_skip else self.samples


def difference(saved: Position, here: Position, ranks: tuple[int, int], ignore_data_skip: bool) -> str:
    """What is different from a training that goes on at the number of ranks that saved; "": nothing is. ``ranks``: that saved, and here."""
    parts = [_data(saved, here, ignore_data_skip), _end(saved, here)]
    if not any(parts):
        return ""
    by = "1 rank" if ranks[0] == 1 else f"{ranks[0]} ranks"
    where = f"step {saved.step} was saved by {by} with {saved.batch} samples a step, this world has {ranks[1]} with {here.batch}"
    if here.batch != saved.batch:
        parts.append(f"gradient_accumulation_steps or per_device_train_batch_size that make {saved.batch} samples a step keep the place")
    return ". ".join(part for part in (where, *parts) if part)


def _data(saved: Position, here: Position, ignore_data_skip: bool) -> str:
    then, now = saved.place(ignore_data_skip), here.place(ignore_data_skip)
    if then == now:
        return ""
    what = "are trained again" if now < then else "are left out"
    behind = "behind {} epochs and {} samples"
    return (
        f"The Trainer counts {here.step} steps of {here.batch}: it goes on {behind.format(*now)}, "
        f"where the saved training would have gone on {behind.format(*then)}; the samples between {what}"
    )


def _end(saved: Position, here: Position) -> str:
    if here.max_steps == saved.max_steps:
        return ""
    nothing = ": nothing is left to train" if here.step >= here.max_steps else ""
    return f"The training ends, and the schedule of the learning rate with it, at step {here.max_steps} instead of {saved.max_steps}{nothing}"
