# SPDX-License-Identifier: Apache-2.0
"""A rank saves and loads by itself: the others take no part in it, stand still meanwhile, or are dead."""

import os
import pathlib
import signal
import time

import pytest
import torch
import torch.distributed as dist
from models import digest, local, train
from ranks import Killed
from stored import BUILD, LINEAGE, Stored, make, needs_programs, put_back, state_of, trained, whole

DEADLINE = 25  # seconds; who waits for a rank that takes no part waits for ever
FAULTS = BUILD / "tests" / "system" / "faults" / ".libs" / "libdlrover.so"
needs_faults = pytest.mark.skipif(not FAULTS.exists(), reason="the library with the points of failure is not built here: make fault-programs")


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {DEADLINE} s"
        time.sleep(0.01)


def others_wait(rank, acting, done, act):
    """One rank acts; the others are in no call of torch's meanwhile."""
    dist.barrier()
    if rank != acting:
        wait_for(done.exists, f"rank {acting} by itself")
        return None
    result = act()
    done.touch()
    return result


def wide(seed):
    """Of each rank more than is copied by one call."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(torch.full((1 << 21,), float(seed)), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def first_step(rank):
    """Saved by all; the state, what was saved, and a state of other values to load into."""
    from dlrover_slurm import dcp

    state, target = ({**state_of(*trained("fsdp2", seed=seed)), "wide": wide(seed)} for seed in (1, 7))
    assert dcp.save(0, state)
    saved = digest(state)
    assert digest(target) != saved
    change(state)
    assert digest(state) != saved
    return state, saved, target


def change(state):
    with torch.no_grad():
        for value in state["model"].values():
            local(value).add_(1)


def save_and_load(step, state, saved, target):
    """Another step; it is of no use while the others have not saved it, so the first is what is loaded."""
    from dlrover_slurm import dcp

    assert dcp.save(step, state)
    assert dcp.load(target) == 0
    assert digest(target) == saved
    change(target)


def alone(rank, done):
    state, saved, target = first_step(rank)
    return others_wait(rank, 0, done, lambda: save_and_load(1, state, saved, target) or "done")


def test_one_rank_saves_and_loads_while_the_other_waits_for_a_file(ranks, tmp_path):
    assert ranks(2, alone, tmp_path / "done") == ["done", None]
    files = [sorted(path.name for path in (tmp_path / "checkpoints" / f"rank-{rank}").glob("step-*")) for rank in (0, 1)]
    assert files == [["step-0.dlrover", "step-1.dlrover"], ["step-0.dlrover"]]


# ---- from storage, in a world of another size ----


def save_for_storage(rank):
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    model, optimizer = trained("fsdp2")
    assert dcp.save(1, state_of(model, optimizer))
    return whole(model, optimizer)


def alone_from_storage(rank, done, folder, saved):
    from dlrover_slurm import dcp

    model, optimizer = make("fsdp2", seed=7)
    train(model, optimizer, 1)
    state = state_of(model, optimizer)
    others_wait(rank, 1, done, lambda: dcp.load(state, folder=folder))
    if rank != 1:
        assert dcp.load(state, folder=folder) == 1
    put_back(model, optimizer, state)
    assert whole(model, optimizer) == saved


@needs_programs
def test_one_of_three_ranks_loads_what_two_saved(ranks, tmp_path):
    stored = Stored(tmp_path)
    saved, _ = ranks(2, save_for_storage)
    ranks(3, alone_from_storage, tmp_path / "done", str(stored.put().folder), saved)


# ---- in the midst of a save ----


def state_of_process(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def beside_a_dead_rank(rank, place):
    """Rank 1 stops when some blocks of its save are copied, and is killed there. The other saves and loads while it stands still, and once it is dead."""
    from dlrover_slurm import dcp

    if rank == 1:
        os.environ["DLROVER_LIBRARY"] = str(FAULTS)
    state, saved, target = first_step(rank)
    dist.barrier()
    if rank == 1:
        place.with_suffix(".new").write_text(str(os.getpid()))
        place.with_suffix(".new").rename(place)
        os.environ["DLROVER_FAULT"] = "mid_copy:5:stop"
        dcp.save(1, state)
        raise AssertionError("it was to stop in this save")
    wait_for(place.exists, "rank 1 saves")
    pid = int(place.read_text())
    wait_for(lambda: state_of_process(pid) == "T", "rank 1 stops in its save")
    signal.alarm(DEADLINE)
    save_and_load(1, state, saved, target)
    assert state_of_process(pid) == "T"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: state_of_process(pid) in ("Z", "gone"), "rank 1 is dead")
    save_and_load(2, state, saved, target)
    return "done"


@needs_faults
def test_a_rank_killed_in_the_midst_of_its_save_holds_nobody_up(ranks, tmp_path):
    result, dead = ranks(2, beside_a_dead_rank, tmp_path / "pid")
    assert result == "done" and isinstance(dead, Killed) and dead.signal == signal.SIGKILL
    files = [sorted(path.name for path in (tmp_path / "checkpoints" / f"rank-{rank}").glob("step-*")) for rank in (0, 1)]
    assert files == [["step-0.dlrover", "step-2.dlrover"], ["step-0.dlrover"]]
