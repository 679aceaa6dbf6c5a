# SPDX-License-Identifier: Apache-2.0
"""Saves of tensors on a GPU: what is loaded is, to the bit, what they were when they were saved."""

import os
import random
import signal
import threading
import time
import warnings

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from ranks import Killed

MIB = 1 << 20
LONG_KERNEL = 400_000_000  # clock ticks: some 0.2 s


def ramp(count, dtype=torch.float32, first=0):
    return (torch.arange(first, first + count, device="cuda") % 251).to(dtype)


def as_bytes(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert state[name].dtype == value.dtype and state[name].shape == value.shape, name
            assert torch.equal(as_bytes(state[name]), as_bytes(value)), name
        else:
            assert state[name] == value, name


def copy_of(state):
    copies = {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    torch.cuda.synchronize()
    return copies


optimizers = []  # who is gone owns nothing


def owned(tensors):
    """By an optimizer that has stepped before: the copy may be under way when a save returns."""
    import dlrover_slurm

    dlrover_slurm.world()
    optimizer = torch.optim.SGD(tensors, lr=1.0)
    for tensor in tensors:
        tensor.grad = torch.zeros_like(tensor)
    optimizer.step()
    optimizers.append(optimizer)
    return optimizer


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool, torch.complex64, torch.complex128)  # fmt: skip


def all_kinds(rank):
    import dlrover_slurm
    from dlrover_slurm import dcp

    state = {f"large {dtype}": ramp(MIB, dtype) for dtype in DTYPES}
    state |= {f"small {dtype}": ramp(10, dtype) for dtype in DTYPES}
    state |= {"turned": ramp(6_000_000).reshape(2000, 3000).t(), "part": ramp(4 * MIB)[7 : 2 * MIB + 7], "wide": ramp(3).expand(5, 3), "number": torch.tensor(2.5, device="cuda"),
              "empty": torch.empty(0, 3, device="cuda"), "host": torch.arange(1000), "pinned": torch.arange(MIB).pin_memory(), "n": 3}  # fmt: skip
    owned([state["large torch.float32"], state["part"]])
    expected = copy_of(state)
    saves = [
        lambda step: dlrover_slurm.save(step, state, stage=False), lambda step: dlrover_slurm.save(step, state), lambda step: dcp.save(step, state, stage=False),
        lambda step: dcp.save(step, state), lambda step: torch_dcp.save(state, storage_writer=dcp.MemoryWriter(step)),
        lambda step: torch_dcp.async_save(state, storage_writer=dcp.MemoryWriter(step)).result(),
    ]  # fmt: skip
    for step, save in enumerate(saves * 2):
        save(step)
        dlrover_slurm.wait_saved()
        if step % len(saves) < 2:
            found = dlrover_slurm.load()
            assert found.step == step
            assert_same(found.state, expected)
            on_gpu = dlrover_slurm.load(map_location="cuda").state
            assert on_gpu["host"].is_cuda
            assert_same(on_gpu, expected)
        target = {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0 for name, value in state.items()}
        if step % len(saves) >= 2:
            assert dcp.load(target) == step
            assert_same(target, expected)


def test_every_type_by_every_way(everywhere):
    everywhere(1, all_kinds, group="gloo")


def held_back(rank):
    import dlrover_slurm

    state = {f"w{i}": ramp(16 * MIB, first=i) for i in range(4)} | {"buffer": ramp(2 * MIB), "counter": torch.zeros(1, device="cuda")}
    optimizer = owned([value for name, value in state.items() if name.startswith("w")])
    for step in range(6):  # the first ones through the ring, then straight
        before = copy_of(state)
        torch.cuda._sleep(LONG_KERNEL)
        begun = time.monotonic()
        assert dlrover_slurm.save(step, state)
        took = time.monotonic() - begun
        for tensor in optimizer.param_groups[0]["params"]:
            tensor.grad.fill_(1.0 + step)
        state["buffer"].add_(1)
        state["counter"].add_(1)
        optimizer.step()
        if step == 5:
            assert took < 0.15, f"the save waited for the GPU: {took:.3f} s"
        assert dlrover_slurm.wait_saved()
        found = dlrover_slurm.load()
        assert found.step == step
        assert_same(found.state, before)
        assert not torch.equal(state["w0"], before["w0"])
        del found
        time.sleep(0.3)  # the memory is registered behind the first ones


def test_an_optimizers_step_waits_on_the_gpu(everywhere):
    everywhere(1, held_back, group=None)


def uploaded(rank):
    """Through pinned memory, in pieces, by several threads; into memory that the program has just freed with work to do."""
    import dlrover_slurm
    from dlrover_slurm import _upload

    piece = _upload.PIECE_BYTES
    state = {str(size): ramp(size, torch.uint8, first=size) for size in (1, piece - 1, piece, piece + 1, 3 * piece + 17)} | {"turned": ramp(6_000_000).reshape(2000, 3000).t()}
    state |= {"tied": [ramp(4 * MIB)] * 2, "many": [ramp(64 * MIB, first=i) for i in range(6)]}
    flat = lambda values: {str(i): value for i, value in enumerate([*(v for k, v in sorted(values.items()) if k not in ("tied", "many")), *values["tied"], *values["many"]])}  # noqa: E731
    expected = copy_of(flat(state))
    assert dlrover_slurm.save(0, state, stage=False)
    del state
    for location in ("cuda", torch.device("cuda", 0), 0):
        garbage = [torch.empty(64 * MIB, device="cuda") for _ in range(6)]
        torch.cuda._sleep(LONG_KERNEL // 4)
        for tensor in garbage:
            tensor.fill_(9)
        del garbage, tensor
        with torch.inference_mode(location == 0):
            found = dlrover_slurm.load(map_location=location).state
            assert_same(flat(found), expected)
        assert found["tied"][0] is found["tied"][1]
        assert found["turned"].stride() == (1, 3000)
        del found


def test_restored_onto_the_gpu(ranks):
    ranks(1, uploaded, group=None)


def together(rank):
    import dlrover_slurm

    state = {f"w{i}": ramp(16 * MIB, first=50 * rank + i) for i in range(4)} | {"small": ramp(10, first=rank)}
    optimizer = owned([value for name, value in state.items() if name.startswith("w")])
    for step in range(6):
        before = copy_of(state)
        torch.cuda._sleep(LONG_KERNEL // 8)
        assert dlrover_slurm.save(step, state)
        for tensor in optimizer.param_groups[0]["params"]:
            tensor.grad.fill_(1.0 + rank)
        optimizer.step()
        assert dlrover_slurm.wait_saved()
        torch.distributed.barrier()  # a step counts when all have saved it
        found = dlrover_slurm.load(map_location="cuda")
        assert found.step == step
        assert_same(found.state, before)
        assert not torch.equal(state["w0"], before["w0"])
        del found
        torch.distributed.barrier()


def test_two_processes_on_one_gpu(everywhere):
    everywhere(2, together, group="gloo")


def changed(rank):
    import dlrover_slurm

    state = {"weights": ramp(16 * MIB)}
    owned([state["weights"]])
    before = copy_of(state)
    assert dlrover_slurm.save(0, {"weights": torch.zeros(MIB, device="cuda")}, stage=lambda name: True) and dlrover_slurm.wait_saved()  # all is made
    torch.cuda._sleep(5 * LONG_KERNEL)
    assert dlrover_slurm.save(1, state)
    state["weights"].mul_(0.5)  # nobody announced it
    with pytest.raises(dlrover_slurm.ChangedError, match="weights"):
        dlrover_slurm.wait_saved()
    assert dlrover_slurm.load().step == 0
    state["weights"].copy_(before["weights"])
    torch.cuda._sleep(LONG_KERNEL)
    assert dlrover_slurm.save(2, state)
    state["weights"].mul_(0.5)
    assert dlrover_slurm.wait_saved(), "one save is lost, not all"
    assert_same(dlrover_slurm.load().state, before)


def test_a_change_that_nobody_announced_gives_the_save_up(ranks):
    ranks(1, changed, group=None)


def announced(rank):
    import dlrover_slurm

    state = {"weights": ramp(16 * MIB)}
    owned([state["weights"]])
    for step in range(4):
        before = copy_of(state)
        torch.cuda._sleep(LONG_KERNEL // 4)
        assert dlrover_slurm.save(step, state)
        dlrover_slurm.wait_staged()
        state["weights"].mul_(0.5)
        assert dlrover_slurm.wait_saved()
        assert_same(dlrover_slurm.load().state, before)


def test_wait_staged(ranks):
    ranks(1, announced, group=None)


def streams(rank):
    """What is saved on a stream of the program's own is what that stream has been given."""
    import dlrover_slurm

    weights = ramp(16 * MIB)
    owned([weights])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for step in range(3):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG_KERNEL // 4)
            weights.fill_(step + 0.5)
            assert dlrover_slurm.save(step, {"weights": weights, "small": weights[:5]})
        assert dlrover_slurm.wait_saved()
        state = dlrover_slurm.load().state
        assert state["weights"].eq(step + 0.5).all() and state["small"].eq(step + 0.5).all()


def test_a_stream_of_the_programs_own(ranks):
    ranks(1, streams, group=None)


def freed(rank):
    """Memory of what is let go of stays until it is copied."""
    import dlrover_slurm

    for step in range(4):
        tensors = [ramp(16 * MIB, first=step + i) for i in range(3)]
        owned(tensors)
        expected = [copy_of({"t": tensor})["t"].cpu() for tensor in tensors]
        torch.cuda._sleep(LONG_KERNEL // 4)
        assert dlrover_slurm.save(step, tensors)
        del tensors
        torch.empty(64 * MIB, device="cuda").fill_(9)
        assert dlrover_slurm.wait_saved()
        for found, other in zip(dlrover_slurm.load().state, expected):
            assert torch.equal(found, other)


def test_tensors_that_are_freed_at_once(ranks):
    ranks(1, freed, group=None)


def captured(rank):
    import dlrover_slurm

    model = torch.nn.Linear(2048, 2048, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)
    data = torch.ones(64, 2048, device="cuda")
    dlrover_slurm.world()

    def train():
        optimizer.zero_grad(set_to_none=False)
        model(data).pow(2).mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
        with pytest.raises(dlrover_slurm.InvalidError, match="captured"):
            dlrover_slurm.save(1, {"model": model.state_dict()}, stage=False)
    for step in range(5):
        graph.replay()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        before = {name: copy_of(values) for name, values in (("model", state["model"]), ("moments", optimizer.state[model.weight]))}
        torch.cuda._sleep(LONG_KERNEL // 4)
        assert dlrover_slurm.save(step, state)
        graph.replay()  # is held back
        assert dlrover_slurm.wait_saved()
        found = dlrover_slurm.load().state
        assert_same(found["model"], before["model"])
        assert_same(found["optimizer"]["state"][0], before["moments"])
        assert not torch.equal(model.weight, before["model"]["weight"])


def test_a_step_that_is_a_graph(ranks):
    ranks(1, captured, group=None)


def registering_in_capture(rank):
    """The registration of new memory goes on in its thread while a graph is captured in the strictest mode."""
    import dlrover_slurm

    state = {"weights": ramp(256 * MIB)}
    owned([state["weights"]])
    other = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    assert dlrover_slurm.save(1, state)
    dlrover_slurm.wait_staged()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        other.add_(1)
        time.sleep(0.7)
    graph.replay()
    assert other.eq(2).all()
    assert dlrover_slurm.wait_saved()
    assert dlrover_slurm.save(2, state) and dlrover_slurm.wait_saved()
    assert_same(dlrover_slurm.load().state, state)


def test_memory_is_registered_while_a_graph_is_captured(ranks):
    ranks(1, registering_in_capture, group=None)


def forever(rank):
    import dlrover_slurm

    last = dlrover_slurm.load()
    if last is not None:
        for name, tensor in last.state.items():
            assert tensor.eq(last.step).all(), f"{name} is torn in step {last.step}: {tensor.unique()}"
    first = 0 if last is None else last.step + 1
    del last
    state = {f"w{i}": torch.empty(16 * MIB, device="cuda") for i in range(4)}
    optimizer = owned(list(state.values()))
    timer = threading.Timer(random.Random(os.getpid()).uniform(0.0, 1.0), lambda: os.kill(os.getpid(), signal.SIGKILL))
    for tensor in state.values():
        tensor.detach().fill_(first)
        tensor.grad.fill_(-1.0)
    for step in range(first, first + 1000):
        dlrover_slurm.save(step, state)
        if step == first + 2:
            timer.start()
        optimizer.step()
    return first


def test_killed_while_it_is_copied(ranks):
    """Never a mixture of steps, and it goes on."""
    for _ in range(15):
        assert isinstance(ranks(1, forever, group=None, may_fail=True)[0], Killed)

    def newest(rank):
        import dlrover_slurm

        return dlrover_slurm.load().step

    assert ranks(1, newest, group=None)[0] > 30


def by_allocator(rank, kind):
    import dlrover_slurm

    assert torch.cuda.get_allocator_backend() == ("cudaMallocAsync" if kind == "cudaMallocAsync" else "native")
    state = {"large": ramp(16 * MIB), "small": ramp(10), "bytes": ramp(MIB, torch.uint8)}
    optimizer = owned([state["large"]])
    for step in range(4):
        before = copy_of(state)
        torch.cuda._sleep(LONG_KERNEL // 8)
        assert dlrover_slurm.save(step, state)
        state["large"].grad.fill_(1.0)
        optimizer.step()
        assert dlrover_slurm.wait_saved()
        assert_same(dlrover_slurm.load().state, before)
        time.sleep(0.1)


@pytest.mark.parametrize("kind, settings", [("expandable", "expandable_segments:True"), ("cudaMallocAsync", "backend:cudaMallocAsync")])
def test_other_allocators(kind, settings, tmp_path):
    """torch reads its settings as it is loaded: a process of its own."""
    import subprocess
    import sys

    here = os.path.dirname(__file__)
    code = f"import sys; sys.path[:0] = [{here!r}, {os.path.dirname(here) + '/adapters'!r}, {os.path.dirname(os.path.dirname(here)) + '/python'!r}]; import test_saves; test_saves.by_allocator(0, {kind!r})"
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=settings, PYTORCH_ALLOC_CONF=settings, DLROVER_LOCAL_DIR=f"/dev/shm/{os.getpid()}-{kind}", RANK="0", WORLD_SIZE="1",
                       LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def waited(rank):
    """Memory is registered: a repeated save copies about as fast as into memory that torch has pinned."""
    import dlrover_slurm

    size = 2 << 30
    state = {"weights": torch.empty(size, dtype=torch.uint8, device="cuda")}
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def seconds(action):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        action()
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    def save(step):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dlrover_slurm.save(step, state, stage=lambda name: True)
        dlrover_slurm.wait_staged()

    ours, plain = [], []
    for step in range(10):
        ours.append(seconds(lambda: save(step)))
        plain.append(seconds(lambda: pinned.copy_(state["weights"], non_blocking=True)))
        assert dlrover_slurm.wait_saved()
        time.sleep(0.5)
    return min(ours[4:]), min(plain[4:])


def test_straight_into_checkpoint_memory(ranks):
    """A check that the ring is not used, not a measurement: that is bench/ckpt_gpu."""
    ours, plain = ranks(1, waited, group=None)[0]
    assert ours < 1.5 * plain, f"{ours:.4f} s, pinned {plain:.4f} s"
