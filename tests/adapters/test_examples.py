# SPDX-License-Identifier: Apache-2.0
"""The examples that use DLRover's names, under a real keeper and daemon: a rank crashes, and the end is that of a run without that."""

import re

import pytest
from conftest import TOP
from test_memory import standalone
from test_memory import pytestmark as needs_daemon

pytestmark = needs_daemon


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


def test_gpt(tmp_path):
    options = ("--steps", "12", "--layers", "1", "--width", "16")
    expect_equal_ends(tmp_path, "gpt/train.py", options, r"^step 11 loss \S+$", "GPT_DIE_AT")


@pytest.mark.parametrize("kind", ["ddp", "fsdp-shard", "fsdp-full"])
def test_flash(tmp_path, kind):
    options = ("--steps", "10", "--width", "32", "--kind", kind, *(["--file"] if kind == "ddp" else []))
    expect_equal_ends(tmp_path, "flash/demo.py", options, r"^rank \d ends with loss \S+$", "DEMO_DIE_AT")
