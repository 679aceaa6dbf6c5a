# SPDX-License-Identifier: Apache-2.0
"""From storage: saved by some ranks in one way, loaded by other ranks in another, the same tensors bit for bit."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from models import digest, local, train
from stored import LINEAGE, Stored, make, needs_programs, put_back, state_of, together, trained, whole

pytestmark = needs_programs


@pytest.fixture
def stored(tmp_path):
    return Stored(tmp_path)


# ---- saved and loaded by ----


def save(rank, kind, stages, whole_state):
    """Digests of the whole state; in a pipeline of this rank's stage."""
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    model, optimizer = trained(kind, stages)
    assert dcp.save(1, {**state_of(model, optimizer), "extra": {"epoch": 3, "rank": rank}}, ledger={"of": rank})
    return whole(model, optimizer) if whole_state else digest(state_of(model, optimizer))


def load(rank, kind, stages, folder, environment, saved, saved_by):
    """``saved``: digests by name, which what is here must have, all of them where it is the whole state."""
    from dlrover_slurm import dcp

    os.environ.update(environment)
    readers = [dcp.MemoryReader] if environment else [lambda: dcp.FolderReader(folder)]
    for ours in (True, False):
        reader = readers[0]()
        model, optimizer = trained(kind, stages, seed=7, steps=1)
        state = {**state_of(model, optimizer), "extra": {"epoch": None, "rank": None}}
        if ours:
            assert dcp.load(state, reader=reader) == 1
            assert state["extra"] == {"epoch": 3, "rank": rank % saved_by}
            assert reader.ledger == {"of": rank if saved_by == dist.get_world_size() else 0}
        else:
            torch_dcp.load(state, storage_reader=reader)
        if kind == "fsdp1":  # whose setter in torch does not get through with a flattened optimizer state of uneven shards
            found = together(state)
        else:
            put_back(model, optimizer, state)
            found = digest(state_of(model, optimizer)) if kind == "pp" else whole(model, optimizer)
        assert {name: saved.get(name) for name in found} == found
        assert kind == "pp" or sorted(found) == sorted(saved)
        dist.barrier()
    train(model, optimizer, 1)
    return sorted(found)


def merged(results):
    return {name: value for result in results for name, value in result.items()}


PAIRS = [
    (("fsdp2", 8), [("tp", 2), ("fsdp2", 3), ("hsdp", 4), ("fsdp2", 16)]),
    (("ddp", 2), [("fsdp2", 3), ("fsdp2", 2)]),
    (("hsdp", 4), [("ddp", 3), ("fsdp2+tp", 4)]),
    (("tp", 4), [("fsdp2", 2), ("ddp", 1)]),
    (("fsdp2+tp", 4), [("hsdp", 4), ("fsdp1", 2)]),
    (("fsdp1", 4), [("fsdp2", 3), ("tp", 4)]),
]


@pytest.mark.parametrize("saved, loaded", PAIRS, ids=lambda v: v[0] if isinstance(v, tuple) else "")
def test_other_shardings_and_world_sizes(ranks, stored, saved, loaded):
    kind, count = saved
    before = merged(ranks(count, save, kind, None, True))
    assert len(before) > 20
    folder = str(stored.put().folder)
    for other, number in loaded:
        ranks(number, load, other, None, folder, {}, before, count)
    with stored.offered() as environment:
        for other, number in loaded:
            ranks(number, load, other, None, folder, environment, before, count)
    assert stored.complete()


@pytest.mark.parametrize("saved, loaded", [
    (("pp", [1, 2, 10]), [("pp", [10, 1, 2]), ("pp", [6, 7]), ("ddp", [2]), ("fsdp2", [3, 3, 3])]),
    (("fsdp2", [4] * 4), [("pp", [1, 2, 10])]),
    (("ddp", [2] * 2), [("pp", [1, 2, 10])]),
], ids=["from-1:2:10", "from-fsdp2", "from-ddp"])  # fmt: skip
def test_stages_of_a_pipeline(ranks, stored, saved, loaded):
    """``loaded``: for a pipeline how many blocks each rank has; otherwise the length is the number of ranks."""
    kind, stages = saved
    before = merged(ranks(len(stages), save, kind, stages, kind != "pp"))
    folder = str(stored.put().folder)
    seen = set()
    with stored.offered() as environment:
        for other, parts in loaded:
            for how in ({}, environment):
                results = ranks(len(parts), load, other, parts, folder, how, before, len(stages))
                seen = {name for names in results for name in names}
                assert seen == set(before)
    assert stored.complete()


# ---- what is read ----


def reads_little(rank, folder):
    """The sizes of what was read are those of this rank's shards; with whole tensors on every rank they would be twice as much."""
    from dlrover_slurm import GlobalTensors, dcp

    model, optimizer = make("fsdp2", seed=7)
    train(model, optimizer, 1)
    state, boxes = state_of(model, optimizer), []
    read = GlobalTensors.read_into

    def noted(self, name, dtype, offset, shape, address, nbytes):
        boxes.append(nbytes)
        read(self, name, dtype, offset, shape, address, nbytes)

    GlobalTensors.read_into = noted
    dcp.load(state, folder=folder)
    parts = [local(value) for part in ("model", "optimizer") for value in state[part].values() if isinstance(value, torch.Tensor)]
    return sum(boxes), sum(part.numel() * part.element_size() for part in parts)


def test_only_what_is_wanted_is_read(ranks, stored):
    ranks(4, save, "tp", None, True)
    for read, held in ranks(2, reads_little, str(stored.put().folder)):
        assert read == held > 1000


#: A row has 80,000 bytes, and each of eight ranks has saved twelve.
ROWS, COLUMNS, PIECE_ROWS, BLOCK = 96, 80000, 12, 1 << 20
#: Of eight files and the manifest: headers, tables, skeletons; what the ranks say to each other.
METADATA = 200_000


def wide(whole):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(whole, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def rows_of():
    return torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)


def save_wide(rank):
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    assert dcp.save(1, {"w": wide(rows_of())})


def bytes_read_by_calls():
    with open("/proc/self/io") as file:
        return int(file.readline().removeprefix("rchar:"))


def reads_its_share(rank, folder, verify):
    """How much was read by calls, and how much this rank has of the tensor."""
    from dlrover_slurm import dcp

    os.environ["DLROVER_VERIFY_PARTS"] = verify
    state = {"w": wide(torch.zeros(ROWS, COLUMNS))}
    dcp.load(state, folder=folder)  # which reads modules of Python's, too
    state["w"].to_local().zero_()
    before = bytes_read_by_calls()
    dcp.load(state, folder=folder)
    took = bytes_read_by_calls() - before
    mine = state["w"].to_local()
    first = rank * -(-ROWS // dist.get_world_size())
    assert torch.equal(mine, rows_of()[first : first + len(mine)])
    return took, first, len(mine)


def test_each_rank_reads_its_own_bytes(ranks, stored):
    ranks(8, save_wide)
    folder = str(stored.put().folder)
    for count in (2, 3, 4, 16):
        for verify in "01":
            for took, first, rows in ranks(count, reads_its_share, folder, verify):
                # Where a piece is wanted in part, a block that lies on both sides of the cut is read as a whole to be verified.
                cuts = sum(row % PIECE_ROWS != 0 for row in (first, first + rows))
                around = BLOCK * cuts if verify == "1" else 0
                assert rows <= took / (4 * COLUMNS), (count, verify, first, took)
                assert took <= 4 * COLUMNS * rows + around + METADATA, (count, verify, first, took)


def subset(rank, folder, saved):
    """Some of the names; a part that was never saved keeps what it has where the planner allows that."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    from dlrover_slurm import dcp

    model, optimizer = make("fsdp2", seed=7)
    names = ("up.weight", "frozen.bias", "last.weight", "seen")
    full = state_of(model, optimizer)["model"]
    state = {"model": {name: full[name] for name in names}}
    assert dcp.load(state, folder=folder) == 1
    for name, value in state["model"].items():
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        assert digest(value)[""] == saved[f"/model/{name}"], name
    lora = torch.full((4, 2), 5.0)
    with pytest.raises(RuntimeError, match="Missing key.*lora"):
        dcp.load({"model": {"up.lora": lora}}, folder=folder)
    some = {"model": {"up.lora": lora, "up.bias": torch.zeros(12)}}
    assert dcp.load(some, folder=folder, planner=DefaultLoadPlanner(allow_partial_load=True)) == 1
    assert (lora == 5).all() and digest(some["model"]["up.bias"])[""] == saved["/model/up.bias"]
    with pytest.raises(ValueError, match="[Ss]ize mismatch"):
        dcp.load({"model": {"up.bias": torch.zeros(13)}}, folder=folder)


def test_a_part_of_the_names(ranks, stored):
    saved = merged(ranks(4, save, "fsdp2", None, True))
    ranks(2, subset, str(stored.put().folder), saved)


# ---- what is no one tensor ----


def save_odd(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from dlrover_slurm import RngState, dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    torch.manual_seed(100 + rank)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    half = odd_values()[3 * rank : 3 * rank + 3].clone()
    state = {"raw": DTensor.from_local(half, mesh, [Shard(0)]), "deep": torch.arange(3.0).reshape((3,) + (1,) * 17), "rng": RngState(),
             "running_mean": torch.full((5,), float(rank)), "same": torch.ones(2), "name": f"of {rank}", "none": torch.empty(0, 3)}  # fmt: skip
    gap = {"gap": DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)])}  # of which the other half is nowhere
    state.update({"only": torch.full((2,), 9.0), "word": "alone"} if rank == 1 else gap)
    assert dcp.save(1, state)
    return torch.rand(4).tolist()


def odd_values():
    return torch.arange(24.0).reshape(6, 4).to(torch.float8_e4m3fnuz)


def load_odd(rank, folder, environment, numbers):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from dlrover_slurm import RngState, UnsupportedError, dcp

    os.environ.update(environment)
    count, of = dist.get_world_size(), rank % 2
    mesh = init_device_mesh("cpu", (count,))
    parts = [*odd_values().chunk(count), odd_values()[:0], odd_values()[:0]]  # the last ranks may have nothing
    part = torch.zeros_like(parts[rank])
    state = {"raw": DTensor.from_local(part, mesh, [Shard(0)], shape=(6, 4), stride=(4, 1)), "deep": torch.zeros((3,) + (1,) * 17),
             "rng": RngState(), "running_mean": torch.zeros(5), "same": torch.zeros(2), "name": "", "none": torch.empty(0, 3),
             "only": torch.zeros(2), "word": ""}  # fmt: skip
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert dcp.load(state, **({} if environment else {"folder": folder})) == 1
    said = [str(w.message) for w in seen if "under one name" in str(w.message)]
    assert len(said) == int(count != 2) and all(f"running_mean; those of rank {of} are taken" in text for text in said), said
    raw = state["raw"].to_local()
    assert torch.equal(raw.view(torch.uint8), parts[rank].view(torch.uint8))
    assert state["deep"].flatten().tolist() == [0, 1, 2] and state["running_mean"].tolist() == [of] * 5 and state["same"].tolist() == [1, 1]
    assert state["name"] == f"of {of}" and state["word"] == "alone" and state["only"].tolist() == [9, 9]
    assert torch.rand(4).tolist() == numbers[of]
    target = {"same": torch.full((2,), 7.0), "gap": torch.full((4, 2), 7.0)}
    with pytest.raises(UnsupportedError, match="gap .* leave a hole"):
        dcp.load(target, **({} if environment else {"folder": folder}))
    assert (target["same"] == 7).all() and (target["gap"] == 7).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_values_and_odd_tensors(ranks, stored, count):
    """Each rank has the values of the rank of its number, modulo the number that saved; what only one has is found there."""
    numbers = ranks(2, save_odd)
    folder = str(stored.put().folder)
    ranks(count, load_odd, folder, {}, numbers)
    with stored.offered() as environment:
        ranks(count, load_odd, folder, environment, numbers)


# ---- what is damaged ----


def save_marked(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    part = torch.arange(5000.0 * rank, 5000.0 * rank + 5000)
    whole_tensor = DTensor.from_local(part, init_device_mesh("cpu", (2,)), [Shard(0)])
    assert dcp.save(1, {"w": whole_tensor, "mean": torch.full((3000,), rank + 0.5), "text": f"needle of {rank}"})


def refused(rank, folder, environment, names):
    """An error, not zeros; a second attempt is refused as well."""
    from dlrover_slurm import CorruptError, NotFoundError, dcp

    os.environ.update(environment)
    every = {"w": torch.full((10000,), 7.0), "mean": torch.full((3000,), 7.0), "text": "seven"}
    said = []
    for _ in range(2):
        state = {name: every[name] for name in names}
        with pytest.raises((CorruptError, NotFoundError)) as caught:
            dcp.load(state, **({} if environment else {"folder": folder}))
        said.append(str(caught.value))
    return said[0]


def flip(path, place):
    data = bytearray(path.read_bytes())
    assert 0 < place(data) < len(data)
    data[place(data)] ^= 4
    path.write_bytes(data)


def in_tensor(data):
    return data.find(torch.arange(7000.0, 7010.0).numpy().tobytes())


def in_mean(data):
    return data.find(torch.full((100,), 0.5).numpy().tobytes()) + 50


def in_text(data):
    return data.find(b"needle")


DAMAGES = {
    "missing": (lambda data: (data / "rank-1.h5").unlink(), ["w"], "rank-1.h5"),
    "short": (lambda data: os.truncate(data / "rank-1.h5", 5000), ["w"], "rank-1.h5"),
    "tensor": (lambda data: flip(data / "rank-1.h5", in_tensor), ["w"], "rank-1.h5"),
    "of one rank": (lambda data: flip(data / "rank-0.h5", in_mean), ["mean"], "rank-0.h5"),
    "value": (lambda data: flip(data / "rank-0.h5", in_text), ["text"], "rank-0.h5"),
}


@pytest.mark.parametrize("offered", [False, True], ids=["folder", "daemon"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported(ranks, stored, damage, offered):
    ranks(2, save_marked)
    stored.put()
    harm, names, word = DAMAGES[damage]
    with stored.offered() as environment:
        harm(stored.data())
        (said,) = ranks(1, refused, str(stored.folder), environment if offered else {}, names, group=False)
    assert word in said and "was marked suspect" in said, said
    assert not stored.complete() and any(stored.folder.glob("step-1.*.manifest.suspect"))


def beside(rank, folder):
    """What lies in pieces that are whole is there; only this rank's parts are looked at."""
    from dlrover_slurm import dcp

    state = {"text": "", "mean": torch.zeros(3000)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dcp.load(state, folder=folder) == 1
    return state["text"]


def test_damage_elsewhere_is_not_touched(ranks, stored):
    ranks(2, save_marked)
    stored.put()
    flip(stored.data() / "rank-1.h5", in_tensor)
    assert ranks(1, beside, str(stored.folder), group=False) == ["needle of 0"]
    assert stored.complete()


def no_folder(rank, folder):
    from dlrover_slurm import NotFoundError, dcp

    for path in (folder, folder + "/nobody"):
        with pytest.raises(NotFoundError, match="no (complete )?checkpoint in"):
            dcp.load({"w": torch.zeros(1)}, folder=path)


def test_no_checkpoint_there(ranks, tmp_path):
    ranks(1, no_folder, str(tmp_path), group=False)


def by_its_name(rank, folder, steps):
    from dlrover_slurm import GlobalTensors, NotFoundError, dcp

    for step, path in steps.items():
        state = {"at": 0, "w": torch.zeros(2)}
        assert dcp.load(state, folder=path) == step and state["at"] == step
    state = {"at": 0, "w": torch.zeros(2)}
    assert dcp.load(state, folder=folder) == max(steps), "the newest of the lineage"
    with GlobalTensors(folder) as tensors:
        assert (tensors.step, tensors.saved_by) == (max(steps), 2) and "w" in tensors.infos()
        assert tensors.torch("w").tolist() == [max(steps)] * 2
    reader = dcp.FolderReader(steps[1])
    reader.reset("run/5")
    with pytest.raises(NotFoundError, match="is of step 1, not 5"):
        reader.read_metadata()


def save_steps(rank, step):
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    assert dcp.save(step, {"at": step, "w": torch.full((2,), float(step))})


def test_one_of_several_by_its_folder(ranks, stored):
    for step in (1, 2):
        ranks(2, save_steps, step)
        stored.put(step)
    steps = {step: str(next(stored.folder.glob(f"step-{step}.*.manifest")).with_suffix("")) for step in (1, 2)}
    assert ranks(3, by_its_name, str(stored.folder), steps, group=False)


# ---- DLRover's names ----


def names_save(rank, name):
    from dlrover_slurm import compat

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    kind = "ddp" if name == "DdpCheckpointer" else "fsdp2"
    checkpointer = getattr(compat, name)("/nonexistent")
    model, optimizer = trained(kind)
    arguments = (model, optimizer, {"epoch": 4, "rank": rank})
    if kind == "ddp":
        arguments = ({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 4, "rank": rank},)
    assert checkpointer.save_checkpoint(1, *arguments, storage_type=compat.StorageType.MEMORY)
    return whole(model, optimizer)


def names_load(rank, name, folder, environment, saved):
    from dlrover_slurm import UnsupportedError, compat

    os.environ.update(environment)
    kind = "ddp" if name == "DdpCheckpointer" else "fsdp2"
    checkpointer = getattr(compat, name)("/nonexistent")
    model, optimizer = make(kind, seed=7)
    train(model, optimizer, 1)
    path = "" if environment else folder
    if kind == "ddp":
        found = checkpointer.load_checkpoint(path)
        model.load_state_dict(found.pop("model"))
        optimizer.load_state_dict(found.pop("optimizer"))
    else:
        found = checkpointer.load_checkpoint(model, optimizer, path)
    if kind == "ddp" and dist.get_world_size() != 2:
        with pytest.raises(UnsupportedError, match="saved by 2 ranks, this world has 3"):
            compat.DdpCheckpointer("/nonexistent", global_shard_num=2).load_checkpoint(path)
    assert {key: found[key] for key in ("epoch", "rank")} == {"epoch": 4, "rank": rank % 2}
    assert whole(model, optimizer) == saved


@pytest.mark.parametrize("name", ["DdpCheckpointer", "FsdpShardCheckpointer", "FsdpFullCheckpointer"])
def test_names_of_dlrover(ranks, stored, name):
    saved = merged(ranks(2, names_save, name))
    folder = str(stored.put().data())
    with stored.offered() as environment:
        for count in (2, 3):
            ranks(count, names_load, name, folder, environment, saved)
            ranks(count, names_load, name, folder, {}, saved)
