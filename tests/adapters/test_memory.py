# SPDX-License-Identifier: Apache-2.0
"""The adapters under a real keeper and daemon: dlrover-run --standalone of the build folder (DLROVER_BUILD, default: here)."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from ranks import TOP

BUILD = pathlib.Path(os.environ.get("DLROVER_BUILD", ".")).resolve()
PROGRAMS = [BUILD / "agent" / "dlrover-run", BUILD / "dlrover-keeper", BUILD / "dlroverd"]
pytestmark = pytest.mark.skipif(not all(p.exists() for p in PROGRAMS), reason="dlrover-run, dlrover-keeper and dlroverd are not built here")

PROGRAM = """
import os, signal, sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from models import build, train
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from dlrover_slurm import dcp

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model, optimizer = build("fsdp2")
state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
last = dcp.load(state)
if last is not None:
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
print(rank, "begins at", 0 if last is None else last + 1, flush=True)
for step in range(0 if last is None else last + 1, 8):
    print(rank, "step", step, *train(model, optimizer, 1, step, rank), flush=True)
    if step == 5 and rank == 1 and last is None and sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    dcp.save(step, dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))))
dist.destroy_process_group()
"""


def standalone(count, program, *arguments, cwd=None, **environment):
    """What so many ranks of a program have said under a keeper and a daemon of their own, when they have ended well."""
    env = dict(os.environ, PYTHONPATH=str(TOP / "python"), DLROVER_SBINDIR=str(BUILD), **environment)
    command = [str(PROGRAMS[0]), "--standalone", "--nproc-per-node", str(count), "--no-python", sys.executable, str(program), *map(str, arguments)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def losses(count, program, *arguments):
    """The steps at which the first rank began, and {(rank, step): loss}, as it was said last."""
    out = standalone(count, program, *arguments).stdout
    begun = [int(n) for n in re.findall(r"^0 begins at (\d+)$", out, re.M)]
    said = re.findall(r"^(\d) step (\d+) (\S+)$", out, re.M)
    return begun, {(int(r), int(s)): loss for r, s, loss in said}


def losses_of(tmp_path, kill):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return losses(2, script, TOP / "tests" / "adapters", kill)


def test_fsdp2_goes_on_from_the_memory_of_a_daemon(tmp_path):
    """A worker killed in the sixth step: a new one goes on from memory, with the losses of a run without that."""
    begun, alone = losses_of(tmp_path, "no")
    assert begun == [0] and len(alone) == 16
    begun, resumed = losses_of(tmp_path, "kill")
    assert begun[0] == 0 and len(begun) == 2 and begun[1] > 0
    assert resumed == alone
