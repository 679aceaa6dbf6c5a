# SPDX-License-Identifier: Apache-2.0
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from ranks import Failed, Killed, Ranks
from models import build, digest, train
from stored import busy_slots, needs_programs, served
from torch.distributed.checkpoint.api import CheckpointException

from dlrover_slurm import InvalidError


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


# ---- killed and resumed ----


def run(rank, kind, steps, kill):
    """Trains with a checkpoint after every step; ``kill``: (step, rank, where). The losses from where it went on."""
    from dlrover_slurm import _session, dcp

    model, optimizer = build(kind)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    state = {**state_of(model, optimizer), "scheduler": scheduler.state_dict()}
    last = dcp.load(state)
    if last is not None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
    losses = {}
    for step in range(0 if last is None else last + 1, steps):
        losses[step] = train(model, optimizer, 1, step, data_rank=rank)
        scheduler.step()
        if kill is not None and step == kill[0]:
            die_in_save(_session.Saving, *kill[1:], rank)
        assert dcp.save(step, {**state_of(model, optimizer), "scheduler": scheduler.state_dict()})
    return losses


def die_in_save(saving, victims, where, rank):
    if rank in victims:
        setattr(saving, where, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize("kind, count, victims, where", [
    ("ddp", 2, [1], "commit"), ("ddp", 2, [0, 1], "add_host"), ("fsdp2", 2, [1], "commit"), ("fsdp2", 2, [0, 1], "add_host"), ("hsdp", 4, [3], "add_host"),
])  # fmt: skip
def test_losses_as_without_the_interruption(ranks, tmp_path, kind, count, victims, where):
    """Killed in the middle of the save of step 3, one rank or all: they go on from step 2, which all have."""
    alone = Ranks(tmp_path / "alone")(count, run, kind, 6, None)
    killed = ranks(count, run, kind, 6, (3, victims, where), may_fail=True)
    for rank, result in enumerate(killed):
        assert isinstance(result, Killed if rank in victims else (Killed, Failed)), result
    resumed = ranks(count, run, kind, 6, None)
    for mine, whole in zip(resumed, alone):
        assert sorted(mine) == [3, 4, 5]
        assert mine == {step: whole[step] for step in mine}


def save_beside_a_death(rank, died):
    """Rank 1 is killed when its bytes are copied and not sealed. Rank 0 saves meanwhile, the others afterwards; how long each of two saves took."""
    from dlrover_slurm import _session, dcp

    begun = died.with_name("begun")
    state = {"weights": torch.full((1 << 18,), float(rank)), "epoch": 3}
    assert dcp.save(0, state)
    if rank == 1:
        add = _session.Saving.add_host

        def die(saving, batch):
            begun.touch()
            add(saving, batch)
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        _session.Saving.add_host = die
    while rank != 1 and not (begun if rank == 0 else died).exists():
        time.sleep(0.001)
    took = []
    for step in (1, 2):
        since = time.monotonic()
        assert dcp.save(step, state)
        took.append(time.monotonic() - since)
    return took


def test_a_death_in_a_save_holds_nobody_up(ranks, tmp_path):
    died = tmp_path / "died"
    results = ranks(4, save_beside_a_death, died, group=False)
    assert died.exists() and isinstance(results.pop(1), Killed)
    assert all(seconds < 4 for took in results for seconds in took), results  # a busy machine; who waits for a rank does so for ever
    saved = [sorted(path.name for path in (tmp_path / "checkpoints" / f"rank-{rank}").glob("step-*.dlrover")) for rank in range(4)]
    assert all("step-2.dlrover" in names for names in (saved[0], saved[2], saved[3])), saved
    assert saved[1] == ["step-0.dlrover"]


# ---- async_save ----


def asynchronous(rank):
    """The copy is made before async_save returns: what training changes afterwards is not in it."""
    from dlrover_slurm import dcp

    model, optimizer = build("fsdp2")
    train(model, optimizer, 1)
    for step in range(2):
        state = state_of(model, optimizer)
        saved = digest(state)
        future = torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(step, ledger={"at": step}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        future.result()
        dist.barrier()
        target = state_of(*build("fsdp2", seed=7))
        reader = dcp.MemoryReader()
        assert dcp.load(target, reader=reader) == step
        assert digest(target) == saved and reader.ledger == {"at": step}
    with pytest.raises(InvalidError, match="name the step"):
        torch_dcp.async_save(state, checkpoint_id="step-3", storage_writer=dcp.MemoryWriter())


def test_async_save(ranks):
    ranks(2, asynchronous)


# ---- what is in an object ----


def object_of(rank):
    from dlrover_slurm import _session, dcp
    from dlrover_slurm._dcp_object import parse

    model, _ = build("ddp")
    state = {"net": model.module.state_dict(), "half": torch.ones(3, dtype=torch.float16), "deep": {"list": [1, torch.ones(2)]}}
    torch_dcp.save(state, storage_writer=dcp.MemoryWriter(1))
    dist.barrier()
    opened = _session.Opened()
    layout, pieces = parse(opened.skeleton()), opened.pieces()
    raw = _raw_table(opened)
    assert layout.tensors["net.last.weight"].pieces == layout.tensors["net.first.weight"].pieces
    assert layout.paths["deep.list.1"] == ("deep", "list", 1)
    return sorted(raw), {name: replica for (name, replica) in raw}, len(pieces)


def _raw_table(opened):
    from ctypes import byref, c_uint64, c_void_p

    from dlrover_slurm._library import ChunkStruct, library

    info, data, size, found = ChunkStruct(), c_void_p(), c_uint64(), []
    for i in range(library().dlrover_restore_count(opened._restore)):
        assert library().dlrover_restore_chunk(opened._restore, i, byref(info), byref(data), byref(size)) == 0
        found.append((info.name.decode(), info.replica))
    return found


def test_tied_weights_are_saved_once_and_replicas_are_marked(ranks):
    first, second = ranks(2, object_of)
    names = [name for name, _ in first[0]]
    assert names == [name for name, _ in second[0]]
    assert "net.first.weight" in names and "net.last.weight" not in names and "half" in names
    for name in names:
        values = name in ("deep.list.0",)
        assert (first[1][name], second[1][name]) in ([(0, 0)] if values else [(0, 1), (1, 0)]), name


def every_dtype(rank):
    from dlrover_slurm import _dcp_object, dcp

    names = ["bool", "uint8", "int16", "int64", "uint64", "bfloat16", "float16", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
             "float8_e4m3fnuz", "float8_e5m2fnuz"]  # fmt: skip
    state = {name: torch.arange(12).reshape(3, 4).to(getattr(torch, name)) for name in names}
    state.update(scalar=torch.tensor(2.5), empty=torch.empty(0, 3), transposed=torch.arange(6.0).reshape(2, 3).t(),
                 deep=torch.ones((1,) * 18), value=None, text="x", names=["a", {"b": 1}], number=float("inf"))  # fmt: skip
    for step, batch_bytes in enumerate([1 << 20, 1]):  # 1: every tensor that has to be copied first ends a batch
        _dcp_object._BATCH_BYTES = batch_bytes
        assert dcp.save(step, state)
        target = {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0 for key, value in state.items()}
        target["names"] = ["", {"b": 0}]
        assert dcp.load(target) == step
        assert digest(target) == digest(state)


def test_dtypes_and_values(ranks):
    ranks(1, every_dtype, group=False)


def negated(rank):
    from dlrover_slurm import dcp

    assert dcp.save(1, {"x": torch._neg_view(torch.arange(3.0))})
    target = {"x": torch.zeros(3)}
    assert dcp.load(target) == 1 and target["x"].tolist() == [0, -1, -2]


def test_a_tensor_whose_memory_has_the_other_sign(ranks):
    ranks(1, negated, group=False)


def rng(rank):
    """Each rank has its own values back, which torch's own writer would keep of one rank only."""
    import random

    import numpy

    from dlrover_slurm import RngState, dcp

    def numbers():
        return random.random(), numpy.random.rand(), torch.rand(3).tolist()

    torch.manual_seed(rank)
    random.seed(rank)
    numpy.random.seed(rank)
    torch_dcp.save({"rng": RngState(), "rank": rank}, storage_writer=dcp.MemoryWriter(4))
    dist.barrier()
    expected = numbers()
    for load in (dcp.load, lambda s: torch_dcp.load(s, storage_reader=dcp.MemoryReader())):
        state = {"rng": RngState(), "rank": None}
        load(state)
        assert numbers() == expected and state["rank"] == rank
    return expected


def test_ranks_keep_their_own_values(ranks):
    first, second = ranks(2, rng)
    assert first != second


# ---- what is refused ----


def other_sharding(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    model, optimizer = build("fsdp2")
    assert dcp.save(1, {"model": model.state_dict()})
    dist.barrier()
    target = {"model": {key: torch.full_like(value.full_tensor(), 7) if hasattr(value, "full_tensor") else value
                        for key, value in model.state_dict().items()}}  # fmt: skip
    before = digest(target)
    with pytest.raises(dlrover_slurm.UnsupportedError, match="other world sizes and shardings come from a checkpoint on storage"):
        dcp.load(target)
    assert digest(target) == before
    with pytest.raises(CheckpointException, match="other world sizes and shardings"):
        torch_dcp.load(target, storage_reader=dcp.MemoryReader())
    with pytest.raises(dlrover_slurm.UnsupportedError, match="dlrover_slurm.dcp"):
        dlrover_slurm.load()
    with pytest.raises(RuntimeError, match="Missing key"):
        dcp.load({"other": torch.ones(1)})
    with pytest.raises(dlrover_slurm.NotFoundError, match="resume from step 1, not from 5"):
        reader = dcp.MemoryReader()
        reader.reset("run/5")
        reader.read_metadata()


def test_another_sharding_is_refused_before_anything_changes(ranks):
    ranks(2, other_sharding)


def not_ours(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    assert dcp.load({"x": torch.ones(1)}) is None and dcp.latest_step() is None
    dlrover_slurm.save(1, {"x": 1})
    with pytest.raises(dlrover_slurm.UnsupportedError, match="dlrover_slurm.load"):
        dcp.load({"x": 1})
    with pytest.raises(dlrover_slurm.InvalidError, match="no step"):
        dcp.MemoryWriter().reset("run/last")
    with pytest.raises(CheckpointException, match="which step"):
        torch_dcp.save({"x": 1}, storage_writer=dcp.MemoryWriter())


def test_what_is_not_ours(ranks):
    ranks(1, not_ours, group=False)


def save_one(rank):
    from dlrover_slurm import dcp

    model, _ = build("fsdp2")
    return dcp.save(1, {"model": model.state_dict()})


def load_one(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    model, _ = build("fsdp2")
    with pytest.raises(dlrover_slurm.DlroverError) as caught:
        dcp.load({"model": model.state_dict()})
    return str(caught.value)


def test_another_world_size(ranks):
    assert ranks(4, save_one) == [True] * 4
    for answer in ranks(2, load_one):
        assert "saved by 4 ranks, this world has 2" in answer


def skipped(rank):
    """A rank without a free slot does not hold up the others."""
    import dlrover_slurm
    from dlrover_slurm import _session, dcp

    state = {"x": torch.ones(3)}
    begin = _session.Saving.__init__

    def refuse(self, *_, **__):
        raise dlrover_slurm.SkippedError("no slot")

    if rank == 1:
        _session.Saving.__init__ = refuse
    writer = dcp.MemoryWriter(1)
    torch_dcp.save(state, storage_writer=writer)
    assert writer.skipped == (rank == 1)
    assert dcp.save(2, state) == (rank == 0)
    _session.Saving.__init__ = begin
    torch_dcp.save(state, checkpoint_id="3", storage_writer=writer)
    dist.barrier()
    assert not writer.skipped and dcp.latest_step() == 3


def test_a_skipped_save(ranks):
    ranks(2, skipped)


def waiting(rank, environment):
    """Of three slots two are written and one has the newest step."""
    from dlrover_slurm import dcp

    os.environ.update(environment)
    state = {"x": torch.ones(3)}
    assert dcp.save(1, state)

    def by_writer(step, wait):
        writer = dcp.MemoryWriter(step, wait=wait, storage=True)
        torch_dcp.save(state, storage_writer=writer)
        return not writer.skipped

    def asynchronously(step, wait):
        writer = dcp.MemoryWriter(step, wait=wait, storage=True)
        torch_dcp.async_save(state, storage_writer=writer).result()
        return not writer.skipped

    ways = [lambda step, wait: dcp.save(step, state, wait=wait, storage=True), by_writer, asynchronously]
    for step, save in enumerate(ways, 2):
        with busy_slots(2):
            assert not save(step, 0.0)
            assert not save(step, 0.1)
        with busy_slots(2, seconds=0.5):
            since = time.monotonic()
            assert save(step, 60.0)
            assert time.monotonic() - since > 0.3
    for refused in (lambda: dcp.save(9, state, wait=-1), lambda: dcp.MemoryWriter(9, wait="5")):
        with pytest.raises(InvalidError, match="wait is a number of seconds"):
            refused()


@needs_programs
def test_a_save_waits_for_a_slot(ranks):
    with served("with-storage") as (environment, said):
        ranks(1, waiting, environment)
    assert {line for line in said if line.startswith("step")} >= {"step 3 to storage", "step 4 to storage"}


def cached(rank):
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    from dlrover_slurm import dcp

    for step in range(3):
        state = {"x": torch.full((3,), float(step)), "step": step}
        torch_dcp.save(state, planner=DefaultSavePlanner(enable_plan_caching=True), storage_writer=dcp.MemoryWriter(step))
        dist.barrier()
        target = {"x": torch.zeros(3), "step": None}
        assert dcp.load(target) == step
        assert digest(target) == digest(state)


def test_plans_that_are_cached(ranks):
    ranks(2, cached)
