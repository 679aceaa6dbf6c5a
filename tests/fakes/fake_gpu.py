# SPDX-License-Identifier: Apache-2.0
"""A GPU for torch where there is none: the driver is tests/fakes/libcuda, "device" memory is the host's, and a copy is made as late
as the rules of streams allow. torch thinks of these tensors as its own; only where a tensor lies is told by this file."""

import contextlib
import ctypes
import pathlib
import threading
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

FAKE = pathlib.Path.cwd() / "tests" / "fakes" / ".libs" / "libcuda.so.1"
needs_driver = pytest.mark.skipif(not FAKE.exists(), reason="the driver that records is not built here: make tests/fakes/libcuda.la")
LARGE = 3 << 20


class Gpu:
    """Two devices with a stream of the program each."""

    def __init__(self):
        self.fake = ctypes.CDLL(str(FAKE))  # the library finds it by its name from now on
        for name in ("fake_cuda_allocate", "fake_cuda_stream"):
            getattr(self.fake, name).restype = ctypes.c_void_p
        for name in ("fake_cuda_log", "fake_cuda_violations"):
            getattr(self.fake, name).restype = ctypes.c_char_p
        self.fake.fake_cuda_allocate.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
        self.fake.fake_cuda_launch_write.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        for name in ("fake_cuda_synchronize", "fake_cuda_begin_capture", "fake_cuda_end_capture"):
            getattr(self.fake, name).argtypes = [ctypes.c_void_p]
        self.fake.fake_cuda_reset()
        self.streams = [self.fake.fake_cuda_stream(device) for device in (0, 1)]
        self.memory = {}
        self.optimizers = []

    def put(self, tensor, device=0):
        """The tensor in the memory of a device."""
        count = tensor.numel() * tensor.element_size()
        address = self.fake.fake_cuda_allocate(device, count, 0)
        self.memory[address] = (count, device)
        there = torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=tensor.dtype).reshape(tensor.shape)
        there.copy_(tensor)
        return there

    def weights(self, tensor, device=0):
        """The same, of an optimizer that has stepped before: the copy may be under way when a save returns."""
        there = self.put(tensor, device)
        self.own([there])
        return there

    def own(self, tensors):
        from dlrover_slurm import _optimizers

        self.optimizers.append(torch.optim.SGD(tensors, lr=0.0))
        _optimizers.note_step(self.optimizers[-1])

    def move(self, module, owned=True):
        """Its parameters and buffers, in place. ``owned``: the parameters are an optimizer's."""
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = self.put(tensor.data)
        if owned:
            self.own(list(module.parameters()))
        return module

    def device_of(self, tensor):
        at = tensor.data_ptr()
        return next((device for first, (count, device) in self.memory.items() if first <= at < first + count), None)

    def launch_fill(self, tensor, value):
        """A kernel on the program's stream, which torch's counter of versions does not see."""
        data = bytes(torch.full_like(tensor, value).contiguous().reshape(-1).view(torch.uint8).numpy())
        stream = self.streams[self.device_of(tensor)]
        self.fake.fake_cuda_launch_write(stream, tensor.data_ptr(), data, len(data))

    def synchronize(self):
        for stream in self.streams:
            self.fake.fake_cuda_synchronize(stream)

    def log(self):
        return self.fake.fake_cuda_log().decode().splitlines()

    def copies(self):
        """Bytes of the copies that were asked for, one by one."""
        lines = [line.split() for line in self.log()]
        return [int(bytes) for line in lines if line[0] in ("cuMemcpyDtoHAsync", "cuMemcpyBatchAsync") for bytes in line[1].split(",")]


class OnStreams(TorchDispatchMode):
    """torch's work on tensors of a device is done when the program's streams come to it, as on a GPU, and not at once."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        values = tree_flatten((arguments, named))[0]
        if any(isinstance(value, torch.Tensor) and self._gpu.device_of(value) is not None for value in values):
            self._gpu.synchronize()
        return function(*arguments, **named)


class Sgd(torch.optim.Optimizer):
    """An optimizer whose step is a kernel on the GPU."""

    def __init__(self, gpu, tensors, value, wait=True):
        super().__init__(tensors, {})
        self._gpu, self._value, self._wait = gpu, value, wait

    def step(self, closure=None):
        for group in self.param_groups:
            for tensor in group["params"]:
                self._gpu.launch_fill(tensor, self._value)
        if self._wait:
            self._gpu.synchronize()


@contextlib.contextmanager
def installed():
    """A Gpu that dlrover_slurm takes for one. At the end its session is closed, and nothing may be left of it."""
    from dlrover_slurm import _cuda, _optimizers, _session

    assert FAKE.exists(), "tests/fakes/libcuda.la is not built"
    made = Gpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cuda, "device_of", made.device_of)
        patch.setattr(_cuda, "stream_of", lambda device: made.streams[device])
        patch.setattr(_cuda, "_changing", set())
        patch.setattr(_optimizers, "_stepped", weakref.WeakSet())
        yield made
        if _session._session is not None:
            _session._close(_session._session)
    assert made.fake.fake_cuda_violations() == b""
    assert made.fake.fake_cuda_left() == 0


@contextlib.contextmanager
def held():
    """As long as the event is not set, no other thread than the main one seals."""
    from dlrover_slurm import _session

    gate, run = threading.Event(), _session.Sealing._run

    def wait_and_run(sealing):
        if threading.current_thread() is not threading.main_thread():
            gate.wait(60)
        run(sealing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_session.Sealing, "_run", wait_and_run)
        try:
            yield gate
        finally:
            gate.set()


def ramp(count=LARGE // 4, first=0.0):
    return torch.arange(count, dtype=torch.float32) + first


def copy_of(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def assert_same(back, state):
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor), name
