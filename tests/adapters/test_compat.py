# SPDX-License-Identifier: Apache-2.0
import inspect
import json
import os
import re
import subprocess
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from conftest import nightly
from models import build, digest, train
from stored import BUILD, busy_slots, needs_programs, served
from test_memory import PROGRAMS, standalone

needs_memory = pytest.mark.skipif(not all(p.exists() for p in PROGRAMS), reason="dlrover-run, dlrover-keeper and dlroverd are not built here")


def states(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    return digest(get_state_dict(model, optimizer))


def ddp(rank):
    from dlrover_slurm.compat import DdpCheckpointer, StorageType

    model, optimizer = build("ddp")
    checkpointer = DdpCheckpointer("/nonexistent/checkpoints", local_shard_num=1, global_shard_num=1, comm_backend="gloo")
    assert checkpointer.load_checkpoint() == {}
    train(model, optimizer, 2)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
    for step, kind in enumerate([StorageType.MEMORY, StorageType.DISK]):  # plain files are on storage anyway
        assert checkpointer.save_checkpoint(step, state, "/nonexistent/checkpoints/x.pt", storage_type=kind)
    with pytest.raises(ValueError, match="no StorageType"):
        checkpointer.save_checkpoint(9, state, storage_type=2)
    checkpointer.wait_latest_checkpoint(timeout=10)
    dist.barrier()
    back = checkpointer.load_checkpoint(resume_path="/nonexistent/checkpoints/x.pt")
    assert digest(back) == digest(state)
    other, other_optimizer = build("ddp", seed=7)
    other.load_state_dict(back["model"])
    other_optimizer.load_state_dict(back["optimizer"])
    assert train(other, other_optimizer, 3, first=2) == train(model, optimizer, 3, first=2)


def test_ddp(ranks):
    ranks(2, ddp)


def junk(rank, folder):
    from dlrover_slurm import UnsupportedError
    from dlrover_slurm.compat import DdpCheckpointer

    path = os.path.join(folder, "j.pt")
    with open(path, "wb") as file:
        file.write(b"no file of torch.save")
    with pytest.raises(UnsupportedError, match="j.pt can not be loaded"):
        DdpCheckpointer(folder).load_checkpoint(resume_path=path)


def test_a_file_that_torch_does_not_read_is_named(ranks, tmp_path):
    ranks(1, junk, str(tmp_path), group=False)


def resume_path(rank, folder):
    from dlrover_slurm.compat import DdpCheckpointer

    state = {"model": torch.arange(5.0)}
    torch.save(state, f"{folder}/x.pt")
    checkpointer = DdpCheckpointer(folder)
    assert digest(checkpointer.load_checkpoint(f"{folder}/x.pt")) == digest(state)
    assert checkpointer.load_checkpoint(f"{folder}/y.pt") == {}


def test_a_file_that_torch_wrote_is_read_where_memory_has_nothing(ranks, tmp_path):
    ranks(1, resume_path, str(tmp_path), group=False)


def fsdp(rank, name, kind):
    from dlrover_slurm import compat

    checkpointer = getattr(compat, name)("/nonexistent/checkpoints")
    model, optimizer = build(kind)
    assert checkpointer.load_checkpoint(model, optimizer) == {}
    train(model, optimizer, 2)
    assert checkpointer.save_checkpoint(2, model, optimizer, {"epoch": 4, "rank": rank}, storage_type=compat.StorageType.MEMORY)
    dist.barrier()
    other, other_optimizer = build(kind, seed=7)
    extra = checkpointer.load_checkpoint(other, other_optimizer)
    assert {key: extra[key] for key in ("epoch", "rank")} == {"epoch": 4, "rank": rank}
    assert states(other, other_optimizer) == states(model, optimizer)
    assert train(other, other_optimizer, 3, first=2) == train(model, optimizer, 3, first=2)


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("name", ["FsdpShardCheckpointer", "FsdpFullCheckpointer"])
def test_fsdp(ranks, name, kind):
    ranks(2, fsdp, name, kind)


def to_storage(rank, environment, name):
    from dlrover_slurm import UnsupportedError, compat

    os.environ.update(environment)
    checkpointer = getattr(compat, name)("/nonexistent/checkpoints")
    model = torch.nn.Linear(3, 2)
    arguments = [model.state_dict()] if name == "DdpCheckpointer" else [model, torch.optim.SGD(model.parameters(), 0.1)]
    assert checkpointer.save_checkpoint(1, *arguments, storage_type=compat.StorageType.MEMORY)
    try:
        assert checkpointer.save_checkpoint(2, *arguments, storage_type=compat.StorageType.DISK)
        assert checkpointer.save_checkpoint(3, *arguments)
    except UnsupportedError as error:
        assert "--dlrover-ckpt-dir" in str(error)
        assert checkpointer.save_checkpoint(4, *arguments, storage_type=compat.StorageType.MEMORY)
        return "refused"
    return "saved"


@needs_programs
@pytest.mark.parametrize("name", ["DdpCheckpointer", "FsdpShardCheckpointer", "FsdpFullCheckpointer"])
def test_disk_is_what_goes_to_storage(ranks, name):
    with served("with-storage") as (environment, said):
        assert ranks(1, to_storage, environment, name) == ["saved"]
    assert {line for line in said if line.startswith("step")} >= {"step 2 to storage", "step 3 to storage"}
    assert "step 1 to storage" not in said
    with served("without-storage") as (environment, said):
        assert ranks(1, to_storage, environment, name) == ["refused"]
    assert {line for line in said if line.startswith("step")} == {"step 1 in memory", "step 4 in memory"}


def for_a_slot(rank, environment, name):
    """Of three slots two are written and one has the newest step."""
    from dlrover_slurm import InvalidError, compat

    os.environ.update(environment)
    checkpointer = getattr(compat, name)("/nonexistent/checkpoints")
    assert checkpointer.wait == 60
    model = torch.nn.Linear(3, 2)
    arguments = [model.state_dict()] if name == "DdpCheckpointer" else [model, torch.optim.SGD(model.parameters(), 0.1)]
    memory = compat.StorageType.MEMORY
    assert checkpointer.save_checkpoint(1, *arguments, storage_type=memory)
    with busy_slots(2), warnings.catch_warnings():
        warnings.simplefilter("error")
        since = time.monotonic()
        assert not checkpointer.save_checkpoint(2, *arguments, storage_type=memory), "one for memory is skipped, as ever"
        assert time.monotonic() - since < 30
    with busy_slots(2, seconds=0.5):
        since = time.monotonic()
        assert checkpointer.save_checkpoint(3, *arguments)
        assert time.monotonic() - since > 0.3
    checkpointer.wait = 0.2
    with busy_slots(2), pytest.warns(UserWarning, match=r"step 4 .*does not go to storage.* 0\.2 s"):
        assert not checkpointer.save_checkpoint(4, *arguments)
    checkpointer.wait = -1
    with pytest.raises(InvalidError, match="wait is a number of seconds"):
        checkpointer.save_checkpoint(5, *arguments)


@needs_programs
@pytest.mark.parametrize("name", ["DdpCheckpointer", "FsdpShardCheckpointer", "FsdpFullCheckpointer"])
def test_a_save_for_storage_waits_for_a_slot(ranks, name):
    with served("with-storage") as (environment, said):
        ranks(1, for_a_slot, environment, name)
    assert "step 3 to storage" in said


# ---- until it is on storage ----


def waited(checkpointer, timeout):
    """Whether it is there, what was said where it is not, and how long that took."""
    since = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        there = checkpointer.wait_latest_checkpoint(timeout=timeout)
    assert there == (not told)
    return there, "".join(str(each.message) for each in told), time.monotonic() - since


def on_storage(rank, environment, top):
    """The daemon is of generation 1.1.3 and does not store: the test does, as far as names go."""
    from dlrover_slurm.compat import DdpCheckpointer, StorageType

    os.environ.update(environment, DLROVER_CKPT_DIR=str(top))
    folder = top / "lab%2F1000%2Fjob"
    checkpointer = DdpCheckpointer("/nonexistent/checkpoints")
    assert waited(checkpointer, 0)[0], "nothing was asked for"
    state = {"x": torch.ones(3)}
    assert checkpointer.save_checkpoint(1, state, storage_type=StorageType.MEMORY)
    assert waited(checkpointer, 0)[0], "nor now"
    assert checkpointer.save_checkpoint(5, state)
    there, said, took = waited(checkpointer, 0.3)
    assert not there and "step 5 " in said and "not after 0.3 s" in said and "lab%2F1000" in said and took >= 0.3
    folder.mkdir()
    for other in ("step-4.gen-1.1.3.manifest", "step-9.gen-1.1.2.manifest", "step-9.gen-2.1.3.manifest", "step-5.gen-1.1.3.manifest.suspect", "latest"):
        (folder / other).touch()
    (folder / "step-5.gen-1.1.3").mkdir()
    there, said, _ = waited(checkpointer, 0.3)
    assert not there and "lab%2F1000" not in said, "it is not there: older, of another run, set aside, or not whole yet"
    threading.Timer(0.5, (folder / "step-5.gen-1.1.3.manifest").touch).start()
    there, said, took = waited(checkpointer, 60)
    assert there and took > 0.3, said
    assert checkpointer.save_checkpoint(6, state)
    assert checkpointer.save_checkpoint(7, state, storage_type=StorageType.MEMORY)
    assert not waited(checkpointer, 0)[0]
    (folder / "step-7.gen-1.1.3.manifest").touch()
    assert waited(checkpointer, 60)[0], "a newer one has gone in its place"
    assert checkpointer.save_checkpoint(8, state)
    (folder / "step-2.gen-1.2.4.manifest").touch()
    assert waited(checkpointer, 60)[0], "a later generation has gone on from it"


@needs_programs
def test_what_was_asked_for_is_waited_for(ranks, tmp_path):
    top = tmp_path / "storage"
    top.mkdir()
    with served("with-storage") as (environment, _):
        ranks(1, on_storage, environment, top)


def hidden(rank, environment, top):
    from dlrover_slurm import compat

    os.environ.update(environment, DLROVER_CKPT_DIR=str(top / "elsewhere"))
    checkpointer = compat.DdpCheckpointer("/nonexistent/checkpoints")
    assert checkpointer.save_checkpoint(5, {"x": torch.ones(3)})
    there, said, took = waited(checkpointer, 60)
    assert not there and "elsewhere can not be seen here" in said and took < 40
    os.environ["DLROVER_CKPT_DIR"] = str(top)
    compat._durable.os = type("Hangs", (), {"__getattr__": lambda self, name: getattr(os, name), "listdir": lambda self, path: time.sleep(3600)})()
    there, said, took = waited(checkpointer, 0.3)
    assert not there and "not after 0.3 s" in said and took < 60


@needs_programs
def test_storage_that_is_not_seen_or_hangs_is_not_waited_for_beyond_the_limit(ranks, tmp_path):
    with served("with-storage") as (environment, _):
        ranks(1, hidden, environment, tmp_path)


def in_files(rank, folder):
    from dlrover_slurm.compat import DdpCheckpointer

    checkpointer = DdpCheckpointer("/nonexistent/checkpoints")
    if rank == 1:
        while not (folder / "waits").exists():
            time.sleep(0.01)
        time.sleep(0.5)
    assert checkpointer.save_checkpoint(3, {"x": torch.ones(3)})
    if rank == 0:
        there, said, _ = waited(checkpointer, 0.2)
        assert not there and "step 3 " in said and "rank-1" in said
        (folder / "waits").touch()
        assert waited(checkpointer, 60)[2] > 0.3
    assert waited(checkpointer, 60)[0]


def test_plain_files_of_all_ranks_are_waited_for(ranks, tmp_path):
    ranks(2, in_files, tmp_path, group=False)


# ---- what DLRover itself has left ----


class Unknown:
    pass


def left(folder, step, states):
    """As DLRover 0.6.1 does for DDP and whole FSDP models."""
    (folder / str(step)).mkdir(parents=True)
    for rank, state in enumerate(states):
        torch.save(state, folder / str(step) / f"rank_{rank}.pt")
    (folder / "dlrover_latest.txt").write_text(str(step))


def migrated(rank, folder):
    from dlrover_slurm import NotFoundError, UnsupportedError, _session
    from dlrover_slurm.compat import DdpCheckpointer

    model, optimizer = build("ddp")
    train(model, optimizer, 2)
    states = [{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 40 + r} for r in range(2)]
    if rank == 0:
        left(folder / "good", 40, states)
        left(folder / "foreign", 41, [{"x": Unknown()}])
        left(folder / "lacks", 42, [])
        (folder / "lacks" / "41").mkdir()
        left(folder / "none", 43, states)
        (folder / "none" / "dlrover_latest.txt").write_text("\n")
        left(folder / "bad", 44, states)
        (folder / "bad" / "dlrover_latest.txt").write_text("step 44")
        torch.save({"mine": 1}, folder / "good" / "mine.pt")
    dist.barrier()
    good = DdpCheckpointer(str(folder / "good"))
    with pytest.warns(UserWarning, match="good/40/rank_0.pt is loaded, which DLRover has left"):
        assert digest(good.load_checkpoint()) == digest(states[0])
    assert _session.last_step == 40, "the optimizer's steps are counted from there"
    with pytest.warns(UserWarning, match="rank_0.pt"):
        assert digest(good.load_checkpoint(str(folder / "good" / "no-such.pt"))) == digest(states[0])
    assert good.load_checkpoint(str(folder / "good" / "mine.pt")) == {"mine": 1}
    with pytest.warns(UserWarning, match=f"rank_{rank}.pt"):
        assert DdpCheckpointer(str(folder / "good"), 2, 2).load_checkpoint()["step"] == 40 + rank
    for name, kind, words in [
        ("foreign", UnsupportedError, "foreign/41/rank_0.pt.*dlrover ckpt import"),
        ("lacks", NotFoundError, "lacks/42/rank_0.pt is not there.*resume_path"),
        ("bad", UnsupportedError, "bad/dlrover_latest.txt names no step"),
    ]:
        with pytest.raises(kind, match=words):
            DdpCheckpointer(str(folder / name)).load_checkpoint()
    assert DdpCheckpointer(str(folder / "none")).load_checkpoint() == {}
    dist.barrier()
    assert good.save_checkpoint(41, states[1])
    dist.barrier()
    assert digest(good.load_checkpoint()) == digest(states[1]), "our own goes before it"


def test_a_training_goes_on_from_what_dlrover_has_left(ranks, tmp_path):
    ranks(2, migrated, tmp_path / "left")


def migrated_fsdp(rank, folder):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    from dlrover_slurm import UnsupportedError, compat

    model, optimizer = build("fsdp2")
    train(model, optimizer, 2)
    whole = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        left(folder, 40, [{"model": whole[0], "optimizer": whole[1], "epoch": 4}])
    dist.barrier()
    other, other_optimizer = build("fsdp2", seed=7)
    with pytest.warns(UserWarning, match="40/rank_0.pt is loaded"):
        assert compat.FsdpFullCheckpointer(str(folder)).load_checkpoint(other, other_optimizer) == {"epoch": 4}
    assert states(other, other_optimizer) == states(model, optimizer)
    with pytest.raises(UnsupportedError, match="left/40, which DLRover has left.*FsdpFullCheckpointer.*dlrover ckpt import"):
        compat.FsdpShardCheckpointer(str(folder)).load_checkpoint(other, other_optimizer)


def test_an_fsdp_training_does_not_begin_anew_beside_what_dlrover_has_left(ranks, tmp_path):
    ranks(2, migrated_fsdp, tmp_path / "left")


# ---- a program for DLRover 0.6.1 needs no other change: names, order and defaults of its parameters ----

_OPTIONS = {"comm_backend": "", "deletion_strategy": None, "save_timeout": 600}
_FSDP = {
    "__init__": {"checkpoint_dir": ..., **_OPTIONS},
    "save_checkpoint": {"step": ..., "model": ..., "optimizer": ..., "extra_sd": {}, "path": "", "storage_type": "DISK"},
    "load_checkpoint": {"model": ..., "optimizer": ..., "resume_path": ""},
    "wait_latest_checkpoint": {"timeout": 1800},
}
DLROVERS = {
    "DdpCheckpointer": {
        "__init__": {"checkpoint_dir": ..., "local_shard_num": 1, "global_shard_num": 1, **_OPTIONS, "replica_count": 0},
        "save_checkpoint": {"step": ..., "state_dict": ..., "path": "", "storage_type": "DISK"},
        "load_checkpoint": {"resume_path": ""},
        "wait_latest_checkpoint": {"timeout": 1800},
    },
    "FsdpShardCheckpointer": _FSDP,
    "FsdpFullCheckpointer": _FSDP,
}


@pytest.mark.parametrize("name", DLROVERS)
def test_parameters_are_dlrovers(name):
    from dlrover_slurm import compat

    for method, wanted in DLROVERS[name].items():
        parameters = list(inspect.signature(getattr(getattr(compat, name), method)).parameters.values())[1:]
        assert [p.name for p in parameters[: len(wanted)]] == list(wanted), method
        assert all(p.default is not p.empty for p in parameters[len(wanted) :]), "what we have more is optional"
        for parameter, default in zip(parameters, wanted.values()):
            given = getattr(parameter.default, "name", parameter.default)
            assert (parameter.default is parameter.empty) == (default is ...)
            assert default is ... or given == default or (default == {} and given is None), (method, parameter)
    assert [kind.name for kind in compat.StorageType] == ["MEMORY", "DISK"]


#: Of the real package: as DLROVERS has it.
ASK_DLROVER = """
import enum, inspect, json
from dlrover.trainer.torch.flash_checkpoint import checkpointer, ddp, fsdp

def default_of(parameter):
    if parameter.default is parameter.empty:
        return "required"
    return parameter.default.name if isinstance(parameter.default, enum.Enum) else parameter.default

def parameters_of(function):
    return [[p.name, default_of(p), p.kind.name] for p in list(inspect.signature(function).parameters.values())[1:]]

classes = [ddp.DdpCheckpointer, fsdp.FsdpShardCheckpointer, fsdp.FsdpFullCheckpointer]
methods = {c.__name__: {n: parameters_of(m) for n, m in inspect.getmembers(c, inspect.isfunction) if n == "__init__" or n[0] != "_"} for c in classes}
print(json.dumps({"methods": methods, "storage": [[kind.name, kind.value] for kind in checkpointer.StorageType]}))
"""
BENCH_VENV = os.environ.get("DLROVER_BENCH_VENV") or str(BUILD / "bench-venv")


@nightly
@pytest.mark.skipif(not os.path.exists(f"{BENCH_VENV}/bin/python"), reason="no environment with DLRover: name one in DLROVER_BENCH_VENV (bench/ckpt_save --dlrover makes it)")
def test_what_is_called_dlrovers_is_the_packages():
    from dlrover_slurm import compat

    done = subprocess.run([f"{BENCH_VENV}/bin/python", "-W", "ignore", "-c", ASK_DLROVER], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    wanted = {
        name: {method: [[p, "required" if default is ... else default, "POSITIONAL_OR_KEYWORD"] for p, default in parameters.items()] for method, parameters in methods.items()}
        for name, methods in DLROVERS.items()
    }
    assert found["methods"] == wanted
    assert found["storage"] == [[kind.name, kind.value] for kind in compat.StorageType]


def test_a_strategy_of_deleting_is_told_to_have_no_effect():
    from dlrover_slurm import compat

    for name in DLROVERS:
        with pytest.warns(UserWarning, match="--dlrover-ckpt-keep"):
            getattr(compat, name)("/nonexistent", deletion_strategy=object())


READY = """
import sys, time, torch, torch.distributed as dist
import dlrover_slurm
from dlrover_slurm import compat, dcp

def mapped():
    "bytes of checkpoint memory in this process, by what its mappings are called"
    sizes = {}
    for line in open("/proc/self/maps"):
        if "/memfd:dlrover" in line:
            begin, end = line.split()[0].split("-")
            name = line.split("/memfd:")[1]
            sizes[name] = sizes.get(name, 0) + int(end, 16) - int(begin, 16)
    return sum(sizes.values())

dist.init_process_group("gloo")
model = torch.nn.Linear(2048, 1024)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

def state():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

if sys.argv[1] == "load":
    assert dlrover_slurm.load() is None
    save = lambda: dlrover_slurm.save(1, state(), replicated=True)
elif sys.argv[1] == "dcp":
    assert dcp.load({}) is None
    save = lambda: dcp.save(1, state(), replicated=True)
else:
    checkpointer = compat.DdpCheckpointer("/nonexistent/checkpoints", global_shard_num=int(sys.argv[1]))
    checkpointer.load_checkpoint()
    save = lambda: checkpointer.save_checkpoint(1, state(), storage_type=compat.StorageType.MEMORY)
before = mapped()
for step in range(2):
    model(torch.ones(2048)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
ready = mapped()
saved = save()
print(dist.get_rank(), "mapped", before, ready, mapped(), saved, flush=True)
dist.destroy_process_group()
"""


@needs_memory
@pytest.mark.parametrize("way, parts", [("1", 1), ("2", 2), ("load", 1), ("dcp", 1)])
def test_memory_is_made_ready_behind_the_first_step(tmp_path, way, parts):
    """Of 16 MiB each rank keeps half where both ranks hold the same; three slots."""
    script = tmp_path / "program.py"
    script.write_text(READY)
    said = re.findall(r"^\d mapped (\d+) (\d+) (\d+) True$", standalone(2, script, way).stdout, re.M)
    assert len(said) == 2
    keeps = (16 << 20) * parts // 2
    for before, ready, after in (map(int, numbers) for numbers in said):
        assert ready - before >= 3 * keeps
        assert ready - before < 3 * (keeps + (8 << 20))
        assert after == ready, "the save had to make memory"


def too_large(rank):
    import warnings

    from dlrover_slurm import DlroverError, _session, compat

    def refuse(size, tensors):
        raise DlroverError(f"{size} bytes do not fit")

    _session.prepare_bytes = refuse
    checkpointer = compat.FsdpFullCheckpointer("/nonexistent/checkpoints")
    parameter = torch.nn.Parameter(torch.zeros(100))
    parameter.grad = torch.ones(100)
    optimizer = torch.optim.SGD([parameter], 0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.step()
        optimizer.step()
    assert [str(each.message) for each in told if "made ready" in str(each.message)] == ["no memory was made ready for checkpoints: 656 bytes do not fit"]
    assert parameter[0].item() == pytest.approx(-0.2)
    _session.prepare_bytes = lambda size, tensors: (_ for _ in ()).throw(NotImplementedError())
    with pytest.warns(UserWarning, match="made ready for checkpoints: NotImplementedError"):
        torch.optim.SGD([parameter], 0.1).step()
    del checkpointer  # who has none does not save
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.optim.SGD([parameter], 0.1).step()


def test_what_fails_is_a_warning_behind_the_first_step(ranks):
    ranks(1, too_large, group=False)
