# SPDX-License-Identifier: Apache-2.0
"""Tests of dlrover_slurm on plain files: no daemon. The library comes from DLROVER_LIBRARY or the build folder."""

import os
import pathlib
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "python"), str(TOP / "tests" / "fakes")]
if "DLROVER_LIBRARY" not in os.environ:
    os.environ["DLROVER_LIBRARY"] = str(pathlib.Path.cwd() / ".libs" / "libdlrover.so.0")
for name in ("RANK", "WORLD_SIZE", "DLROVER_MANAGED"):
    os.environ.pop(name, None)


@pytest.fixture
def dlrover(tmp_path, monkeypatch):
    """The package with a fresh session in a fresh folder."""
    import dlrover_slurm
    from dlrover_slurm import _hook, _session

    monkeypatch.setenv("DLROVER_LOCAL_DIR", str(tmp_path))
    monkeypatch.setattr(_session, "_session", None)
    monkeypatch.setattr(_session, "_sealing", None)
    monkeypatch.setattr(_session, "last_step", -1)
    monkeypatch.setattr(_hook, "_counting", False)
    monkeypatch.setattr(_hook, "_counted", None)
    monkeypatch.setattr(_hook, "_stopped", False)
    yield dlrover_slurm
    if _session._session is not None:
        _session._close(_session._session)


@pytest.fixture
def round_trip(dlrover):
    """save() and load() of a state; what comes back."""

    def go(state, **options):
        assert dlrover.save(1, state, **options)
        checkpoint = dlrover.load()
        assert checkpoint.step == 1
        return checkpoint.state

    return go


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a process of its own; returns (exit status, stdout, stderr)."""

    def run(code, *arguments, **environment):
        env = {**os.environ, "PYTHONPATH": str(TOP / "python"), "DLROVER_LOCAL_DIR": str(tmp_path / "run"), **environment}
        done = subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return run
