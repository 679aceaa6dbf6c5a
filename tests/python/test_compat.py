# SPDX-License-Identifier: Apache-2.0
"""DLRover's DdpCheckpointer with whatever torch there is (Debian's is 1.13): tests/adapters has the rest, with the current one."""

import re
import signal

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os, signal, sys, torch, torch.distributed as dist
from torch import nn
from dlrover_slurm.compat import DdpCheckpointer, StorageType

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
torch.manual_seed(3)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(7, 13), nn.BatchNorm1d(13), nn.Linear(13, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpointer = DdpCheckpointer("/nonexistent/checkpoints")
found = checkpointer.load_checkpoint()
if found:
    assert found["epoch"] == 4
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
first = found["step"] + 1 if found else 0
print("begins at", first, flush=True)
for step in range(first, 6):
    loss = model(torch.randn(4, 7, generator=torch.Generator().manual_seed(step))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item().hex(), flush=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "epoch": 4}
    assert checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY if step % 2 else StorageType.DISK)
    if step == 3 and sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
assert checkpointer.wait_latest_checkpoint(timeout=10)
print("state", sum(value.double().sum().item() for value in model.state_dict().values()).hex(), flush=True)
"""


def test_a_training_killed_and_resumed(run_python, tmp_path):
    def train(kill, folder):
        store = tmp_path / f"store-{len(list(tmp_path.glob('store-*')))}"
        code, out, err = run_python(PROGRAM, store, kill, DLROVER_LOCAL_DIR=str(tmp_path / folder), GLOO_SOCKET_IFNAME="lo")
        assert code == (-signal.SIGKILL if kill == "kill" else 0), err
        return [int(n) for n in re.findall(r"^begins at (\d+)$", out, re.M)], re.findall(r"^(?:step|state) .*$", out, re.M)

    begun, alone = train("no", "alone")
    assert begun == [0] and len(alone) == 7
    begun, killed = train("kill", "killed")
    assert begun == [0] and killed == alone[:4]
    begun, resumed = train("no", "killed")
    assert begun == [4] and resumed == alone[4:]


LEFT = """
import sys, warnings, torch
from dlrover_slurm import _session
from dlrover_slurm.compat import DdpCheckpointer
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    found = DdpCheckpointer(sys.argv[1]).load_checkpoint()
print(found["step"], found["lr"], found["x"].sum().item(), _session.last_step, *[w.message for w in told])
"""


def test_what_dlrover_has_left_is_gone_on_from(run_python, tmp_path):
    import torch

    (tmp_path / "40").mkdir()
    torch.save({"x": torch.ones(5), "lr": 0.5, "step": 40}, tmp_path / "40" / "rank_0.pt")
    (tmp_path / "dlrover_latest.txt").write_text("40")
    code, out, err = run_python(LEFT, tmp_path)
    assert code == 0, err
    assert out.startswith("40 0.5 5.0 40 ") and "40/rank_0.pt is loaded, which DLRover has left" in out


@pytest.mark.parametrize("version", ["1.13.1", "2.5.1+cu121"])
def test_the_fsdp_classes_name_the_torch_that_they_need(monkeypatch, version):
    import torch

    from dlrover_slurm import UnsupportedError, compat

    monkeypatch.setattr(torch, "__version__", version)
    for name in ("FsdpShardCheckpointer", "FsdpFullCheckpointer"):
        with pytest.raises(UnsupportedError, match=f"{name} needs torch 2.6 or later, this is {version[:5]}"):
            getattr(compat, name)("/nonexistent")
    compat.DdpCheckpointer("/nonexistent")
