# SPDX-License-Identifier: Apache-2.0
"""A rank of an FSDP2 training that saves each step in memory and goes on from there: for test_node_loss.py, under srun.

sharded_training.py STEPS SECONDS-PER-STEP RESULT-FILE"""

import hashlib
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from dlrover_slurm import dcp
from models import build, train
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor


def state_of(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def digest(state):
    """Of all tensors in whole, which every rank helps to put together."""
    total = hashlib.sha256()

    def add(name, value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                add(f"{name}.{key}", value[key])
        elif isinstance(value, torch.Tensor):
            total.update(name.encode() + whole(value).contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else repr(value.item()).encode())

    add("", state)
    return total.hexdigest()


def tell(what, step, state):
    text = digest(state)
    if dist.get_rank() == 0:
        print(f"{what} step {step} with {dist.get_world_size()} ranks: {text}", flush=True)


def main(steps, seconds, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = build("fsdp2")
    train(model, optimizer, 1, data_rank=dist.get_rank())  # the optimizer's state exists from its first step on
    state = state_of(model, optimizer)
    found = dcp.load(state)
    if found is not None:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        tell("resumed", found, state_of(model, optimizer))
    for step in range(1 if found is None else found + 1, steps):
        train(model, optimizer, 1, first=step, data_rank=dist.get_rank())
        state = state_of(model, optimizer)
        tell("saves", step, state)
        dcp.save(step, state)
        time.sleep(seconds)
    text = digest(state_of(model, optimizer))
    if dist.get_rank() == 0:
        pathlib.Path(result).write_text(text)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
