# SPDX-License-Identifier: Apache-2.0
"""The states that bench/ckpt_save saves and restores: the same ones in every process, from a seed."""

import itertools
import mmap
import os
import time

import torch

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


def mirrored_tensors(count: int, numbers: int, generator: torch.Generator) -> "list[torch.Tensor]":
    """Each a mapping of its own of the same memory: to whoever copies them they are as many bytes as others."""
    file = os.memfd_create("mirrored")
    os.ftruncate(file, 4 * numbers)
    tensors = [torch.frombuffer(mmap.mmap(file, 4 * numbers), dtype=torch.float32) for _ in range(count)]
    os.close(file)
    torch.rand(numbers, generator=generator, out=tensors[0])
    return tensors


def make_state(kind: str, size: int, mirrored: bool = False) -> dict:
    """Weights in plain tensors, and the few other things that a state holds."""
    generator = torch.Generator().manual_seed(1)
    if kind == "mixed":
        tensors = mixed_tensors(size, generator)
    else:
        count, numbers = (8, size // 8 // 4) if kind == "large" else (10000, 256)
        tensors = mirrored_tensors(count, numbers, generator) if mirrored else [torch.rand(numbers, generator=generator) for _ in range(count)]
    model = {f"model.layers.{i}.weight": tensor for i, tensor in enumerate(tensors)}
    return {"model": model, "epoch": 3, "rate": 1e-3, "name": "bench"}


def blank_like(state: dict) -> dict:
    """The state of a program that was set up and has restored nothing yet; all of its memory is there."""
    return {"model": {name: torch.ones_like(tensor) for name, tensor in state["model"].items()}, "epoch": 0, "rate": 0.0, "name": ""}


def bytes_of(state: dict) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state["model"].values())


def change(state: dict) -> None:
    """What a step of the optimizer does to the caches."""
    for tensor in state["model"].values():
        if tensor.is_floating_point():
            tensor.add_(1e-6)
        else:
            tensor.logical_not_()


def difference(state: dict, other: dict) -> "str | None":
    """The first value that is not the same in both."""
    for name in ("epoch", "rate", "name"):
        if state[name] != other.get(name):
            return name
    if state["model"].keys() != other["model"].keys():
        return "the tensors' names"
    return next((name for name, tensor in state["model"].items()
                 if tensor.dtype != other["model"][name].dtype or not torch.equal(tensor, other["model"][name])), None)


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
