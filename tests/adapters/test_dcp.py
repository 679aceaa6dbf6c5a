# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from conftest import Killed
from models import build, digest, local, train


def both_ways(rank, kind):
    """Saved by our call or torch's, loaded by ours or torch's: the same tensors in all four."""
    from dlrover_slurm import dcp

    model, optimizer = build(kind)
    train(model, optimizer, 2)
    state = state_of(model, optimizer)
    saved = digest(state)
    for step, save in enumerate((
        lambda: dcp.save(0, state),
        lambda: torch_dcp.save(state, storage_writer=dcp.MemoryWriter(1)),
        lambda: torch_dcp.save(state, checkpoint_id="run/step-2", storage_writer=dcp.MemoryWriter()),
    )):
        save()
        dist.barrier()
        assert dcp.latest_step() == step
        for load in (dcp.load, lambda s: torch_dcp.load(s, storage_reader=dcp.MemoryReader())):
            other, other_optimizer = build(kind, seed=7)
            train(other, other_optimizer, 1)
            target = state_of(other, other_optimizer)
            assert digest(target) != saved
            load(target)
            assert digest(target) == saved
    return len(saved)


def state_of(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "extra": {"epoch": 3, "rank": dist.get_rank(), "text": "x" * 5000}}


@pytest.mark.parametrize("kind, count", [("ddp", 2), ("fsdp2", 2), ("fsdp1", 2), ("hsdp", 4), ("tp", 2), ("fsdp2+tp", 4)])
def test_equal_after_load(ranks, kind, count):
    assert min(ranks(count, both_ways, kind)) > 10
