# SPDX-License-Identifier: Apache-2.0
"""What several ranks of a node hold alike, under a real keeper and daemon: kept once, given back to all, and loaded from storage by others."""

import json
import os
import re

import pytest
import torch
from conftest import nightly
from ranks import TOP
from stored import Stored, needs_programs, ranks_of_a_node
from test_memory import BUILD, PROGRAMS, standalone

needs_daemon = pytest.mark.skipif(not all(p.exists() for p in [*PROGRAMS, BUILD / "dlrover"]), reason="the daemon's programs are not built here")


@pytest.fixture
def stored(tmp_path):
    return Stored(tmp_path)


PROGRAM = """
import hashlib, json, os, signal, subprocess, sys, time, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[4])
from models import digest
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
import dlrover_slurm
from dlrover_slurm import dcp

kind, kill = sys.argv[1:3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, count = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 200), nn.BatchNorm1d(200))
if kind == "hsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("replicate", "shard")))
else:
    model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

def states():
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))

def save(step):
    if kind == "hsdp":
        return dcp.save(step, states())
    if kind == "ddp-dcp":
        return dcp.save(step, {**states(), "means": {f"of {rank}": mean()}}, replicated=True)
    return dlrover_slurm.save(step, {**states(), "own": torch.tensor(rank)}, replicated=kind == "ddp")

def mean():
    return model.module[3].running_mean.clone()

def load():
    state = states()
    if kind == "hsdp":
        last = dcp.load(state)
    elif kind == "ddp-dcp":
        state["means"] = {f"of {rank}": mean()}
        last = dcp.load(state)
        assert last is None or torch.equal(state.pop("means")[f"of {rank}"], state["model"]["3.running_mean"]), "a rank's own"
    else:
        found = dlrover_slurm.load()
        assert found is None or found.state.pop("own") == rank
        state, last = (found.state, found.step) if found is not None else (state, None)
    if last is not None:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return -1 if last is None else last

def step_on(step):
    x = torch.randn(8, 200, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def checkpoint_of(step):
    "As the daemon tells of it, once it is complete."
    while True:
        asked = subprocess.run([sys.argv[3], "status", os.environ["DLROVER_JOB_ID"], "--json"], capture_output=True)
        for c in (c for g in json.loads(asked.stdout)["groups"] for c in g["checkpoints"]):
            if c["train_step"] == step and c["complete"]:
                return c
        time.sleep(0.02)

def say_state(word, step):
    "All that was saved, this rank's part."
    print(rank, word, step, hashlib.sha256(repr(sorted(digest(states()).items())).encode()).hexdigest(), flush=True)

last = load()
print(rank, "begins at", last + 1, flush=True)
if last >= 0:
    say_state("loaded", last)
for step in range(last + 1, 8):
    step_on(step)
    if step == 5 and rank == 1 and last < 0 and kill == "kill":
        checkpoint_of(4)
        os.kill(os.getpid(), signal.SIGKILL)
    save(step)
    say_state("saved", step)
if rank == 0:
    print("bytes", checkpoint_of(7)["bytes"], flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def train(tmp_path, kind, kill):
    """What the ranks said: where they began, states by rank and step as they were saved and as they were loaded, the bytes of the last
    checkpoint on the node. (Losses differ in their last bits: DDP's buckets begin anew.)"""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = standalone(4, script, kind, kill, BUILD / "dlrover", TOP / "tests" / "adapters")
    begun = [int(n) for n in re.findall(r"^0 begins at (\d+)$", done.stdout, re.M)]
    saved, loaded = ({(int(r), int(s)): state for r, s, state in re.findall(rf"^(\d) {word} (\d+) (\S+)$", done.stdout, re.M)} for word in ("saved", "loaded"))
    return begun, saved, loaded, int(re.search(r"^bytes (\d+)$", done.stdout, re.M).group(1))


PARAMETERS = 4 * (2 * 200 * 300 + 300 + 200 + 2 * 200)
STATE = 3 * PARAMETERS  # with the two moments of AdamW


@needs_daemon
@pytest.mark.parametrize("kind", ["ddp", pytest.param("ddp-dcp", marks=nightly), pytest.param("hsdp", marks=nightly)])
def test_killed_and_resumed(tmp_path, kind):
    begun, saved, loaded, nbytes = train(tmp_path, kind, "kill")
    assert STATE < nbytes < 1.2 * STATE, "all four ranks together"
    assert len(begun) == 2 and begun[1] == 5
    assert sorted(loaded) == [(rank, 4) for rank in range(4)]
    assert all(saved[key] == state for key, state in loaded.items())
    assert len(set(loaded.values())) == 4, "each has something of its own"


@needs_daemon
def test_without_a_word_each_rank_keeps_all(tmp_path):
    *_, nbytes = train(tmp_path, "ddp-own", "no")
    assert nbytes > 4 * STATE


# ---- on storage: the ranks' daemons are tests/adapters/stored_daemon ----


def model_of(kind):
    model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.ReLU(), torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200))
    if kind != "hsdp":
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (2, torch.distributed.get_world_size() // 2), mesh_dim_names=("replicate", "shard")))
    return model


def whole(model):
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone() for k, v in model.state_dict().items()}


def save(rank, sockets, environment, kind):
    import dlrover_slurm
    from dlrover_slurm import dcp

    os.environ.update(environment, DLROVER_SOCKET=sockets[rank])
    torch.manual_seed(3)
    model = model_of(kind)
    with torch.no_grad():
        model[3].running_mean.fill_(rank)
    if kind == "plain":
        assert dlrover_slurm.save(7, {"model": model.state_dict(), "rank": rank}, replicated=True)
    else:
        assert dcp.save(7, {"model": model.state_dict()}, replicated=True)
    return whole(model)


def load(rank, folder, environment, kind, saved_by):
    import dlrover_slurm
    from dlrover_slurm import dcp

    os.environ.update(environment)
    torch.manual_seed(5)
    model = model_of(kind)
    if kind == "plain":
        checkpoint = dlrover_slurm.load()
        assert checkpoint.step == 7 and checkpoint.state["rank"] == rank % saved_by
        return checkpoint.state["model"]
    state = {"model": model.state_dict()}
    assert dcp.load(state) == 7
    model.load_state_dict(state["model"])
    return whole(model)


@needs_programs
@pytest.mark.parametrize("kind,count", [("plain", 4), ("ddp", 4), ("ddp", 2), ("hsdp", 4), ("hsdp", 2)])
def test_from_storage(ranks, stored, kind, count):
    with ranks_of_a_node(4, stored.folder) as (sockets, environment):
        saved = ranks(4, save, sockets, environment, kind)
    about = json.loads(stored.manifest().read_text())
    assert PARAMETERS < sum(entry["bytes"] for entry in about["ranks"]) < 1.5 * PARAMETERS, "each tensor is stored once"
    with stored.offered() as environment:
        for rank, found in enumerate(ranks(count, load, str(stored.folder), environment, kind, 4)):
            expected = dict(saved[0], **{"3.running_mean": saved[rank]["3.running_mean"]})
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                assert torch.equal(tensor, expected[name]), name


def damaged(rank, folder, environment):
    from dlrover_slurm import CorruptError, dcp

    os.environ.update(environment)
    with pytest.raises(CorruptError):
        dcp.load({"model": model_of("ddp").state_dict()})


@needs_programs
def test_damage_in_what_one_rank_stored_for_all(ranks, stored):
    with ranks_of_a_node(2, stored.folder) as (sockets, environment):
        saved = ranks(2, save, sockets, environment, "ddp")
    weight = saved[0]["0.weight"].numpy().tobytes()
    path = next(p for p in stored.data().glob("rank-*.h5") if weight[:64] in p.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(weight[:64])] ^= 1
    path.write_bytes(data)
    with stored.offered() as environment:
        ranks(2, damaged, str(stored.folder), environment)
    assert not stored.complete()
