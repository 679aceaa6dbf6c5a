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


def test_ranks_with_different_lists_are_told(tmp_path):
    """Whoever seals second is refused; the step is not complete, and the next one is as if nothing had been."""
    out = run(
        tmp_path,
        """
state = state_of(1)
if world.rank == 0:
    del state["large"]["layer3"]
try:
    say("saved", d.save(1, state, replicated=True))
except d.InvalidError as error:
    say("refused", error)
while not (os.path.exists(f"{folder}/1.0") and os.path.exists(f"{folder}/1.1")):
    once(f"1.{world.rank}")
    time.sleep(0.01)
assert not complete(1)
assert d.save(2, state_of(2), replicated=lambda name: name.startswith("large."), wait=20)
wait_for_complete(2)
say("ends", 2)
""",
    )
    assert len(re.findall(r"^\d saved True$", out, re.M)) == 1, out
    assert len(re.findall(r"^\d refused .*do not share the same tensors at step 1", out, re.M)) == 1, out
    assert len(re.findall(r"^\d ends 2$", out, re.M)) == 2, out


def test_memory_is_asked_for_what_a_rank_keeps(tmp_path):
    out = run(
        tmp_path,
        """
d.prepare(state_of(0), replicated=True)
while not (os.path.exists(f"{folder}/p.0") and os.path.exists(f"{folder}/p.1")):
    once(f"p.{world.rank}")
    time.sleep(0.01)
if world.rank == 0:
    say("needs", held()["memory_need_bytes"])
""",
    )
    # Two large tensors of four, the small ones, and 1 MiB for the table: 4 MiB in each of three slots of two ranks; else it were 6 MiB.
    assert int(re.search(r"needs (\d+)", out).group(1)) == 2 * 3 * (4 << 20), out
