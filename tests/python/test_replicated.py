# SPDX-License-Identifier: Apache-2.0
"""Tensors that are the same on all ranks, under a real keeper and daemon: each is kept once on the node."""

import re

import pytest
from test_daemon import pytestmark, standalone  # noqa: F401

pytest.importorskip("torch")

COMMON = """
import torch
def state_of(step, rank=None):
    "Four large tensors and a small one that are the same everywhere, and a small one of the rank's own."
    rank = world.rank if rank is None else rank
    large = {f"layer{i}": torch.arange(300000.0) + 1000 * step + i for i in range(4)}
    return {"large": large, "tied": large["layer1"], "small": torch.full((100,), float(step)), "own": torch.full((7,), float(rank))}
def same(a, b):
    return all(torch.equal(a["large"][k], b["large"][k]) for k in b["large"]) and torch.equal(a["own"], b["own"]) and torch.equal(a["small"], b["small"])
def held():
    status = json.loads(subprocess.run([sys.argv[2], "status", os.environ["DLROVER_JOB_ID"], "--json"], capture_output=True).stdout)
    return status["groups"][0]
"""


def run(tmp_path, code, workers=2):
    from test_daemon import COMMON as common

    start = common.index("if checkpoint:\n    assert")
    end = common.index('say("begins at"')
    return standalone(tmp_path, COMMON + code, workers, common[:start] + common[end:])


def test_each_is_kept_once_and_comes_back(tmp_path):
    out = run(
        tmp_path,
        """
if checkpoint:
    assert same(checkpoint.state, state_of(checkpoint.step)), checkpoint.step
    assert checkpoint.state["tied"].data_ptr() == checkpoint.state["large"]["layer1"].data_ptr()
for step in range(start, 4):
    assert d.save(step, state_of(step), replicated=True, wait=20)
    wait_for_complete(step)
    if step == 2 and world.rank == 1 and once("killed"):
        say("bytes", next(c["bytes"] for c in held()["checkpoints"] if c["train_step"] == step))
        os.kill(os.getpid(), signal.SIGKILL)
    while step == 2 and not os.path.exists(f"{folder}/killed"):
        time.sleep(0.01)
say("ends", step)
""",
        workers=4,
    )
    for rank in range(4):
        begun = [int(n) for n in re.findall(rf"^{rank} begins at (\d+)$", out, re.M)]
        assert len(begun) == 2 and begun[1] >= 3, out
    once = 4 * 300000 * 4
    total = int(re.search(r"bytes (\d+)", out).group(1))
    assert once < total < 1.1 * once, "of all ranks together"
