# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with tensors on a GPU, without one: tests/fakes/fake_gpu.py says how."""

import contextlib
import json
import os
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from fake_gpu import LARGE, OnStreams, Sgd, assert_same, copy_of, held, installed, needs_driver, ramp
from models import build, digest, train
from stored import Stored, needs_programs, ranks_of_a_node
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

pytestmark = needs_driver


def loaded(state, **named):
    """What is in memory of a flat state: its step and the tensors."""
    from dlrover_slurm import dcp

    target = {name: torch.full_like(value, -1) if isinstance(value, torch.Tensor) else None for name, value in state.items()}
    return dcp.load(target, **named), target


def mixture(gpu):
    """All kinds of memory, what can not be copied in place, and what the table can not say."""
    return {
        "host": ramp(1000), "small": gpu.weights(ramp(10)), "large": gpu.weights(ramp()), "other": gpu.weights(ramp(first=7), 1), "half": gpu.weights(ramp().bfloat16()),
        "turned": gpu.weights(ramp(6000).reshape(60, 100)).t(), "deep": gpu.put(torch.ones((1,) * 18)), "empty": torch.empty(0, 3), "n": 3, "text": "x" * 5000,
    }  # fmt: skip


IN_PLACE = ("small", "large", "other", "half", "deep")


def all_kinds(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    with installed() as gpu:
        state = mixture(gpu)
        saves = [
            lambda: dcp.save(0, state, stage=False),
            lambda: dcp.save(1, state),
            lambda: torch_dcp.save(state, storage_writer=dcp.MemoryWriter(2)),
            lambda: torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(3)).result(),
        ]
        for step, save in enumerate(saves):
            copied = len(gpu.copies())
            save()
            assert dlrover_slurm.wait_saved() is (step == 1)
            assert sum(gpu.copies()[copied:]) == sum(state[name].nbytes for name in IN_PLACE)
            found, target = loaded(state)
            assert found == step and digest(target) == digest(state)


def test_all_kinds_of_memory_at_once(ranks):
    ranks(1, all_kinds)


def held_back(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    with installed() as gpu, held() as gate:
        state = {"weights": gpu.weights(ramp()), "again": gpu.weights(ramp(first=5)), "running_mean": gpu.weights(ramp(first=9)), "counter": gpu.put(torch.zeros(1))}
        state["tied"] = state["weights"]
        before = copy_of(state)
        assert dcp.save(1, state)
        assert sum(gpu.copies()) == 3 * LARGE + 4, "what is tied is copied once"
        gpu.launch_fill(state["running_mean"], 2.0)  # torch counts neither
        gpu.launch_fill(state["counter"], 2.0)
        gpu.synchronize()
        Sgd(gpu, [state["weights"], state["again"]], 9.0).step()
        assert state["tied"].eq(9.0).all() and state["counter"].eq(2.0).all()
        gate.set()
        assert dlrover_slurm.wait_saved()
        found, target = loaded(state)
        assert found == 1
        assert_same(target, before)


def test_an_optimizers_step_waits_on_the_gpu(ranks):
    ranks(1, held_back, group=False)


def changed(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    with installed() as gpu, held() as gate:
        state = {"model": {"head": gpu.weights(ramp())}}
        assert dcp.save(1, state)
        state["model"]["head"].mul_(0.5)
        gate.set()
        with pytest.raises(dlrover_slurm.ChangedError, match=r"step 1 .* model\.head was changed .*wait_staged"):
            dlrover_slurm.wait_saved()
        assert dcp.latest_step() is None
        gate.clear()
        before = state["model"]["head"].clone()
        assert dcp.save(2, state)
        with OnStreams(gpu):
            state["model"]["head"].mul_(0.5)
        gate.set()
        assert dlrover_slurm.wait_saved()
        found, target = loaded({"model.head": before})
        assert found == 2 and torch.equal(target["model.head"], before)


def test_a_change_that_nobody_announced_gives_the_save_up(ranks):
    ranks(1, changed, group=False)


def waited_for(rank):
    """Who loads, or asks for the step, does so behind the seal."""
    from dlrover_slurm import dcp

    with installed() as gpu:
        state = {"x": gpu.weights(ramp())}
        for step, ask in enumerate((lambda: loaded(state)[0], dcp.latest_step)):
            with held() as gate:
                threading.Timer(0.2, gate.set).start()
                assert dcp.save(step, state)
                assert ask() == step


def test_a_load_waits_for_the_save_under_way(ranks):
    ranks(1, waited_for, group=False)


def refused(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    with installed() as gpu:
        state = {"x": gpu.weights(ramp())}
        gpu.fake.fake_cuda_refuse_registration(0)
        assert dcp.save(1, state) and dlrover_slurm.wait_saved()
        assert dcp.save(2, state) and dlrover_slurm.wait_saved()
        assert loaded(state)[0] == 2 and torch.equal(loaded(state)[1]["x"], state["x"])
        assert all(line.endswith("ring") for line in gpu.log() if line.startswith("cuMemcpyDtoHAsync"))

        gpu.fake.fake_cuda_begin_capture(gpu.streams[0])
        for save in (lambda: dcp.save(3, state), lambda: torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(3))):
            with pytest.raises((dlrover_slurm.InvalidError, CheckpointException), match="CUDA graph"):
                save()
        assert gpu.fake.fake_cuda_end_capture(gpu.streams[0]) == 0

        gpu.fake.fake_cuda_fail_copy(0)
        assert dcp.save(4, state)
        with pytest.raises(dlrover_slurm.DlroverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            dlrover_slurm.wait_saved()
        gpu.fake.fake_cuda_fail_copy(0)
        with pytest.raises(CheckpointException, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            torch_dcp.save(state, storage_writer=dcp.MemoryWriter(5))
        gpu.fake.fake_cuda_fail_copy(0)
        with pytest.raises(CheckpointException, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(6)).result()
        assert dcp.latest_step() == 2
        assert dcp.save(7, state) and loaded(state)[0] == 7


def test_what_the_driver_refuses(ranks):
    ranks(1, refused)


class Halving(DefaultSavePlanner):
    """Makes what it saves, on the GPU."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def transform_object(self, write_item, object):
        return super().transform_object(write_item, self._gpu.put(object * 0.5))


def made_by_the_planner(rank):
    """Nothing of it is left on the GPU: it is copied by torch, at once."""
    import dlrover_slurm
    from dlrover_slurm import dcp

    with installed() as gpu:
        state = {"x": gpu.weights(ramp())}
        assert dcp.save(1, state, planner=Halving(gpu)) and not dlrover_slurm.wait_saved()
        assert gpu.copies() == [] and torch.equal(loaded(state)[1]["x"], ramp() * 0.5)


def test_what_a_planner_makes(ranks):
    ranks(1, made_by_the_planner, group=False)


# ---- async_save ----


def asynchronous(rank):
    from dlrover_slurm import dcp

    with installed() as gpu:
        weights, head = gpu.weights(ramp()), gpu.weights(ramp(first=3))
        state = {"weights": weights, "head": head}
        with held() as gate:
            future = torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(1, ledger="here"))
            Sgd(gpu, [weights], 9.0).step()
            assert weights.eq(9.0).all() and not future.done()
            gate.set()
            future.result()
        reader = dcp.MemoryReader()
        found, target = loaded(state, reader=reader)
        assert found == 1 and reader.ledger == "here"
        assert_same(target, {"weights": ramp(), "head": ramp(first=3)})

        with held() as gate:
            future = torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(2))
            head.mul_(2)
            gate.set()
            with pytest.raises(CheckpointException, match="step 2 is given up: head was changed"):
                future.result()
        assert dcp.latest_step() == 1

        writer = dcp.MemoryWriter(3)
        with held() as gate:
            future = torch_dcp.async_save(state, storage_writer=writer)
            before = copy_of(state)
            writer.synchronize_staging()  # nothing where the background thread has it already; then it is for all of them
            dlrover_wait_staged()
            weights.zero_()
            gate.set()
            future.result()
        found, target = loaded(state)
        assert found == 3
        assert_same(target, before)


def dlrover_wait_staged():
    import dlrover_slurm

    dlrover_slurm.wait_staged()


def test_async_save(ranks):
    ranks(1, asynchronous)


@contextlib.contextmanager
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def given_up(rank):
    """Staged and never written, because torch's planning failed."""
    import dlrover_slurm
    from dlrover_slurm import _session, dcp

    with installed() as gpu:
        state = {"x": gpu.weights(torch.zeros(LARGE * 8 // 4))}  # more than the ring takes at once
        first, second = dcp.MemoryWriter(1), dcp.MemoryWriter(2)
        first.stage(state)
        first.close()
        assert _session._sealing.staging is None
        state["x"].add_(1)
        with without_warnings():
            second.stage(state)
        second.synchronize_staging()
        state["x"].add_(1)
        with pytest.warns(UserWarning, match="step 2 was not saved: another save came before async_save"):
            assert dcp.save(3, state, stage=False)
        state["x"].add_(1)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, None, True)
        second.write_data(second.prepare_local_plan(planner.create_local_plan()), planner)
        assert second.skipped and not dlrover_slurm.wait_saved()
        found, target = loaded(state)
        assert found == 3 and target["x"].eq(2).all()
        last = dcp.MemoryWriter(4)
        last.stage(state)
        assert loaded(state)[0] == 3, "a load leaves it alone"
        with pytest.warns(UserWarning, match="step 4 was not saved"):
            _session._close(_session._session)


def test_what_is_staged_and_never_written(ranks):
    ranks(1, given_up, group=False)


def bad_ledger(rank):
    """Refused when it is sealed: the copies are stopped and the next save goes on."""
    import dlrover_slurm
    from dlrover_slurm import dcp

    with installed() as gpu:
        state = {"x": gpu.weights(ramp())}
        for step, ledger in enumerate([b"x" * (65 << 10), object()]):
            with pytest.raises(dlrover_slurm.InvalidError):
                dcp.save(step, state, ledger=ledger)
        with without_warnings():
            assert dcp.save(2, state) and dlrover_slurm.wait_saved()


def test_a_ledger_that_is_refused(ranks):
    ranks(1, bad_ledger, group=False)


# ---- several ranks ----


def shards(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with installed() as gpu, held() as gate:
        local, whole = gpu.weights(ramp(first=rank).reshape(-1, 1024)), gpu.weights(ramp(first=7))
        state = {"shard": DTensor.from_local(local, mesh, [Shard(0)]), "whole": DTensor.from_local(whole, mesh, [Replicate()], run_check=False)}
        before = digest(state)
        assert dcp.save(1, state)
        assert sum(gpu.copies()) == 2 * LARGE
        Sgd(gpu, [local, whole], 9.0).step()
        assert digest(state) != before
        gate.set()
        assert dlrover_slurm.wait_saved()
        gate.clear()
        assert dcp.save(2, state)
        state["shard"].mul_(2)
        gate.set()
        with pytest.raises(dlrover_slurm.ChangedError, match="shard was changed"):
            dlrover_slurm.wait_saved()
        dist.barrier()
        assert dcp.load(state) == 1 and digest(state) == before


def test_shards(ranks):
    ranks(2, shards)


def versions_of(state):
    return {name: value._version for name, value in tensors_in(state)}


def tensors_in(state, path=""):
    for name, value in state.items():
        if isinstance(value, dict):
            yield from tensors_in(value, f"{path}{name}.")
        elif isinstance(value, torch.Tensor) and value.dim():
            yield f"{path}{name}", value


def counted(rank, kind):
    """What the check for changes relies on: a forward and a backward pass count no change in what a state holds of the model and its optimizer, a step counts
    one in all that it changes."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = build(kind)
    train(model, optimizer, 1)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    before = versions_of(state)
    model(torch.ones(4, 7)).sum().backward()
    assert versions_of(state) == before
    optimizer.step()
    same = [name for name, version in versions_of(state).items() if version == before[name]]
    assert same == ["model.frozen.weight", "model.frozen.bias"]


@pytest.mark.parametrize("kind, count", [("ddp", 2), ("fsdp2", 2), ("tp", 2), ("hsdp", 4)])
def test_changes_that_torch_counts(ranks, kind, count):
    ranks(count, counted, kind)


def save_alike(rank, sockets, environment):
    """How many bytes this rank copied from its GPU, and what it had said of shared tensors before the first copy."""
    import dlrover_slurm
    from dlrover_slurm import _session, dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    os.environ.update(environment, DLROVER_SOCKET=sockets[rank])
    mesh = init_device_mesh("cpu", (2,))
    with installed() as gpu, held() as gate:
        tensors = [gpu.weights(ramp(first=i)) for i in range(4)]
        state = {f"plain{i}": tensor for i, tensor in enumerate(tensors[:2])}
        state.update({f"dtensor{i}": DTensor.from_local(t, mesh, [Replicate()], run_check=False) for i, t in enumerate(tensors[2:])})
        said, add = [], _session.Saving.add_shared
        _session.Saving.add_shared = lambda self, shared: (said.append((sum(lines.count for lines in shared._lines), gpu.copies())), add(self, shared))
        assert dcp.save(7, state, replicated=True)
        Sgd(gpu, tensors, 9.0).step()
        gate.set()
        assert dlrover_slurm.wait_saved()
        return sum(gpu.copies()), said[0]


def load_alike(rank, environment):
    from dlrover_slurm import dcp

    os.environ.update(environment)
    target = {f"{kind}{i}": torch.zeros(LARGE // 4) for kind in ("plain", "dtensor") for i in range(2)}
    assert dcp.load(target) == 7
    assert_same(target, {f"{kind}{i}": ramp(first=i + 2 * (kind == "dtensor")) for kind in ("plain", "dtensor") for i in range(2)})


@needs_programs
def test_what_ranks_of_a_node_hold_alike_is_copied_by_one_of_them(ranks, tmp_path):
    stored = Stored(tmp_path)
    with ranks_of_a_node(2, stored.folder) as (sockets, environment):
        assert ranks(2, save_alike, sockets, environment) == [(2 * LARGE, (4, []))] * 2
    about = json.loads(stored.manifest().read_text())
    assert 4 * LARGE <= sum(entry["bytes"] for entry in about["ranks"]) < 4.5 * LARGE
    with stored.offered() as environment:
        ranks(1, load_alike, environment, group=False)


# ---- another library's training ----


def with_batch_norm(rank):
    """Through torch's get_state_dict, with OnStreams: a step of training after the save."""
    import dlrover_slurm
    from dlrover_slurm import dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    with installed() as gpu, held() as gate:
        model = gpu.move(torch.nn.Sequential(torch.nn.Linear(600, 700), torch.nn.BatchNorm1d(700), torch.nn.Linear(700, 500)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state}
            before = digest(state)
            gate.clear()
            assert dcp.save(1, state)
            with OnStreams(gpu):
                model(gpu.put(torch.randn(9, 600))).sum().backward()
                optimizer.step()
            assert digest(state) != before
            gate.set()
            assert dlrover_slurm.wait_saved()
            assert dcp.load(state) == 1 and digest(state) == before


def test_a_training_with_batch_norm(ranks):
    ranks(1, with_batch_norm, group=False)
