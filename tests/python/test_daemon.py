# SPDX-License-Identifier: Apache-2.0
"""The package under a real keeper and daemon: dlrover-run --standalone of the build folder."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DLROVER_BUILD", "."))
PROGRAMS = [BUILD / "agent" / "dlrover-run", BUILD / "dlrover-keeper", BUILD / "dlroverd", BUILD / "dlrover"]
pytestmark = pytest.mark.skipif(
    not all(p.exists() for p in PROGRAMS), reason="dlrover-run, dlrover-keeper, dlroverd and dlrover are not built here"
)

COMMON = """
import json, os, signal, socket, struct, subprocess, sys, time
import dlrover_slurm as d
folder = sys.argv[1]
world = d.world()
def once(name):
    "True the first time that anybody asks, over all lives."
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False
def say(*words):
    print(world.rank, *words, flush=True)
def kill_daemon():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.environ["DLROVER_SOCKET"])
        pid = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    os.kill(pid, signal.SIGKILL)
    return pid
checkpoint = d.load()
start = checkpoint.step + 1 if checkpoint else 0
if checkpoint:
    assert checkpoint.state == {"step": checkpoint.step, "rank": world.rank, "data": bytes([checkpoint.step]) * 2000000}
    assert checkpoint.ledger == checkpoint.step * 10
say("begins at", start)
def save(step):
    "A daemon that has just come back may skip until it knows again which step is complete."
    assert d.save(step, {"step": step, "rank": world.rank, "data": bytes([step]) * 2000000}, ledger=step * 10, wait=20)
def wait_for_file(name):
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(folder, name)):
        assert time.monotonic() < deadline, name
        time.sleep(0.01)
def wait_for_complete(step):
    "Until the daemon says that every rank has sealed this step."
    deadline = time.monotonic() + 20
    while not complete(step):
        assert time.monotonic() < deadline, step
        time.sleep(0.02)
def complete(step):
    asked = subprocess.run([sys.argv[2], "status", os.environ["DLROVER_JOB_ID"], "--json"], capture_output=True)
    groups = json.loads(asked.stdout)["groups"] if asked.returncode == 0 else []
    return any(c["train_step"] == step and c["complete"] for g in groups for c in g["checkpoints"])
"""


def standalone(tmp_path, code, workers=2, common=COMMON):
    script = tmp_path / "program.py"
    script.write_text(common + code)
    env = dict(os.environ, PYTHONPATH=str(TOP / "python"), DLROVER_SBINDIR=str(BUILD.resolve()))
    command = [str(PROGRAMS[0]), "--standalone", "--nproc-per-node", str(workers), "--no-python"]
    command += [sys.executable, str(script), str(tmp_path), str(PROGRAMS[3].resolve())]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def starts(out, rank):
    return [int(n) for n in re.findall(rf"^{rank} begins at (\d+)$", out, re.M)]


def test_memory_that_is_refused_costs_a_checkpoint_and_not_the_training(tmp_path):
    """But before the first save, where it is an error of how the job was set up."""
    out = standalone(
        tmp_path,
        """
import warnings
from dlrover_slurm import _session
try:
    _session.Saving(0, 1 << 46)
except d.NoMemoryError as error:
    say("refused:", error)
save(1)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        _session.Saving(2, 1 << 46)
    except d.SkippedError:
        say("skipped:", *[w.message for w in told])
save(3)
""",
        workers=1,
    )
    assert re.search("^0 refused: .*GiB", out, re.M), out
    assert re.search("^0 skipped: step 2 was not saved: .*64 TiB", out, re.M), out


def test_a_killed_worker_goes_on_from_memory(tmp_path):
    out = standalone(
        tmp_path,
        """
for step in range(start, 12):
    save(step)
    d.report_step(step)
    while not all(os.path.exists(f"{folder}/{r}.{step}") for r in range(world.world_size)):
        once(f"{world.rank}.{step}")
        time.sleep(0.005)
    if step == 6 and world.rank == 1 and once("killed"):
        wait_for_complete(step)
        os.kill(os.getpid(), signal.SIGKILL)
say("ends", step)
""",
    )
    for rank in (0, 1):
        begun = starts(out, rank)
        assert begun[0] == 0 and len(begun) == 2 and begun[1] >= 6, out
    assert len(set(tuple(starts(out, r)[1:]) for r in (0, 1))) == 1, "the ranks go on from one step"


def test_a_killed_daemon_costs_nothing(tmp_path):
    out = standalone(
        tmp_path,
        """
for step in range(start, 9):
    if step == 3 and once("daemon"):
        say("killed daemon", kill_daemon())
    save(step)
    d.report_step(step)
    if step == 6 and once("worker"):
        wait_for_complete(step)
        os.kill(os.getpid(), signal.SIGKILL)
say("ends", step)
""",
        workers=1,
    )
    begun = starts(out, 0)
    assert "killed daemon" in out
    assert begun[0] == 0 and len(begun) == 2 and begun[1] >= 6, out


def test_a_daemon_killed_between_copy_and_seal(tmp_path):
    out = standalone(
        tmp_path,
        """
from dlrover_slurm import _session
copy = _session.Saving.add_host
def copy_and_kill(*args):
    copy(*args)
    if once("daemon"):
        say("killed daemon", kill_daemon())
_session.Saving.add_host = copy_and_kill
for step in range(start, 5):
    save(step)
    if step == 0 and once("worker"):
        wait_for_complete(step)
        os.kill(os.getpid(), signal.SIGKILL)
say("ends", step)
""",
        workers=1,
    )
    assert "killed daemon" in out
    assert starts(out, 0) == [0, 1], out


def test_events_do_not_wait_for_a_save_in_another_thread(tmp_path):
    out = standalone(
        tmp_path,
        """
import threading
from dlrover_slurm import _session
if once(f"held-{world.rank}"):
    heard = threading.Event()
    d.on_membership(lambda event: event.kind == d.EventKind.GENERATION_ENDS and heard.set())
    signal.signal(signal.SIGTERM, lambda *_: None)
    once(f"listens-{world.rank}")
    with _session._lock:  # as a signal's handler in the midst of a save has it
        if world.rank == 1:
            wait_for_file("listens-0")
            os.kill(os.getpid(), signal.SIGKILL)
        say("heard", heard.wait(3))
    sys.exit(1)
""",
    )
    assert "0 heard True" in out.splitlines()


def test_a_program_may_end_while_events_come(tmp_path):
    out = standalone(
        tmp_path,
        """
d.on_membership(lambda event: None)
for step in range(start, start + 30):
    d.save(step, {"step": step, "rank": world.rank, "data": bytes([step]) * 2000000}, ledger=step * 10)
""",
    )
    assert starts(out, 0) == [0]


def test_a_process_that_stays_goes_on_with_its_handlers_and_subscriptions(tmp_path):
    """It leaves alone, which is a failure after some seconds; then it is told of the next generation."""
    out = standalone(
        tmp_path,
        """
d.stay()
kinds = []
subscription = d.on_membership(lambda event: kinds.append(event.kind))
handled = []
signal.signal(signal.SIGALRM, lambda *_: handled.append(len(kinds)))
signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
pid, port = os.getpid(), os.environ["MASTER_PORT"]
os.environ["OMP_NUM_THREADS"] = "7"
next_world = d.next_generation()
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(handled) > 4, handled
assert next_world.generation > world.generation and next_world.rank == world.rank
assert os.environ["OMP_NUM_THREADS"] == "7"
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
assert d.load() is None
before = len(kinds)
assert d.save(1, {"step": 1}, wait=20)
deadline = time.monotonic() + 20
while d.EventKind.CHECKPOINT_COMPLETE not in kinds[before:]:
    assert time.monotonic() < deadline, kinds
    time.sleep(0.02)
subscription.close()
say("went on")
""",
        workers=1,
    )
    assert out.splitlines().count("0 went on") == 1, out
    assert starts(out, 0) == [0], out
