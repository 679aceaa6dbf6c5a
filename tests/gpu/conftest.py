# SPDX-License-Identifier: Apache-2.0
"""Tests on a real NVIDIA GPU. This process never touches it: the ranks, which are forked from it, do."""

import os
import pathlib
import shutil
import sys
import tempfile

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "python"), str(TOP / "tests" / "adapters")]
os.environ.setdefault("DLROVER_LIBRARY", str(pathlib.Path.cwd() / ".libs" / "libdlrover.so.0"))
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "DLROVER_MANAGED"):
    os.environ.pop(name, None)

from ranks import Ranks  # noqa: E402

HAVE_GPU = os.path.exists("/dev/nvidiactl")


def pytest_collection_modifyitems(items):
    if not HAVE_GPU:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU (/dev/nvidiactl)"))


@pytest.fixture(params=["memory", "disk"])
def everywhere(request, tmp_path):
    """Checkpoints in shared memory, which the driver registers, and in a file on a disk, which it may refuse."""
    yield from _ranks(request.param, tmp_path)


@pytest.fixture
def ranks(tmp_path):
    """Checkpoints in shared memory."""
    yield from _ranks("memory", tmp_path)


def _ranks(where, tmp_path):
    folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm")) if where == "memory" else tmp_path / "ranks"
    try:
        yield Ranks(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
