# SPDX-License-Identifier: Apache-2.0
"""dlrover_slurm.load() from storage in a world of another size than that which saved."""

import os
import warnings

import pytest
import torch
from stored import LINEAGE, Stored, needs_programs, ranks_of_a_node

pytestmark = needs_programs


@pytest.fixture
def stored(tmp_path):
    return Stored(tmp_path)


def model(step=7.0):
    weight = torch.arange(100000.0) + step
    return {"weight": weight, "tied": weight, "bias": torch.full((10,), step), "halves": [weight[:50000], weight[40000:]]}


def optimizer(step=7.0):
    return {"state": {0: {"exp_avg": torch.full((300, 100), step), "step": torch.tensor(step)}}, "param_groups": [{"lr": 0.5, "params": [0], "nan": float("nan")}]}


def state_of(rank, kind):
    """In all of them ``model`` is the same on all ranks."""
    state = {"model": model(), "optimizer": optimizer(), "epoch": 3}
    if kind == "tensor":
        state["noise"] = torch.arange(20000.0) + rank  # large enough to be dealt out, were it said to be the same
    elif kind == "value":
        state["of"] = {"rank": rank}
    elif kind == "keys":
        state["of"] = {rank: 1}
    elif kind == "text":
        state["log"] = "x" * 10000
    return state


def replicated(name):
    return name.startswith(("model.", "optimizer."))


def save(rank, sockets, environment, kind):
    import dlrover_slurm

    os.environ.update(environment, DLROVER_SOCKET=sockets[rank])
    assert dlrover_slurm.save(7, state_of(rank, kind), replicated=True if kind == "all" else replicated, ledger={"at": rank})


def save_alone(rank, kind):
    """Nobody keeps anything for others."""
    import dlrover_slurm

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    assert dlrover_slurm.save(7, state_of(rank, kind), replicated=replicated)


def same(found, expected):
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected or (found != found and expected != expected)


def take(rank, kind, how, folder, saved_by):
    """What came of it: "own", "adopted", or the error; and the warnings."""
    import dlrover_slurm

    os.environ.update(how["environment"])
    arguments = {"adopt": how["adopt"], **({} if how["environment"] else {"folder": folder})}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            checkpoint = dlrover_slurm.load(**arguments)
        except dlrover_slurm.UnsupportedError as error:
            return str(error), []
    assert (checkpoint.step, checkpoint.saved_by) == (7, saved_by)
    assert same(checkpoint.state, state_of(rank % saved_by, kind))
    of = checkpoint.state["model"]
    assert of["weight"].data_ptr() == of["tied"].data_ptr() == of["halves"][0].data_ptr(), "they share memory again"
    assert not seen or rank == 0
    return "own" if rank < saved_by else "adopted", [str(w.message) for w in seen]


def loads(ranks, stored, kind, saved_by, count, adopt):
    """By the folder, and as what the job goes on from."""
    by_folder = ranks(count, take, kind, {"environment": {}, "adopt": adopt}, str(stored.folder), saved_by, group=False)
    with stored.offered() as environment:
        offered = ranks(count, take, kind, {"environment": environment, "adopt": adopt}, "", saved_by, group=False)
    assert offered == by_folder and stored.complete()
    return [what for what, _ in offered], offered[0][1]


@pytest.mark.parametrize("kind, name", [("all", None), ("tensor", "noise"), ("value", "of.rank"), ("keys", "of"), ("text", "log")])
def test_another_size(ranks, stored, kind, name):
    """Saved by 4 ranks of a node; loaded by 2, 3 (fewer), 6 and 4."""
    with ranks_of_a_node(4, stored.folder) as (sockets, environment):
        ranks(4, save, sockets, environment, kind, group=False)
    for count, rest in ((2, "ranks 2 to 3"), (3, "rank 3")):
        for adopt in (False, True):
            what, said = loads(ranks, stored, kind, 4, count, adopt)
            assert what == ["own"] * count
            told = name in ("noise", "log") and not adopt  # what the values of others are takes reading all
            assert len(said) == told and all(f"'{name}' first" in text and f"what {rest} saved" in text for text in said), said
    what, said = loads(ranks, stored, kind, 4, 6, False)
    assert what[:4] == ["own"] * 4 and said == []
    if name is None:
        assert what[4:] == ["adopted"] * 2
    for rank in (4, 5) if name else ():
        assert f"saved by 4 ranks, this world has 6: '{name}' is each rank's own, and rank {rank} has none" in what[rank], what[rank]
        assert "adopt=True" in what[rank] and f"takes what rank {rank - 4} saved" in what[rank]
    assert loads(ranks, stored, kind, 4, 6, True) == (["own"] * 4 + ["adopted"] * 2, [])
    assert loads(ranks, stored, kind, 4, 4, False) == (["own"] * 4, [])


def test_of_nodes_of_one_rank(ranks, stored):
    """2 -> 4 where each rank has kept all of its own: said to be the same is what counts, not who kept it."""
    ranks(2, save_alone, "plain", group=False)
    stored.put(7)
    assert loads(ranks, stored, "plain", 2, 4, False)[0] == ["own", "own", "adopted", "adopted"]


def not_said(rank):
    import dlrover_slurm

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    assert dlrover_slurm.save(7, state_of(rank, "plain"))


def test_equal_is_not_the_same(ranks, stored):
    """Tensors that all ranks have alike, and nobody said so: they may be each rank's own."""
    ranks(2, not_said, group=False)
    stored.put(7)
    what, _ = loads(ranks, stored, "plain", 2, 3, False)
    assert what[:2] == ["own", "own"] and "'model.bias' is each rank's own" in what[2], what[2]


def damaged(rank, folder):
    import dlrover_slurm

    if rank == 3:
        with pytest.raises(dlrover_slurm.CorruptError, match="rank-3.h5"):
            dlrover_slurm.load(folder=folder)


def test_only_its_own_rank_is_read(ranks, stored):
    """Of the others what they keep for it: damage in what is theirs alone is not touched."""
    with ranks_of_a_node(4, stored.folder) as (sockets, environment):
        ranks(4, save, sockets, environment, "tensor", group=False)
    path = next(stored.data().glob("rank-3.h5"))
    data = bytearray(path.read_bytes())
    needle = (torch.arange(20000.0) + 3).numpy().tobytes()[-64:]
    data[data.index(needle)] ^= 1
    path.write_bytes(data)
    assert loads(ranks, stored, "tensor", 4, 3, True)[0] == ["own"] * 3
    ranks(4, damaged, str(stored.folder), group=False)
