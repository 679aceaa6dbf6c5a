# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds besides a model and its optimizer, what it leaves out, and how little it needs of the other ranks."""

import json
import os
import subprocess

import numpy
import pytest
import torch
import torch.distributed as dist
from models import build, digest
from stored import LINEAGE, Stored, needs_programs, options, put_back, state_of

STEPS, SAVED = 9, 4


class Loader:
    """Draws batches; its position is a part of the state."""

    def __init__(self, rank):
        self._generator = torch.Generator().manual_seed(rank)
        self._drawn = 0

    def batch(self):
        self._drawn += 1
        return torch.randn(2, 4, 7, generator=self._generator)

    def state_dict(self):
        return {"drawn": self._drawn, "generator": self._generator.get_state()}

    def load_state_dict(self, state):
        self._drawn = state["drawn"]
        self._generator.set_state(state["generator"])


class Training:
    """A scheduler, a gradient scaler that grows every second step, an average of the weights, random numbers in the loss, a loader."""

    def __init__(self, rank, kind):
        torch.manual_seed(rank)
        self.model, self.optimizer = build(kind)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.7)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.ema = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.loader = Loader(rank)
        torch.manual_seed(100 + rank)

    def step(self):
        x, y = self.loader.batch()
        loss = (self.model(x + 0.1 * torch.rand_like(x)) - y).pow(2).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        for name, p in self.model.named_parameters():
            self.ema[name].mul_(0.9).add_(p.detach(), alpha=0.1)
        return loss.item().hex()

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("scheduler", "scaler", "loader")}
        return {**state_of(self.model, self.optimizer), **parts, "ema": dict(self.ema), "rng": torch.get_rng_state()}

    def load(self, state):
        put_back(self.model, self.optimizer, state)
        for name in ("scheduler", "scaler", "loader"):
            getattr(self, name).load_state_dict(state[name])
        for name, value in state["ema"].items():
            self.ema[name].copy_(value)
        torch.set_rng_state(state["rng"])


def undisturbed(rank, kind):
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    made = Training(rank, kind)
    losses = []
    for step in range(STEPS):
        losses.append(made.step())
        if step == SAVED:
            assert dcp.save(step, made.state())
    assert made.scaler.get_scale() == 1024.0 * 2 ** (STEPS // 2) and made.scheduler.last_epoch == STEPS
    return losses, digest(made.state())


def resumed(rank, kind, environment):
    from dlrover_slurm import dcp

    os.environ.update(environment)
    made = Training(rank, kind)
    made.step()  # nothing of it may be left
    state = made.state()
    assert dcp.load(state) == SAVED
    made.load(state)
    return [made.step() for _ in range(SAVED + 1, STEPS)], digest(made.state())


@needs_programs
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_all_that_a_training_has(ranks, tmp_path, kind):
    """From memory, and from storage: the losses and the whole state of a training that nothing disturbed."""
    stored = Stored(tmp_path)
    expected = [(losses[SAVED + 1 :], state) for losses, state in ranks(2, undisturbed, kind)]
    assert ranks(2, resumed, kind, {}) == expected
    with stored.put(SAVED).offered() as environment:
        assert ranks(2, resumed, kind, environment) == expected


# ---- frozen parameters ----


def without_frozen(rank, kind):
    """torch leaves them out of the state that is saved; the model keeps what it has."""
    from dlrover_slurm import dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    model, _ = build(kind)
    state = get_model_state_dict(model, options=options(ignore_frozen_params=True))
    assert not any("frozen" in name for name in state) and len(state) > 5
    saved = digest(state)
    assert dcp.save(1, {"model": state})
    dist.barrier()  # the step is complete
    model, _ = build(kind, seed=2)
    kept = digest({n: p for n, p in model.named_parameters() if "frozen" in n})
    state = {"model": get_model_state_dict(model, options=options(ignore_frozen_params=True))}
    assert digest(state["model"]) != saved
    assert dcp.load(state) == 1
    set_model_state_dict(model, state["model"], options=options(strict=False))
    assert digest(get_model_state_dict(model, options=options(ignore_frozen_params=True))) == saved
    assert digest({n: p for n, p in model.named_parameters() if "frozen" in n}) == kept and len(kept) == 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_frozen_parameters_are_left_out_as_torch_does(ranks, kind):
    ranks(2, without_frozen, kind)


# ---- nothing is asked of other ranks ----

COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
               "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
               "scatter", "scatter_object_list", "send", "isend", "irecv", "batch_isend_irecv")  # fmt: skip


def alone(rank, kind, environment, step):
    """A save (``step``) or a load in which no collective can be called, by torch.distributed or below it."""
    import torch.distributed.distributed_c10d as c10d
    from dlrover_slurm import dcp

    os.environ.update(environment, DLROVER_LINEAGE=LINEAGE)
    model, optimizer = build(kind)
    state = state_of(model, optimizer)

    def refused(*_, **__):
        raise AssertionError("a collective")

    with pytest.MonkeyPatch.context() as patch:
        for name in COLLECTIVES:
            for module in (dist, c10d):
                patch.setattr(module, name, refused)
        with pytest.raises(AssertionError, match="a collective"):
            dist.barrier()
        if step is not None:
            assert dcp.save(step, state)
        else:
            assert dcp.load(state) == 3


@needs_programs
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_no_collective_in_a_save_or_a_load(ranks, tmp_path, kind):
    stored = Stored(tmp_path)
    ranks(2, alone, kind, {}, 3)
    ranks(2, alone, kind, {}, None)
    with stored.put(3).offered() as environment:
        ranks(2, alone, kind, environment, None)
        ranks(3, alone, kind, environment, None)


# ---- torch's types, read by plain h5py ----

READ = """
import glob, h5py, json, sys
with h5py.File(glob.glob(sys.argv[1])[0], "r") as file:
    print(json.dumps({name: [d.attrs["dtype"], str(d.dtype), list(d.shape), d[()].tobytes().hex()] for name, d in file["tensors"].items()}))
"""

#: what docs/format-storage.md says of them; the others are numpy's of the same name
AS_READ = {"bfloat16": "float32", "float8_e4m3fn": "uint8", "float8_e5m2": "float16"}
NAMES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn",
         "float8_e5m2", "complex64", "complex128"]  # fmt: skip


def every_type():
    state = {}
    for name in NAMES:
        kind = getattr(torch, name)
        state[name] = torch.arange(12).reshape(3, 4).to(torch.float32).to(kind)
        state[name + "_scalar"], state[name + "_empty"] = torch.ones(()).to(kind), torch.empty(0, 3, dtype=kind)
    return state


def save_types(rank):
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    assert dcp.save(1, every_type())


@needs_programs
def test_every_type_is_read_by_plain_h5py(ranks, tmp_path):
    stored = Stored(tmp_path)
    ranks(1, save_types, group=False)
    stored.put()
    read = subprocess.run(["/usr/bin/python3", "-c", READ, str(stored.data() / "index.h5")], check=True, capture_output=True, text=True).stdout
    found = json.loads(read)
    state = every_type()
    assert sorted(found) == sorted(state)
    for name, tensor in state.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        dtype, seen, shape, data = found[name]
        assert (dtype, seen, shape) == (kind, AS_READ.get(kind, kind), list(tensor.shape)), name
        if kind in AS_READ and kind != "float8_e4m3fn":
            expected = tensor.to(getattr(torch, AS_READ[kind])).numpy()
        else:
            expected = (tensor.view(torch.uint8) if kind == "float8_e4m3fn" else tensor).numpy()
        assert numpy.frombuffer(bytes.fromhex(data), seen).reshape(shape).tobytes() == expected.tobytes(), name
