# SPDX-License-Identifier: Apache-2.0
"""Saving tensors on a GPU, without one: tests/fakes/fake_gpu.py says how."""

import os
import pathlib
import weakref

import pytest

torch = pytest.importorskip("torch")
from fake_gpu import LARGE, OnStreams, Sgd, assert_same, copy_of, held, installed, ramp  # noqa: E402


@pytest.fixture
def gpu(dlrover):
    with installed() as made:
        yield made


@pytest.fixture
def gate():
    with held() as event:
        yield event


def test_all_kinds_of_memory_at_once(dlrover, gpu):
    state = {"host": ramp(1000), "small": gpu.weights(ramp(10)), "large": gpu.weights(ramp()), "other": gpu.weights(ramp(first=7), 1), "n": 3}
    for step, stage in enumerate((False, True)):
        assert dlrover.save(step, state, stage=stage)
        assert dlrover.wait_saved() is stage
        checkpoint = dlrover.load()
        assert checkpoint.step == step and checkpoint.state["n"] == 3
        for name in ("host", "small", "large", "other"):
            assert torch.equal(checkpoint.state[name], state[name]), name
    assert dlrover.wait_saved() is False


def test_the_same_tensors_again_and_again(dlrover, gpu):
    """From the second save on as it was planned for the first one, and what that planned holds no tensor."""
    tied = gpu.weights(ramp())
    state = {"tied": [tied, tied], "small": gpu.put(ramp(10)), "half": gpu.weights(ramp().bfloat16()), "host": ramp(1000), "parameter": torch.nn.Parameter(gpu.weights(ramp(first=5)))}
    flat = lambda values: {str(i): value for i, value in enumerate([*values["tied"], *(values[name] for name in sorted(set(values) - {"tied"}))])}  # noqa: E731
    for step in range(5):
        assert dlrover.save(step, state) and dlrover.wait_saved()
        loaded = dlrover.load().state
        assert_same(flat(loaded), flat(state))
        assert loaded["tied"][0] is loaded["tied"][1] and isinstance(loaded["parameter"], torch.nn.Parameter)
        with torch.no_grad():
            for value in flat(state).values():
                value.add_(1)
        if step == 2:
            state["small"] = gpu.put(ramp(10, first=4))
    gone = weakref.ref(state["small"])
    del state, loaded, value
    assert gone() is None


def test_behind_what_the_program_had_given_to_the_gpu(dlrover, gpu):
    large = gpu.weights(ramp())
    gpu.launch_fill(large, 5.0)
    assert dlrover.save(1, {"x": large})
    assert dlrover.load().state["x"].eq(5.0).all()


def test_an_optimizers_step_waits_on_the_gpu(dlrover, gpu, gate):
    weights = gpu.weights(ramp())
    optimizer = Sgd(gpu, [weights], 9.0)
    assert dlrover.save(1, {"x": weights})
    optimizer.step()
    assert weights.eq(9.0).all()
    gate.set()
    assert dlrover.wait_saved()
    assert torch.equal(dlrover.load().state["x"], ramp())


def test_without_the_fence_the_step_would_be_saved(dlrover, gpu, gate, monkeypatch):
    """What the tests above would see if nothing held the step back."""
    from dlrover_slurm import _session

    small_ring = gpu.weights(torch.zeros(LARGE * 8 // 4))  # more than the ring takes at once
    assert dlrover.save(1, {"x": small_ring})
    monkeypatch.setattr(_session, "fence_staged", lambda: None)
    Sgd(gpu, [small_ring], 9.0).step()
    gate.set()
    assert dlrover.wait_saved(), "torch's counter does not see what this kernel did"
    assert dlrover.load().state["x"].eq(9.0).any()


def test_a_change_that_nobody_announced_gives_the_save_up(dlrover, gpu, gate):
    assert dlrover.save(1, {"x": gpu.weights(ramp())}, stage=False)
    head = gpu.weights(ramp(first=3))
    assert dlrover.save(2, {"model": {"head": head}})
    head.mul_(0.5)
    gate.set()
    with pytest.raises(dlrover.ChangedError, match=r"step 2 .* model\.head was changed .*wait_staged"):
        dlrover.wait_saved()
    assert dlrover.load().step == 1
    assert dlrover.save(3, {"model": {"head": head}})
    assert torch.equal(dlrover.load().state["model"]["head"], head)


def test_dlrovers_checkpointer_does_not_wait_for_a_save_that_was_given_up(dlrover, gpu, gate):
    from dlrover_slurm.compat import DdpCheckpointer

    checkpointer = DdpCheckpointer("/nonexistent")
    head = gpu.weights(ramp())
    assert checkpointer.save_checkpoint(1, {"head": head})
    gate.set()
    assert checkpointer.wait_latest_checkpoint(30)
    gate.clear()
    assert checkpointer.save_checkpoint(2, {"head": head})
    head.mul_(0.5)
    gate.set()
    with pytest.warns(UserWarning, match="step 2 is not known to be on storage: its save was given up"):
        assert not checkpointer.wait_latest_checkpoint(30)


def test_what_was_changed_once_is_copied_at_once_from_then_on(dlrover, gpu, gate):
    """Else a program that changes something in each step would never save."""
    state = {"head": gpu.weights(ramp()), "gate": gpu.weights(ramp(first=5)), "weights": gpu.weights(ramp(first=9))}
    before = copy_of(state)
    assert dlrover.save(1, state)
    for name in ("head", "gate"):
        state[name].mul_(0.5)
    gate.set()
    with pytest.raises(dlrover.ChangedError, match="head was changed"):
        dlrover.wait_saved()
    gate.clear()
    before.update(copy_of(state))
    assert dlrover.save(2, state)
    with OnStreams(gpu):
        for name in ("head", "gate"):
            state[name].mul_(0.5)
    Sgd(gpu, [state["weights"]], 3.0).step()
    gate.set()
    assert dlrover.wait_saved()
    assert_same(dlrover.load().state, before)


def test_what_no_optimizer_owns_may_change_at_once(dlrover, gpu, gate):
    """An average, buffers, what a library of its own trains: torch does not see all of their changes."""
    state = {"weights": gpu.weights(ramp()), "ema": gpu.put(ramp(first=3)), "part": gpu.weights(ramp(first=5))[: LARGE // 8]}
    before = copy_of(state)
    assert dlrover.save(1, state)
    gpu.launch_fill(state["ema"], 2.0)
    Sgd(gpu, [state["weights"]], 9.0).step()
    gate.set()
    assert dlrover.wait_saved()
    assert_same(dlrover.load().state, before)


def test_which_memory_optimizers_own(gpu):
    from dlrover_slurm import _cuda, _optimizers

    weights, frozen = (gpu.move(torch.nn.Linear(800, 700), owned=False) for _ in range(2))
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1, momentum=0.9)

    def holds(tensor, more=0):
        return _optimizers.Owned(_cuda.SMALL_BYTES, _cuda.device_of).holds(tensor.data_ptr(), tensor.numel() * tensor.element_size() + more)

    assert not holds(weights.weight), "it has not stepped yet"
    optimizer.state[weights.weight]["momentum_buffer"] = gpu.put(torch.zeros(700, 800))
    _optimizers.note_step(optimizer)
    assert holds(weights.weight) and holds(weights.weight[3:600]) and holds(optimizer.state[weights.weight]["momentum_buffer"])
    assert not holds(weights.bias), "a small one"
    assert not holds(weights.weight, more=1) and not holds(frozen.weight)
    optimizer.train = optimizer.eval = lambda: None
    assert not holds(weights.weight), "one that has other weights for the evaluation"
    del optimizer.train, optimizer.eval
    assert holds(weights.weight)
    optimizer.__class__ = type("AdaLomo", (torch.optim.SGD,), {"__module__": "lomo_optim.adalomo"})
    assert not holds(weights.weight)
    del optimizer
    assert not holds(weights.weight)


def test_before_an_optimizers_first_step_nothing_is_under_way(dlrover, gpu, gate):
    model = gpu.move(torch.nn.Linear(1000, 600), owned=False)
    optimizer, before = Sgd(gpu, list(model.parameters()), 9.0), copy_of(model.state_dict())
    assert dlrover.save(1, model.state_dict())
    gpu.launch_fill(model.weight, 3.0)
    gate.set()
    assert dlrover.wait_saved()
    assert_same(dlrover.load().state, before)
    optimizer.step()
    gate.clear()
    assert dlrover.save(2, model.state_dict())
    model.weight.detach().mul_(1)
    gate.set()
    with pytest.raises(dlrover.ChangedError):
        dlrover.wait_saved()


def test_the_program_says_which_may_be_under_way(dlrover, gpu, gate):
    state = {"weights": gpu.put(ramp()), "ema": gpu.put(ramp(first=3))}
    before, asked = copy_of(state), []
    assert dlrover.save(1, state, stage=lambda name: asked.append(name) or name != "ema")
    with OnStreams(gpu):
        state["ema"].mul_(0.5)
    gate.set()
    assert dlrover.wait_saved() and asked == ["weights", "ema"]
    assert_same(dlrover.load().state, before)


def test_amds_gpus_are_not_taken_for_nvidias(monkeypatch):
    from dlrover_slurm import _cuda

    class There:
        is_cuda, device = True, torch.device("cuda", 1)

    assert _cuda.device_of(There) == 1 and _cuda.device_of(torch.ones(1)) is None
    monkeypatch.setattr(torch.version, "hip", "6.1", raising=False)
    assert _cuda.device_of(There) is None


def test_what_save_takes_is_not_copied_before(monkeypatch):
    from dlrover_slurm import _cuda, _torch

    there, own = torch.ones(3, device="meta"), torch.ones(3)
    monkeypatch.setattr(_cuda, "device_of", lambda tensor: 0 if tensor is there else None)
    state = _torch.to_cpu({"a": [there, own]})
    assert state["a"][0] is there and state["a"][1] is own
    monkeypatch.setattr(_cuda, "device_of", lambda tensor: None)
    with pytest.raises(NotImplementedError, match="meta"):
        _torch.to_cpu({"a": [there]})


def test_a_save_that_failed_is_told_by_the_next(dlrover, gpu, gate):
    weights = gpu.weights(ramp())
    assert dlrover.save(1, {"x": weights})
    weights.add_(1)
    gate.set()
    with pytest.warns(UserWarning, match="step 1 was not saved: .* x was changed"):
        assert dlrover.save(2, {"x": weights}, stage=False)
    assert torch.equal(dlrover.load().state["x"], weights)


def test_after_wait_staged_anything_may_change(dlrover, gpu, gate):
    dlrover.wait_staged()
    tensor = gpu.weights(ramp())
    assert dlrover.save(1, {"x": tensor})
    dlrover.wait_staged()
    tensor.zero_()
    gate.set()
    assert dlrover.wait_saved()
    assert torch.equal(dlrover.load().state["x"], ramp())


def test_small_tensors_are_copied_before_the_next_kernel(dlrover, gpu, gate):
    running_mean, version = gpu.weights(ramp(100)), gpu.weights(ramp(1))
    assert dlrover.save(1, {"mean": running_mean, "version": version})
    for tensor in (running_mean, version):
        gpu.launch_fill(tensor, 8.0)
        tensor.add_(0)  # that torch sees a change is no matter
    gpu.synchronize()
    gate.set()
    assert dlrover.wait_saved()
    back = dlrover.load().state
    assert torch.equal(back["mean"], ramp(100)) and torch.equal(back["version"], ramp(1))


def test_views_of_one_storage(dlrover, gpu):
    base = gpu.weights(ramp())
    assert dlrover.save(1, {"all": base, "part": base[100:200]})
    back = dlrover.load().state
    assert torch.equal(back["part"], ramp()[100:200])
    back["all"][150] = -1
    assert back["part"][50] == -1


def test_a_failed_copy(dlrover, gpu):
    tensor = gpu.weights(ramp())
    gpu.fake.fake_cuda_fail_copy(0)
    assert dlrover.save(1, {"x": tensor})
    with pytest.raises(dlrover.DlroverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        dlrover.wait_saved()
    gpu.fake.fake_cuda_fail_copy(0)
    with pytest.raises(dlrover.DlroverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        dlrover.save(2, {"x": tensor}, stage=False)
    assert dlrover.load() is None
    assert dlrover.save(3, {"x": tensor})
    assert torch.equal(dlrover.load().state["x"], tensor)


def test_a_replayed_graph_waits_as_an_optimizer_does(dlrover, gpu, gate, monkeypatch):
    from dlrover_slurm import _hook

    tensor = gpu.weights(ramp())

    class Graph:
        def replay(self):
            gpu.launch_fill(tensor, 9.0)
            gpu.synchronize()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph, raising=False)
    _hook._guard_graphs(torch)
    assert dlrover.save(1, {"x": tensor})
    Graph().replay()
    gate.set()
    assert dlrover.wait_saved()
    assert torch.equal(dlrover.load().state["x"], ramp())


# ---- what trainings change while a save is under way ----


@pytest.mark.parametrize("features", [100, 300_000])
def test_batch_norm(dlrover, gpu, gate, features):
    """Buffers change in the forward pass; that torch counts no change of the running ones is why large ones are not left under way either."""
    model = gpu.move(torch.nn.Sequential(torch.nn.BatchNorm1d(features)))
    batch, before = gpu.put(torch.randn(2, features)), copy_of(model.state_dict())
    version = model[0].running_mean._version
    assert dlrover.save(1, {"model": model.state_dict()})
    with OnStreams(gpu):
        model(batch)
    assert not torch.equal(model[0].running_mean, before["0.running_mean"])
    assert model[0].running_mean._version == version and model[0].num_batches_tracked == 1
    gate.set()
    assert dlrover.wait_saved()
    assert_same(dlrover.load().state["model"], before)


def test_scaler(dlrover, gpu, gate, monkeypatch):
    """As tensors and as what state_dict() says: the one before the update."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)  # it is of no use otherwise
        scaler = torch.cuda.amp.GradScaler() if not hasattr(torch.amp, "GradScaler") else torch.amp.GradScaler("cpu")
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    scaler._scale, scaler._growth_tracker = gpu.put(scaler._scale), gpu.put(scaler._growth_tracker)
    weights = gpu.weights(ramp())
    assert dlrover.save(1, {"x": weights, "scaler": scaler.state_dict(), "scale": scaler._scale, "tracker": scaler._growth_tracker})
    with OnStreams(gpu):
        scaler.update(3.0)
        scaler._growth_tracker.add_(1)
    assert scaler.get_scale() == 3.0
    gate.set()
    assert dlrover.wait_saved()
    back = dlrover.load().state
    assert back["scaler"]["scale"] == back["scale"].item() == 65536.0 and back["tracker"].item() == 0


@pytest.mark.parametrize("after_the_step", [True, False])
def test_averaged_model(dlrover, gpu, gate, after_the_step):
    """No optimizer owns it: it may change at once, and need not wait for a step."""
    model = gpu.move(torch.nn.Linear(1000, 400))
    ema = gpu.move(torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda ema, new, count: ema * 0.5 + new * 0.5), owned=False)
    ema.n_averaged.add_(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = gpu.put(torch.ones_like(parameter))
    before = copy_of(ema.state_dict())
    assert dlrover.save(1, {"ema": ema.state_dict()})
    with OnStreams(gpu):
        if after_the_step:
            optimizer.step()
        else:
            model.weight.data.add_(1)
        ema.update_parameters(model)
    assert not torch.equal(ema.module.weight, before["module.weight"])
    gate.set()
    assert dlrover.wait_saved()
    assert_same(dlrover.load().state["ema"], before)


def after_gradient(parameter, change):
    """Calls change() in the backward pass, as soon as the parameter has its gradient."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(lambda _: change())
    accumulate = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # torch before 2.1
    accumulate.register_hook(lambda *_: change())
    return accumulate


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_an_optimizer_in_the_backward_pass(dlrover, gpu, gate, by_optimizer):
    """One for each parameter is held back; what no torch optimizer does gives the save up."""
    model = torch.nn.Sequential(torch.nn.Linear(600, 700), torch.nn.Linear(700, 500))
    gpu.move(model)
    before, kept = copy_of(model.state_dict()), []
    for parameter in model.parameters():

        def change(parameter=parameter, optimizer=torch.optim.SGD([parameter], lr=0.1)):
            if by_optimizer:
                optimizer.step()
            else:
                with torch.no_grad():
                    parameter.sub_(parameter.grad)

        kept.append(after_gradient(parameter, change))
    loss = model(torch.ones(3, 600)).sum()
    assert dlrover.save(1, {"model": model.state_dict()})
    with OnStreams(gpu):
        loss.backward()
    assert not any(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    gate.set()
    if by_optimizer:
        assert dlrover.wait_saved()
        assert_same(dlrover.load().state["model"], before)
    else:
        with pytest.raises(dlrover.ChangedError, match=r"model\.\d\.weight was changed"):
            dlrover.wait_saved()


def test_optimizers_on_two_streams(dlrover, gpu, gate):
    """Each stream is held back, not the first alone."""
    first, second = gpu.weights(ramp()), gpu.weights(ramp(first=5))
    for step in range(3):  # into registered memory; through the ring the program itself waits
        assert dlrover.save(step, {"first": first, "second": second}, stage=False)
    assert dlrover.save(3, {"first": first, "second": second})
    Sgd(gpu, [first], 9.0, wait=False).step()  # nothing has been copied after this
    gpu.streams[0] = gpu.fake.fake_cuda_stream(0)
    Sgd(gpu, [second], 9.0).step()
    gate.set()
    assert second.eq(9.0).all() and dlrover.wait_saved()
    assert_same(dlrover.load().state, {"first": ramp(), "second": ramp(first=5)})


def test_an_optimizer_on_the_host(dlrover, gpu, gate):
    """The weights are on the GPU, masters and moments on the host: the host's are changed at once, without waiting for anything."""
    weights, master = gpu.weights(ramp()), ramp().requires_grad_()
    optimizer = torch.optim.AdamW([master], lr=0.5)
    master.grad = torch.ones_like(master)
    optimizer.step()
    weights.copy_(master.detach())
    moments = ("exp_avg", "exp_avg_sq")
    before = copy_of({"weights": weights, "master": master.detach(), **{name: optimizer.state[master][name] for name in moments}})
    assert dlrover.save(1, {"weights": weights, "master": master, "optimizer": optimizer.state_dict()})
    optimizer.step()
    with OnStreams(gpu):
        weights.copy_(master.detach())
    assert not torch.equal(optimizer.state[master]["exp_avg"], before["exp_avg"])
    gate.set()
    assert dlrover.wait_saved()
    back = dlrover.load().state
    own = back["optimizer"]["state"][0]
    assert_same({"weights": back["weights"], "master": back["master"], **{name: own[name] for name in moments}}, before)


def test_in_a_capture(dlrover, gpu):
    gpu.fake.fake_cuda_begin_capture(gpu.streams[0])
    with pytest.raises(dlrover.InvalidError, match="CUDA graph"):
        dlrover.save(1, {"x": gpu.weights(ramp())})
    assert gpu.fake.fake_cuda_end_capture(gpu.streams[0]) == 0


def test_a_forked_child(dlrover, gpu, gate):
    assert dlrover.save(1, {"x": gpu.weights(ramp())})
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dlrover.wait_staged()
            dlrover.save(2, {"x": 1})
        except dlrover.ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.set()
    assert dlrover.wait_saved()


def test_a_program_that_ends_at_once(run_python):
    """The step is sealed before the process ends."""
    code = f"""
import ctypes, sys, torch
sys.path.insert(0, {str(pathlib.Path(__file__).parents[1] / "fakes")!r})
import fake_gpu, dlrover_slurm
from dlrover_slurm import _cuda
gpu = fake_gpu.Gpu()
_cuda.device_of, _cuda.stream_of = gpu.device_of, lambda device: gpu.streams[device]
dlrover_slurm.save(4, {{"x": gpu.put(fake_gpu.ramp())}})
"""
    assert run_python(code)[0] == 0
    status, out, err = run_python("import torch, dlrover_slurm as d; c = d.load(); print(c.step, float(c.state['x'].sum()))")
    assert (status, out.split()) == (0, ["4", str(float(ramp().sum()))]), err


def test_without_a_driver(run_python):
    code = """
import torch, dlrover_slurm
from dlrover_slurm import _cuda
_cuda.device_of, _cuda.stream_of = lambda tensor: 0, lambda device: None
try:
    dlrover_slurm.save(1, {"x": torch.ones(3)})
except (dlrover_slurm.UnsupportedError, dlrover_slurm.InvalidError) as error:
    print(error)
"""
    status, out, err = run_python(code)
    assert status == 0 and ("NVIDIA's driver library" in out or "not memory of a GPU" in out or "CUDA driver" in out), err


def test_chunks_that_are_packed_are_not_packed_again():
    """Unless one of them is another one in anything that is told of it."""
    from dlrover_slurm._chunks import Chunk, batch_of

    chunks = [Chunk(f"w{i}", 1, (2, 3), 4096 * (i + 1), 24, owner=object()) for i in range(3)]
    first = batch_of(chunks)
    assert batch_of([chunk.of(object()) for chunk in chunks]) is first
    assert batch_of(chunks[:2]) is not first
    for name, value in (("name", "v0"), ("address", 64), ("nbytes", 12), ("shape", (3, 2)), ("dtype", 2)):
        other = chunks[0].of(None)
        setattr(other, name, value)
        other.packed = None
        batch = batch_of([other, *chunks[1:]])
        assert batch is not first
        assert batch.structs[0].name == other.name.encode() and batch.addresses[0] == other.address and batch.sizes[0] == other.nbytes
        assert tuple(batch.structs[0].local_shape[:2]) == other.shape and batch.structs[0].dtype == other.dtype


def test_where_a_gpu_is_named():
    from dlrover_slurm._upload import gpu_of

    assert gpu_of("cuda") == torch.device("cuda") and gpu_of("cuda:1") == gpu_of(torch.device("cuda", 1)) == torch.device("cuda", 1)
    for other in (None, "cpu", torch.device("meta"), True, {"cuda:0": "cpu"}):
        assert gpu_of(other) is None


class _Waited:
    """What torch.cuda would give: a stream or an event."""

    def __init__(self, *_):
        self.recorded = 0

    def record_event(self):
        return self

    def wait_event(self, _):
        pass

    def synchronize(self):
        pass


def test_tensors_reach_the_gpu_where_no_memory_can_be_pinned(monkeypatch):
    """Some containers forbid it, and it is what a torch without CUDA says here."""
    import contextlib

    from dlrover_slurm import _upload

    monkeypatch.setattr(torch.cuda, "current_stream", _Waited)
    monkeypatch.setattr(torch.cuda, "Stream", _Waited)
    monkeypatch.setattr(torch.cuda, "Event", _Waited)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    asked, empty = [], torch.empty

    def refuse(*arguments, **options):
        if not options.get("pin_memory"):
            return empty(*arguments, **options)
        asked.append(arguments)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    upload = _upload.Upload(torch.device("cpu", 0))
    sources = [torch.arange(size, dtype=torch.int64) for size in (0, 1, 5_000_000, 200_000)]
    targets = [upload.add(source) for source in sources]
    upload.finish()
    assert asked, "the way through pinned memory was not tried"
    assert all(torch.equal(source, target) for source, target in zip(sources, targets))
