# SPDX-License-Identifier: Apache-2.0
"""dlrover-gpu-check with a real driver: every GPU that this process sees multiplies right."""

import os
import pathlib
import subprocess

import torch

PROGRAM = pathlib.Path(os.environ.get("DLROVER_BUILD", ".")) / "mover" / "dlrover-gpu-check"


def run(visible=None):
    env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}
    done = subprocess.run([str(PROGRAM)], env=env, capture_output=True, text=True, timeout=60, check=False)
    print(torch.cuda.device_count(), "GPUs:", done.stdout)
    kind, devices, microseconds, text = done.stdout.rstrip("\n").split(" ", 3)
    return kind, int(devices), int(microseconds), text, done.returncode


def test_all_are_sound():
    kind, devices, microseconds, text, code = run()
    assert (kind, devices, text, code) == ("sound", torch.cuda.device_count(), "", 0)
    assert 0 < microseconds < 10_000_000


def test_one_that_is_promised_and_not_there():
    kind, _, _, text, code = run(visible="0,99")
    assert (kind, code) == ("failed", 1)
    assert text == "1 of the 2 GPUs of this step answer"
