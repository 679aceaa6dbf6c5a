# SPDX-License-Identifier: Apache-2.0
"""What a rank looks at to plan a load at another world size: its own part's skeleton, and of the others' as few as what it wants takes."""

import os
import subprocess

import pytest
import torch
from stored import BUILD, LINEAGE, Stored, needs_programs

STORED_RANKS = BUILD / "bench" / "stored_ranks"
RANKS, TENSORS = 64, 20

pytestmark = needs_programs


@pytest.fixture
def stored(tmp_path):
    return Stored(tmp_path)


@pytest.fixture
def folder(tmp_path):
    if not STORED_RANKS.exists():
        pytest.skip("bench/stored_ranks is not built here: make bench/stored_ranks (needs HDF5)")
    subprocess.run([str(STORED_RANKS), str(tmp_path / "many"), str(RANKS), str(TENSORS)], check=True)
    return str(tmp_path / "many")


def counting():
    """The ranks whose skeletons are read from now on."""
    from dlrover_slurm import _session

    seen, read = [], _session.RankObject.skeleton

    def noted(self):
        seen.append(self._rank)
        return read(self)

    _session.RankObject.skeleton = noted
    return seen


def weights():
    return {f"layers.{i}.attention.weight": torch.zeros(RANKS, 4) for i in range(TENSORS)}


def plan(rank, folder):
    """Skeletons looked at for: tensors alone; a name that nobody has; everything."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    from dlrover_slurm import dcp

    seen = counting()
    state = {"model": weights()}
    assert dcp.load(state, folder=folder) == 1
    assert all((value.view(torch.uint8) == 1).all() for value in state["model"].values())
    tensors = list(seen)
    partial = {"model": {**weights(), "lora": torch.zeros(2), "lora2": torch.zeros(2)}}
    assert dcp.load(partial, folder=folder, planner=DefaultLoadPlanner(allow_partial_load=True)) == 1
    unknown = seen[len(tensors) :]
    metadata = dcp.FolderReader(folder).read_metadata()
    assert set(metadata.state_dict_metadata.keys()) == set(metadata.state_dict_metadata)
    assert len(metadata.state_dict_metadata.items()) == TENSORS + 1 == len(metadata.planner_data)
    assert metadata.planner_data["epoch"] == ("epoch",) and "nothing" not in metadata.planner_data
    return tensors, unknown


def test_skeletons_looked_at(ranks, folder):
    for rank, (tensors, unknown) in enumerate(ranks(3, plan, folder, group=False)):
        assert tensors == [rank]
        assert sorted(unknown) == list(range(RANKS)) and unknown[0] == rank


def save_stage(rank):
    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    tied = torch.full((3,), 50.0 + rank)
    state = {f"weight.{rank}": torch.full((3,), float(rank)), f"value.{rank}": f"of {rank}", f"embedding.{rank}": tied, f"head.{rank}": tied,
             "mean": torch.full((2,), float(rank))}  # fmt: skip
    assert dcp.save(1, state)


def load_stages(rank, folder):
    """Tensors of another stage are in the plan; values and second names of a tensor are looked for, up to the rank that has them."""
    from dlrover_slurm import dcp

    seen = counting()
    state = {f"weight.{other}": torch.zeros(3) for other in range(8)} | {"mean": torch.zeros(2)}
    with pytest.warns(UserWarning, match="under one name: mean; those of rank 5 are taken"):
        assert dcp.load(state, folder=folder) == 1
    assert [state[f"weight.{other}"][0] for other in range(8)] == list(range(8)) and state["mean"].tolist() == [5, 5]
    assert seen == [5]
    del seen[:]
    state = {"value.2": "", "head.1": torch.zeros(3)}
    assert dcp.load(state, folder=folder) == 1
    assert state["value.2"] == "of 2" and state["head.1"].tolist() == [51] * 3
    assert seen == [5, 0, 1, 2]


def one_of_thirteen(rank, folder):
    os.environ.update(RANK="5", WORLD_SIZE="13")
    load_stages(5, folder)


def test_names_of_another_stage(ranks, stored):
    ranks(8, save_stage, group=False)
    ranks(1, one_of_thirteen, str(stored.put().folder), group=False)


def save_tied(rank):
    """Two names of one tensor on rank 0, of two on the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    mesh = init_device_mesh("cpu", (2,))
    a = DTensor.from_local(torch.full((2,), 1.0), mesh, [Shard(0)])
    assert dcp.save(1, {"a": a, "b": a if rank == 0 else DTensor.from_local(torch.full((2,), 2.0), mesh, [Shard(0)])})


def load_tied(rank, folder):
    """The chunk that b's piece is in on rank 0 is a whole tensor, and is not b."""
    from dlrover_slurm import UnsupportedError, dcp

    state = {"a": torch.zeros(4)}
    assert dcp.load(state, folder=folder) == 1
    assert state["a"].tolist() == [1] * 4
    with pytest.raises(UnsupportedError, match="b from .* can not be put together"):
        dcp.load({"b": torch.zeros(4)}, folder=folder)


def test_tied_on_one_rank_only(ranks, stored):
    ranks(2, save_tied)
    ranks(3, load_tied, str(stored.put().folder), group=False)
