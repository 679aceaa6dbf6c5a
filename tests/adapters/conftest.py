# SPDX-License-Identifier: Apache-2.0
"""Tests of the framework adapters: several ranks on this machine, gloo on the CPU, plain files instead of a daemon."""

import os
import pathlib
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "python"), str(TOP / "tests" / "fakes")]
os.environ.setdefault("DLROVER_LIBRARY", str(pathlib.Path.cwd() / ".libs" / "libdlrover.so.0"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "DLROVER_MANAGED"):
    os.environ.pop(name, None)

import torch  # noqa: E402, F401
import torch._dynamo  # noqa: E402  (the first optimizer step would import it)
import torch.distributed.checkpoint.state_dict  # noqa: E402
import torch.distributed.fsdp  # noqa: E402
import torch.distributed.tensor.parallel  # noqa: E402
from ranks import Ranks  # noqa: E402

#: In CI one of each kind of what starts torch in many processes.
nightly = pytest.mark.skipif(os.environ.get("DLROVER_NIGHTLY") != "1", reason="only nightly: it takes a while")


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)
