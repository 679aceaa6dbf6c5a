# SPDX-License-Identifier: Apache-2.0
"""Models of transformers under DDP and FSDP2 in a loop of one's own (real_models.py): killed in the middle of a step, the losses of every step after it
are, bit for bit, those of a run that nobody disturbed. With two ranks a sum over them has no order, whatever DDP's buckets are."""

import signal

import pytest
from conftest import nightly
from ranks import TOP, Failed, Killed, Ranks
from real_models import STEPS, train
from test_memory import losses
from test_memory import pytestmark as needs_daemon

KILL_AT = 4


@pytest.mark.parametrize("name, kind, way, victims", [
    ("gpt2", "ddp", "calls", [0, 1]), ("gpt2", "ddp", "dcp", [1]), ("gpt2", "fsdp2", "dcp", [0, 1]),
    ("llama", "ddp", "calls", [1]), ("llama", "fsdp2", "dcp", [1]),
])  # fmt: skip
def test_losses_as_without_the_interruption(ranks, tmp_path, name, kind, way, victims):
    """All ranks or one are killed in step 4, before its optimizer step: they go on from step 3, which all have, into the second epoch."""
    alone = Ranks(tmp_path / "alone")(2, train, name, kind, way)
    for result in alone:
        assert sorted(result) == list(range(STEPS)) and len(set(result.values())) == STEPS
    assert alone[0] != alone[1], "each rank has its own part of the data"
    killed = ranks(2, train, name, kind, way, KILL_AT, victims, may_fail=True)
    for rank, result in enumerate(killed):
        assert isinstance(result, Killed) and result.signal == signal.SIGKILL if rank in victims else isinstance(result, (Killed, Failed)), result
    resumed = ranks(2, train, name, kind, way)
    for mine, whole in zip(resumed, alone):
        assert mine == {step: whole[step] for step in range(KILL_AT, STEPS)}


@needs_daemon
@pytest.mark.parametrize("name, kind, victims", [
    pytest.param("gpt2", "ddp", "1", marks=nightly),
    ("llama", "fsdp2", "0,1"),
])  # fmt: skip
def test_losses_under_a_daemon(ranks, name, kind, victims):
    """The same, but started anew by dlrover-run, from the memory of its daemon. The loss that a rank said last of each step is that of an undisturbed run."""
    alone = ranks(2, train, name, kind, "dcp")
    begun, said = losses(2, TOP / "tests" / "adapters" / "real_models.py", name, kind, "dcp", KILL_AT, victims)
    assert begun[0] == 0 and len(begun) == 2 and 0 < begun[1] <= KILL_AT
    assert said == {(rank, step): loss for rank, whole in enumerate(alone) for step, loss in whole.items()}
