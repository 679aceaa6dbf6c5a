# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on storage for the tests: what ranks saved into plain files is put there, and other ranks go on from it."""

import contextlib
import json
import os
import pathlib
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist
from models import build, digest, train
from torch import nn

BUILD = pathlib.Path(os.environ.get("DLROVER_BUILD", ".")).resolve()
TO_STORAGE, DAEMON = (BUILD / "tests" / "adapters" / name for name in ("to_storage", "stored_daemon"))
LINEAGE = "lab/1000/job"
needs_programs = pytest.mark.skipif(
    not (TO_STORAGE.exists() and DAEMON.exists()), reason="to_storage and stored_daemon are not built here: make tests/adapters/to_storage "
    "tests/adapters/stored_daemon (needs HDF5)")  # fmt: skip


class Stored:
    """A lineage's folder."""

    def __init__(self, tmp_path):
        self.local, self.folder = tmp_path / "checkpoints", tmp_path / "storage" / "lineage"

    def put(self, step=1):
        """What the ranks saved goes to storage, and is nowhere else."""
        subprocess.run([str(TO_STORAGE), str(self.local), str(step), str(self.folder)], check=True)
        self.local.rename(self.local.with_name(f"saved-{step}"))
        return self

    def manifest(self):
        return next(self.folder.glob("step-*.manifest"))

    def data(self):
        return self.manifest().with_suffix("")

    def complete(self):
        return any(self.folder.glob("step-*.manifest"))

    @contextlib.contextmanager
    def offered(self):
        """By a daemon, as what the ranks resume from. What a rank needs to find it."""
        about = json.loads(self.manifest().read_text())
        numbers = [about["term"], about["generation"], about["train_step"], about["world_size"]]
        with served(str(self.folder), *map(str, numbers)) as (environment, _):
            yield environment


def about(socket):
    """What a rank needs to find that daemon."""
    return {"DLROVER_MANAGED": "1", "DLROVER_SOCKET": socket, "DLROVER_JOB_ID": "7", "DLROVER_STEP_ID": "0",
            "DLROVER_GENERATION": "4294967297:3", "DLROVER_LINEAGE": LINEAGE}  # fmt: skip


@contextlib.contextmanager
def served(*arguments):
    """What a rank needs to find the daemon, and the lines that it has said by its end."""
    said = []
    with subprocess.Popen([str(DAEMON), "--", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        socket = next(line for line in daemon.stdout if line.startswith("/")).strip()
        yield about(socket), said
        daemon.stdin.close()
        said.extend(daemon.stdout.read().splitlines())


@contextlib.contextmanager
def ranks_of_a_node(count, folder):
    """The sockets of a node's ranks, and what they all need to find it. At the end what they saved last goes to storage."""
    with subprocess.Popen([str(DAEMON), "--", "together", str(count), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        sockets = []
        while len(sockets) < count:
            line = daemon.stdout.readline()
            assert line, "stored_daemon has ended"
            sockets += [line.strip()] if line.startswith("/") else []
        yield sockets, about("")
        daemon.stdin.close()
        daemon.stdout.read()
    assert daemon.returncode == 0


@contextlib.contextmanager
def busy_slots(count, seconds=0.0):
    """So many more slots of this rank's are being written meanwhile (as if other ranks had not sealed yet), or for so long."""
    from ctypes import byref, c_void_p

    from dlrover_slurm import _session
    from dlrover_slurm._library import check, library

    others, saves = [_session._Session() for _ in range(count)], []
    for other in others:
        saves.append(c_void_p())
        check(library().dlrover_save_begin(other.handle, 1, 1000, byref(saves[-1])))

    def end():
        for save, other in zip(saves, others):
            library().dlrover_save_abort(save)
            other.close()

    timer = threading.Timer(seconds, end)
    if seconds:
        timer.start()
    yield
    if seconds:
        timer.join()
    else:
        end()


# ---- states ----


def options(**more):
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=True, **more)


def state_of(model, optimizer, **more):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options(**more))))


def put_back(model, optimizer, state):
    from torch.distributed.checkpoint.state_dict import set_state_dict

    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options())


def whole(model, optimizer):
    """Digests of the whole state, put together by torch; of FSDP1's, whose shards of different lengths torch does not gather here, by us."""
    state = state_of(model, optimizer)
    if not any(hasattr(value, "local_shards") for value in state["model"].values()):
        return digest(state_of(model, optimizer, full_state_dict=True))
    return together(state)


def together(state):
    return digest({part: {name: gathered(values[name]) for name in sorted(values)} for part, values in state.items() if part != "extra"})


def gathered(value):
    if not hasattr(value, "local_shards"):
        return value
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, [(shard.metadata.shard_offsets[0], shard.tensor) for shard in value.local_shards()])
    full = torch.cat([tensor for _, tensor in sorted((s for own in shards for s in own), key=lambda shard: shard[0])])
    assert full.shape == value.size()
    return full


# ---- a tower of blocks, cut into the stages of a pipeline ----

BLOCKS = 13


class Tower(nn.Module):
    """Some of the blocks, under the names that they have in the whole tower. The last two share their weights."""

    def __init__(self, blocks):
        super().__init__()
        torch.manual_seed(1)
        made = [nn.Linear(7, 7) for _ in range(BLOCKS)]
        made[-1].weight = made[-2].weight
        self.blocks = nn.ModuleDict({str(i): made[i] for i in blocks})

    def forward(self, x):
        for block in self.blocks.values():
            x = torch.relu(block(x)) + x
        return x


def tower(kind, stages=None, seed=1):
    """``stages``: how many blocks each rank has; the kind is "pp" then."""
    if kind == "pp":
        first = sum(stages[: dist.get_rank()])
        model = Tower(range(first, first + stages[dist.get_rank()]))
    else:
        model = Tower(range(BLOCKS))
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        elif kind == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    if seed != 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(seed)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def make(kind, stages=None, seed=1):
    return tower(kind, stages, seed) if stages is not None else build(kind, seed)


def trained(kind, stages=None, seed=1, steps=2):
    model, optimizer = make(kind, stages, seed)
    train(model, optimizer, steps, first=seed)
    return model, optimizer
