# SPDX-License-Identifier: Apache-2.0
"""What ranks saved, exported by dlrover ckpt and read by the other formats' own libraries: the same tensors, bit for bit."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from models import digest
from ranks import TOP, Ranks
from stored import BUILD, LINEAGE, Stored, needs_programs, state_of, trained, whole

pytestmark = [needs_programs, pytest.mark.skipif(not (BUILD / "dlrover").exists(), reason="dlrover is not built here")]

ROWS, COLUMNS = 7, 6  # of which the ranks have 4 and 3 rows
TYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64",
         "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"]  # fmt: skip
NO_SAFETENSORS = "/types.complex128"


def of_bits(name):
    """Any bits: not-a-numbers and denormals among them."""
    dtype, generator = getattr(torch, name), torch.Generator().manual_seed(TYPES.index(name))
    high = 2 if dtype == torch.bool else 256
    return torch.randint(0, high, (ROWS, COLUMNS * dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype)


def save(rank):
    """Digests of what has to be in the other format, by name."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from dlrover_slurm import dcp

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    full = {name: of_bits(name) for name in TYPES}
    parts = {name: DTensor.from_local(value.chunk(2)[rank].clone(), mesh, [Shard(0)], shape=value.shape, stride=value.stride()) for name, value in full.items()}
    alike = {"scalar": torch.tensor(1.5, dtype=torch.bfloat16), "none": torch.empty(0, 3)}
    model, optimizer = trained("fsdp2")
    assert dcp.save(1, {"model": state_of(model, optimizer)["model"], "types": parts, **alike, "own": f"of {rank}"})
    weights = {f"/model.{name.rpartition('/')[2]}": value for name, value in whole(model, optimizer).items() if name.startswith("/model/")}
    weights.pop("/model.last.weight")  # a tied one is there once, under its first name
    return {**weights, **digest({f"types.{name}": value for name, value in full.items()}), **digest(alike)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The lineage's folder on storage, and what is in it."""
    folder = tmp_path_factory.mktemp("export")
    wanted, other = Ranks(folder)(2, save)
    assert wanted == other and len(wanted) > len(TYPES) + 5
    return Stored(folder).put().folder, wanted


def export(folder, form, out, *more):
    environment = {**os.environ, "PYTHONPATH": str(TOP / "python"), "DLROVER_PYTHON": sys.executable}
    done = subprocess.run([BUILD / "dlrover", "ckpt", "export", folder, "--to", form, out, *more], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "left out, values of each rank's own: own" in done.stderr
    assert os.listdir(out.parent) == [out.name]
    return done.stdout


def read_torch(path):
    return torch.load(path, weights_only=True)


def read_safetensors(path):
    from safetensors.torch import load_file

    return load_file(path)


def read_dcp(path):
    """Into tensors of the sizes and types that the checkpoint names, as any program does."""
    reader = torch_dcp.FileSystemReader(path)
    state = {name: torch.zeros(tensor.size, dtype=tensor.properties.dtype) for name, tensor in reader.read_metadata().state_dict_metadata.items()}
    torch_dcp.load(state, storage_reader=reader)
    return state


def read(rank, reader, path):
    return digest(reader(path))


@pytest.mark.parametrize("reader", [read_torch, read_dcp, read_safetensors], ids=["torch", "dcp", "safetensors"])
def test_the_formats_own_library_reads_it(ranks, tmp_path, saved, reader, request):
    form, (folder, wanted), names = request.node.callspec.id, saved, ()
    if form == "safetensors":
        wanted = {name: value for name, value in wanted.items() if name != NO_SAFETENSORS}
        names = ("--name", "own", *(name[1:] for name in wanted))
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "exported"
    said = export(folder, form, out, *names)
    [found] = ranks(1, read, reader, str(out), group=False)
    assert f"{len(wanted)} tensors" in said
    assert found == wanted
    assert {found[f"/types.{name}"][0] for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")} == {"torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"}
