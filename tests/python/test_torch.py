# SPDX-License-Identifier: Apache-2.0
import collections
import copy
import random

import pytest

torch = pytest.importorskip("torch")

NAMES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


def raw(tensor):
    """The bytes of the elements, row by row."""
    flat = tensor.detach().contiguous().reshape(-1)
    return b"" if flat.numel() == 0 else bytes(flat.view(torch.uint8).tolist())


def same(a, b):
    assert type(a) is type(b)
    assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
    assert raw(a) == raw(b)


def of_bits(dtype, shape):
    """A tensor of any bits: not-a-numbers and denormals among them (bools stay 0 or 1)."""
    size = torch.empty((), dtype=dtype).element_size()
    count = int(torch.Size(shape).numel()) * size
    high = 2 if dtype == torch.bool else 256
    data = torch.randint(0, high, (max(count, size),), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return data.view(dtype)[: count // size].reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (1,) * 18], ids=str)
def test_dtypes(round_trip, dtype, shape):
    tensor = of_bits(dtype, shape)
    back = round_trip({"x": tensor})["x"]
    same(back, tensor)
    if tensor.numel():
        assert back.data_ptr() != tensor.data_ptr()


def test_not_contiguous(round_trip):
    base = torch.arange(60.0).reshape(3, 4, 5)
    for tensor in (base.permute(2, 0, 1), base[:, ::2], base.expand(2, 3, 4, 5), base[1], base.transpose(0, 1)[1:]):
        same(round_trip(tensor.clone(memory_format=torch.preserve_format)), tensor)
        same(round_trip([tensor])[0], tensor)


def test_order_of_memory_is_kept(round_trip):
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = round_trip(tensor)
    same(back, tensor)
    assert back.stride() == tensor.stride()


def test_conjugates_and_negatives(round_trip):
    tensor = torch.randn(5, dtype=torch.complex64)
    same(round_trip(tensor.conj()), tensor.conj().resolve_conj())
    same(round_trip(tensor.conj().imag), tensor.conj().imag.resolve_neg())


def test_parameters_and_grad_flags(round_trip):
    state = {"p": torch.nn.Parameter(torch.ones(3)), "f": torch.nn.Parameter(torch.ones(3), requires_grad=False),
             "t": torch.ones(2, requires_grad=True), "r": torch.ones(2, requires_grad=True) * 2}  # fmt: skip
    back = round_trip(state)
    for key in ("p", "f", "t"):
        same(back[key], state[key])
    assert back["r"].requires_grad and back["r"].is_leaf


def test_the_same_tensor_is_the_same_again(round_trip):
    tensor = torch.randn(10)
    back = round_trip({"a": tensor, "b": [tensor]})
    assert back["a"] is back["b"][0]


def test_tied_weights_are_saved_once_and_tied_again(dlrover, tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(1000, 100)
            self.out = torch.nn.Linear(100, 1000, bias=False)
            self.out.weight = self.embed.weight

    model = Tied()
    dlrover.save(1, model.state_dict())
    size = (tmp_path / "rank-0" / "step-1.dlrover").stat().st_size
    assert size < 1.1 * model.embed.weight.numel() * 4
    back = dlrover.load().state
    assert back["embed.weight"].data_ptr() == back["out.weight"].data_ptr()
    other = Tied()
    other.load_state_dict(back)
    same(other.out.weight, model.out.weight)
    assert other.out.weight is other.embed.weight


def test_overlapping_views_share_memory_again(round_trip):
    flat = torch.arange(100.0)
    state = {"first": flat[:60].view(6, 10), "flat": flat, "second": flat[60:], "odd": flat[10:30:2], "bits": flat.view(torch.int32)}
    back = round_trip(state)
    for key in state:
        same(back[key], state[key].contiguous())
    back["flat"][0] = 55
    back["second"][0] = 77
    assert back["first"][0, 0] == 55 and back["flat"][60] == 77
    assert back["odd"].stride() == (2,)


def test_neighbours_in_one_storage_are_chunks_of_their_own(dlrover):
    flat = torch.arange(100.0)
    dlrover.save(1, {"a": flat[:50], "b": flat[50:]})
    from dlrover_slurm._session import Opened

    opened = Opened()
    chunks = opened.chunks()
    assert set(chunks) == {"a", "b"} and chunks["b"].shape == (50,)


def test_names_in_the_table(dlrover):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    dlrover.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    from dlrover_slurm._session import Opened

    names = set(Opened().chunks())
    assert {"model.0.weight", "model.0.bias", "optimizer.state.0.exp_avg", "optimizer.state.1.exp_avg_sq"} <= names


OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True), "Adam": dict(amsgrad=True), "AdamW": {}, "Adagrad": {}, "Adadelta": {},
    "RMSprop": dict(momentum=0.5), "Adamax": {}, "NAdam": {}, "RAdam": {}, "ASGD": {}, "Rprop": {}, "LBFGS": dict(max_iter=2),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(dlrover, name):
    """Model with BatchNorm and dropout, optimizer, scheduler, EMA, RNG: with load() in between, as without."""

    class Run:
        def __init__(self):
            torch.manual_seed(7)
            self.model = torch.nn.Sequential(
                torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3)
            )
            self.optimizer = getattr(torch.optim, name)(self.model.parameters(), **OPTIMIZERS[name])
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
            self.ema = copy.deepcopy(self.model.state_dict())

        def state(self):
            return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(), "ema": self.ema, "rng": dlrover.rng_state()}  # fmt: skip

        def restore(self, state):
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scheduler.load_state_dict(state["scheduler"])
            self.ema = state["ema"]
            dlrover.set_rng_state(state["rng"])

        def step(self):
            def closure():
                self.optimizer.zero_grad()
                loss = self.model(torch.randn(4, 6)).square().sum() * random.random()
                loss.backward()
                return loss

            self.optimizer.step(closure)
            self.scheduler.step()
            for key, value in self.model.state_dict().items():
                self.ema[key] = self.ema[key] * 0.5 + value * 0.5 if value.is_floating_point() else value.clone()

    random.seed(3)
    run = Run()
    for _ in range(3):
        run.step()
    assert dlrover.save(2, run.state(), allow_pickle=True)
    for _ in range(3):
        run.step()
    other = Run()
    for _ in range(2):
        other.step()
    other.restore(dlrover.load().state)
    for _ in range(3):
        other.step()
    for a, b in zip(run.state()["model"].values(), other.state()["model"].values()):
        assert raw(a) == raw(b)
    for key in run.ema:
        assert raw(run.ema[key]) == raw(other.ema[key])
    assert run.scheduler.get_last_lr() == other.scheduler.get_last_lr()


def test_module_state_dict_keeps_its_metadata(round_trip):
    state = torch.nn.BatchNorm1d(3).state_dict()
    back = round_trip(state)
    assert type(back) is collections.OrderedDict and back._metadata == state._metadata


def test_torch_values(round_trip):
    state = {"dtype": torch.bfloat16, "device": torch.device("cuda:1"), "size": torch.Size([2, 3])}
    back = round_trip(state)
    assert back == state and type(back["size"]) is torch.Size


def test_tensors_that_are_not_for_this_version(dlrover):
    class Special(torch.Tensor):
        pass

    cases = [torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2).as_subclass(Special),
             torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)]  # fmt: skip
    for tensor in cases:
        with pytest.raises(dlrover.UnsupportedError, match="a.b.*not in this version"):
            dlrover.save(1, {"a": {"b": tensor}})
    assert dlrover.load() is None


def test_the_state_may_change_after_save(dlrover):
    tensor = torch.zeros(1000000)
    dlrover.save(1, {"x": tensor})
    tensor.fill_(1)
    assert dlrover.load().state["x"].sum() == 0


def test_views(dlrover):
    state = {"x": torch.randn(1000), "y": torch.randn(3, 4).t(), "flat": torch.arange(10.0)}
    state["part"] = state["flat"][2:5]
    dlrover.save(1, state)
    back = dlrover.load(views=True).state
    for key in state:
        same(back[key], state[key])
    with pytest.raises(dlrover.InvalidError, match="open already"):
        dlrover.load()
    del back
    same(dlrover.load().state["x"], state["x"])


def test_map_location(dlrover):
    dlrover.save(1, {"x": torch.ones(3)})
    assert dlrover.load(map_location="meta").state["x"].device.type == "meta"
    assert dlrover.load(map_location=torch.device("cpu")).state["x"].sum() == 3


def random_tensor(rng, pool):
    if pool and rng.random() < 0.3:
        base = rng.choice(pool)
        if base.dim() and base.shape[0] > 1 and rng.random() < 0.7:
            return base[rng.randrange(base.shape[0]) :]
        return base
    shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
    tensor = of_bits(rng.choice(DTYPES), shape)
    if rng.random() < 0.3 and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    pool.append(tensor)
    return tensor


@pytest.mark.parametrize("seed", range(40))
def test_random_tensors(round_trip, seed):
    rng, pool = random.Random(seed), []
    state = {f"t{i}": random_tensor(rng, pool) for i in range(12)}
    back = round_trip(state)
    for key in state:
        same(back[key], state[key])
    for a in state:
        for b in state:
            assert (state[a] is state[b]) == (back[a] is back[b])


def test_rng_state_survives(dlrover):
    numpy = pytest.importorskip("numpy")
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    dlrover.save(1, dlrover.rng_state())

    def draw():
        return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), numpy.random.rand(3).tolist()

    first = draw()
    assert draw() != first
    dlrover.set_rng_state(dlrover.load().state)
    assert draw() == first


def parts():
    """Optimizers, schedulers, a scaler and averaged models, some steps on: (name, object)."""
    schedules, averaged = torch.optim.lr_scheduler, torch.optim.swa_utils
    model = torch.nn.Linear(3, 2)

    def stepped(cls, **options):
        optimizer = cls(model.parameters(), **options)

        def loss():
            optimizer.zero_grad()
            value = model(torch.ones(1, 3)).sum()
            value.backward()
            return value

        optimizer.step(loss)
        optimizer.step(loss)
        return optimizer

    sgd = stepped(torch.optim.SGD, lr=0.1, momentum=0.9)
    result = [stepped(torch.optim.Adam, amsgrad=True), sgd, stepped(torch.optim.LBFGS), stepped(torch.optim.RMSprop)]
    result += [
        schedules.CosineAnnealingLR(sgd, 10),
        schedules.LambdaLR(sgd, lambda epoch: 0.9**epoch),
        schedules.MultiStepLR(sgd, [2, 4, 4]),
        schedules.SequentialLR(sgd, [schedules.ConstantLR(sgd), schedules.ExponentialLR(sgd, 0.9)], [3]),
        schedules.ReduceLROnPlateau(sgd),
        averaged.AveragedModel(model),
    ]
    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(1))
        result.append(scaler)
    return result


@pytest.mark.parametrize("part", parts(), ids=lambda part: type(part).__name__)
@pytest.mark.filterwarnings("error:.*saved by pickle")
def test_states_of_the_usual_parts(round_trip, part):
    state = part.state_dict()
    back = round_trip({"part": state})["part"]
    assert repr(back) == repr(state)
    part.load_state_dict(back)
