# SPDX-License-Identifier: Apache-2.0
"""The examples that use DLRover's names, under a real keeper and daemon: a rank crashes, and the end is that of a run without that."""

import ast
import os
import re
import socket
import subprocess
import sys

import pytest
from conftest import nightly
from ranks import TOP
from stored import Stored, needs_programs, served
from test_compat import DLROVERS
from test_memory import standalone
from test_memory import pytestmark as needs_daemon

GPT = TOP / "examples" / "gpt" / "train.py"
GPT_OPTIONS = ("--steps", "12", "--layers", "1", "--width", "16")
GPT_END = r"^step 11 loss \S+$"


def run(tmp_path, program, *options, **environment):
    """Where each rank began, in order, and what was printed."""
    done = standalone(2, TOP / "examples" / program, *options, cwd=tmp_path, **environment)
    assert not list(tmp_path.iterdir()), "nothing is left where it ran"
    return [int(n) for n in re.findall(r"^rank 0 begins at step (\d+)$", done.stdout, re.M)], done.stdout + done.stderr


def expect_equal_ends(tmp_path, program, options, pattern, variable):
    begun, out = run(tmp_path, program, *options)
    ends = sorted(re.findall(pattern, out, re.M))
    assert begun == [0] and ends, out
    begun, out = run(tmp_path, program, *options, **{variable: "7"})
    assert begun[0] == 0 and len(begun) == 2 and 0 < begun[1] <= 7, out
    assert sorted(set(re.findall(pattern, out, re.M))) == ends


@pytest.mark.parametrize("program", ["gpt/train.py", "flash/demo.py"])
def test_one_import_is_all_that_differs(program):
    """DLRover's names from one line, and ours nowhere else."""
    tree = ast.parse((TOP / "examples" / program).read_text())
    [changed] = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) and "dlrover" in ast.unparse(node)]
    assert isinstance(changed, ast.ImportFrom) and changed.module == "dlrover_slurm.compat"
    assert {name.name for name in changed.names} <= {*DLROVERS, "StorageType"} and not any(name.asname for name in changed.names)


@needs_daemon
def test_gpt(tmp_path):
    expect_equal_ends(tmp_path, "gpt/train.py", GPT_OPTIONS, GPT_END, "GPT_DIE_AT")


def gpt_ranks(count, cwd, *options, **environment):
    """What each of so many ranks, started by nobody of ours, has said, and their exit statuses. One that ends badly takes the others along."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(count):
        env = dict(os.environ, PYTHONPATH=str(TOP / "python"), MASTER_ADDR="localhost", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(count),
                   LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count), GLOO_SOCKET_IFNAME="lo", PYTHONFAULTHANDLER="1", **environment)  # fmt: skip
        ranks.append(subprocess.Popen([sys.executable, str(GPT), *GPT_OPTIONS, *options], env=env, cwd=cwd, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))  # fmt: skip
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    return said, [rank.returncode for rank in ranks]


def ends(said):
    return re.findall(GPT_END, said[0], re.M)


@needs_programs
def test_gpt_saves_to_storage_and_loads_from_it(tmp_path):
    """StorageType.DISK, where nothing else is saved but at the first step: what a second job goes on from, by itself or by the folder."""
    stored, options = Stored(tmp_path), ("--memory-every", "1000", "--storage-every", "4")
    said, codes = gpt_ranks(2, tmp_path, *options, DLROVER_LOCAL_DIR=str(tmp_path / "undisturbed"))
    assert codes == [0, 0] and len(ends(said)) == 1, said
    wanted = ends(said)
    said, codes = gpt_ranks(2, tmp_path, *options, DLROVER_LOCAL_DIR=str(stored.local), GPT_DIE_AT="7")
    assert codes[1] == 9 and not ends(said), said
    said, codes = gpt_ranks(2, tmp_path, *options, DLROVER_LOCAL_DIR=str(stored.local))
    assert codes == [0, 0] and "rank 0 begins at step 5" in said[0] and ends(said) == wanted, said
    stored.put(8)
    said, codes = gpt_ranks(2, tmp_path, "--checkpoint-dir", str(stored.folder), DLROVER_LOCAL_DIR=str(tmp_path / "third"))
    assert codes == [0, 0] and "rank 0 begins at step 9" in said[0] and ends(said) == wanted, said


@needs_programs
def test_gpt_asks_a_daemon_for_storage(tmp_path):
    """StorageType.DISK reaches the daemon for these steps, and for no other."""
    with served("with-storage") as (environment, heard):
        said, codes = gpt_ranks(1, tmp_path, "--memory-every", "1000", "--storage-every", "5", **environment)
    assert codes == [0], said
    assert [line for line in heard if line.endswith("to storage")] == [f"step {step} to storage" for step in (0, 5, 10)], heard


@needs_daemon
@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp-shard", marks=nightly), pytest.param("fsdp-full", marks=nightly)])
def test_flash(tmp_path, kind):
    options = ("--steps", "10", "--width", "32", "--kind", kind, *(["--file"] if kind == "ddp" else []))
    expect_equal_ends(tmp_path, "flash/demo.py", options, r"^rank \d ends with loss \S+$", "DEMO_DIE_AT")
