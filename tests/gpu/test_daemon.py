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
world = dlrover_slurm.world()
if world.world_size > 1:
    torch.distributed.init_process_group("gloo")  # NCCL refuses two ranks on one GPU
elif kind in ("ddp", "fsdp2"):
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
training = (Sharded if kind == "fsdp2" else Training)(kind)
last = training.load()
print(world.rank, "begins at", 0 if last is None else last + 1, flush=True)
for step in range(0 if last is None else last + 1, STEPS):
    print(world.rank, "step", step, training.step(step).item().hex(), flush=True)
    training.save(step)
    if step == KILLED_AT and last is None and kill == "kill" and world.rank == world.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
dlrover_slurm.wait_saved()
"""

STAYING = """
import os, sys
sys.path[:0] = sys.argv[1:3]
import dlrover_slurm, torch
import torch.distributed as dist
from test_training import KILLED_AT, STEPS, Training

fails = sys.argv[3]
torch.use_deterministic_algorithms(True)
dlrover_slurm.stay()
training, kept = Training("fused"), torch.arange(1 << 22, device="cuda")


def train(rank):
    last = training.load()
    first = 0 if last is None else last + 1
    print(rank, "begins at", first, flush=True)
    print(rank, "is", os.getpid(), kept.data_ptr(), torch.equal(kept.cpu(), torch.arange(1 << 22)), flush=True)
    for step in range(first, STEPS):
        loss = training.step(step).detach().cpu()
        if step == KILLED_AT and last is None and fails == "fails" and rank == 1:
            raise RuntimeError("as by a collective that failed")  # the other rank's next one does
        dist.all_reduce(loss)
        print(rank, "step", step, loss.item().hex(), flush=True)
        training.save(step)
    dlrover_slurm.wait_saved()


while True:
    try:
        dist.init_process_group("gloo")
        train(dlrover_slurm.world().rank)
        break
    except (RuntimeError, dlrover_slurm.StaleError) as error:
        print(dlrover_slurm.world().rank, "leaves:", error, file=sys.stderr)
        if dist.is_initialized():
            dist.destroy_process_group()
        dlrover_slurm.next_generation()
dist.destroy_process_group()
"""


def said(tmp_path, program, ranks, *arguments):
    """Of the first rank: all that it has said, the steps at which it began, and the loss that it said last of each step."""
    script = tmp_path / "program.py"
    script.write_text(program)
    out = standalone(ranks, script, HERE, HERE.parent / "adapters", *arguments, CUBLAS_WORKSPACE_CONFIG=":4096:8").stdout
    return out, [int(n) for n in re.findall(r"^0 begins at (\d+)$", out, re.M)], dict(re.findall(r"^0 step (\d+) (\S+)$", out, re.M))


@pytest.mark.parametrize("kind, ranks", [("fused", 1), ("half", 1), ("ddp", 1), ("fsdp2", 1), ("ddp", 2)])
def test_killed_in_its_middle(tmp_path, kind, ranks):
    _, begun, alone = said(tmp_path, PROGRAM, ranks, kind, "no")
    assert begun == [0]
    _, begun, resumed = said(tmp_path, PROGRAM, ranks, kind, "kill")
    assert begun[0] == 0 and len(begun) == 2 and 0 < begun[1] <= 10
    assert resumed == alone


def test_processes_that_stay_go_on_with_their_gpu(tmp_path):
    """Their generation ends without the end of a process: contexts and tensors are kept, and what is restored goes into them."""
    _, begun, alone = said(tmp_path, STAYING, 2, "no")
    assert begun == [0]
    out, begun, resumed = said(tmp_path, STAYING, 2, "fails")
    assert begun[0] == 0 and len(begun) == 2 and 0 < begun[1] <= 9
    assert resumed == alone
    for rank in (0, 1):
        first, second = re.findall(rf"^{rank} is (.*)$", out, re.M)
        assert first == second and first.endswith("True"), (first, second)
