# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU under a real keeper and daemon (dlrover-run --standalone), whose worker is killed in its middle."""

import pathlib
import re

import pytest
from test_memory import PROGRAMS, standalone

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(not all(p.exists() for p in PROGRAMS), reason="dlrover-run, dlrover-keeper and dlroverd are not built here")

PROGRAM = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
import dlrover_slurm, torch
from test_training import KILLED_AT, STEPS, Sharded, Training

kind, kill = sys.argv[3:5]
torch.use_deterministic_algorithms(True)
if kind in ("ddp", "fsdp2"):
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
training = (Sharded if kind == "fsdp2" else Training)(kind)
last = training.load()
print("begins at", 0 if last is None else last + 1, flush=True)
for step in range(0 if last is None else last + 1, STEPS):
    print("step", step, training.step(step).item().hex(), flush=True)
    training.save(step)
    if step == KILLED_AT and last is None and kill == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
dlrover_slurm.wait_saved()
"""


def losses(tmp_path, kind, kill):
    """The steps at which a life of the worker began, and the loss that was said last of each step."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    out = standalone(1, script, HERE, HERE.parent / "adapters", kind, kill, CUBLAS_WORKSPACE_CONFIG=":4096:8").stdout
    return [int(n) for n in re.findall(r"^begins at (\d+)$", out, re.M)], dict(re.findall(r"^step (\d+) (\S+)$", out, re.M))


@pytest.mark.parametrize("kind", ["fused", "half", "ddp", "fsdp2"])
def test_killed_in_its_middle(tmp_path, kind):
    begun, alone = losses(tmp_path, kind, "no")
    assert begun == [0]
    begun, resumed = losses(tmp_path, kind, "kill")
    assert begun[0] == 0 and len(begun) == 2 and 0 < begun[1] <= 10
    assert resumed == alone
