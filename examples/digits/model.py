# SPDX-License-Identifier: Apache-2.0
"""The network, its average over time and what the ranks do together."""

import hashlib
import math

import torch
import torch.distributed as dist


def make_model(width: int, hidden: int) -> torch.nn.Module:
    layers, size = [], 64
    for _ in range(hidden):
        layers += [torch.nn.Linear(size, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.1)]
        size = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(size, 10))


def warm_up(step: int) -> float:
    """Learning rate's factor: linear over 20 steps, then a slow cosine; never the same twice."""
    return (step + 1) / 20 if step < 20 else 0.55 + 0.45 * math.cos((step - 20) / 400)


class Average:
    """Exponential moving average of the parameters."""

    def __init__(self, model: torch.nn.Module, decay: float = 0.98) -> None:
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        for name, p in model.named_parameters():
            self.values[name].mul_(self.decay).add_(p, alpha=1 - self.decay)


def ordered_mean(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Communication hook: adds the gradients in the order of the ranks.

    An all-reduce adds them in an order that depends on where a value lies in its bucket, and DDP lays the buckets out anew after the
    first backward pass of a process. A resumed run would then round differently from an undisturbed one.
    """
    own = bucket.buffer()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]

    def add(_done: object) -> torch.Tensor:
        own.copy_(parts[0])
        for part in parts[1:]:
            own.add_(part)
        return own.div_(len(parts))

    return dist.all_gather(parts, own, async_op=True).get_future().then(add)


def digest(tensors: "dict[str, torch.Tensor]") -> str:
    """SHA-256 over names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.numpy().tobytes())
    return total.hexdigest()
