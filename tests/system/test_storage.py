# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on storage: they go there behind the training, a later job goes on from them, and nothing that storage does disturbs the training."""

import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import unittest

import h5py

from cluster import NIGHTLY, Cluster, prefix, wait_until

# A walk that every step depends on: a wrong state shows at the end. The ranks keep pace as a training's collectives make them do (one
# that ran ahead would fill its slots with steps that the others have not begun); the file they do it by shows the test how far they are.
PROGRAM = """
import glob, os, sys, time
import numpy
import dlrover_slurm as dlrover
steps, pause, size = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
world = dlrover.world()
name = f"pace-{os.environ['SLURM_JOB_ID']}-{world.restart_count}"
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
with open(path, "ab") as f:
    f.truncate(8 * world.world_size)
begun = numpy.memmap(path, dtype="<i8", mode="r+")
state = {"x": numpy.full(size, world.rank + 1.0), "n": 0}
restored = dlrover.load()
first = 0
if restored:
    state["x"][:] = restored.state["x"]
    first = restored.step + 1
print("rank", world.rank, "from", first, flush=True)
die_at = os.environ.get("DIE_AT")
ask_at = [int(step) for step in os.environ.get("ASK_AT", "").split()]  # one rank's word; all wait until it is on storage
for step in range(first, steps):
    begun[world.rank] = step + 1
    while begun.min() < step + 1:
        time.sleep(0.001)
    state["x"] = (state["x"] * 1.0000001 + step) % 97.0
    dlrover.report_step(step)
    wait = 30 if step == steps - 1 or step in ask_at else 0
    dlrover.save(step, {"x": state["x"]}, wait=wait, storage=step in ask_at and world.rank == 2)
    end = time.monotonic() + 60
    while step in ask_at and not glob.glob(f"{os.environ['DLROVER_CKPT_DIR']}/*/step-{step}.*.manifest") and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(pause)
    if die_at == str(step) and world.rank == 1 and world.restart_count == 0:
        os.kill(os.getpid(), 9)
print("rank", world.rank, "ends with", repr(float(state["x"].sum())), flush=True)
"""

RANKS = 4


def expected(steps: int, size: int) -> "dict[int, float]":
    import numpy
    ends = {}
    for rank in range(RANKS):
        x = numpy.full(size, rank + 1.0)
        for step in range(steps):
            x = (x * 1.0000001 + step) % 97.0
        ends[rank] = float(x.sum())
    return ends


class Folder:
    """A lineage's folder as anybody can read it."""

    def __init__(self, top: pathlib.Path) -> None:
        self.top = top

    def lineage(self) -> "pathlib.Path | None":
        return next((p for p in self.top.glob("*") if p.is_dir()), None)

    def steps(self) -> "list[int]":
        found = self.lineage()
        names = [p.name for p in found.glob("step-*.manifest")] if found else []
        return sorted(int(re.match(r"step-(\d+)\.", name).group(1)) for name in names)

    def manifest(self, step: int) -> pathlib.Path:
        return next(self.lineage().glob(f"step-{step}.*.manifest"))

    def expect_whole(self, step: int, size: int) -> None:
        """Every rank's file is there, as long as the manifest says, and plain h5py reads the state of one step."""
        path = self.manifest(step)
        manifest = json.loads(path.read_text())
        data = path.with_suffix("")
        assert manifest["world_size"] == len(manifest["ranks"]) == RANKS, manifest
        for rank, entry in enumerate(manifest["ranks"]):
            file = data / entry["file"]
            assert file.stat().st_size == entry["bytes"], file
            with h5py.File(file) as f:
                assert int(f.attrs["train_step"]) == step and int(f.attrs["rank"]) == rank
                x = next(d for d in f["chunks"].values() if d.shape == (size,))[...]
            assert abs(float(x.sum()) - expected(step + 1, size)[rank]) < 1e-6 * size, (step, rank)


class Storage(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("storage", nodes=2, arguments=("--conf", "KillWait=30")))
        (cls.cluster.work / "train.py").write_text(PROGRAM)
        cls.python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()

    def setUp(self) -> None:
        self.top = self.cluster.work / self.id().rsplit(".", 1)[-1]
        self.top.mkdir()
        self.top.chmod(0o777)
        self.folder = Folder(self.top)

    def command(self, *options: str, steps: int, pause: float = 0.02, size: int = 1000, script: str = "train.py") -> "list[str]":
        return ["srun", "-N2", "--ntasks-per-node=2", "--dlrover-elastic", f"--dlrover-ckpt-dir={self.top}", "--dlrover-name=walk", *options,
                "/usr/bin/python3", str(self.cluster.work / script), str(steps), str(pause), str(size)]

    def environment(self, **more: str) -> "dict[str, str]":
        return {"PYTHONPATH": self.python_path, "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", **more}

    def train(self, *options: str, env: "dict[str, str] | None" = None, **arguments):
        return self.cluster.run(*self.command(*options, **arguments), env=self.environment(**(env or {})))

    def start(self, *options: str, env: "dict[str, str] | None" = None, **arguments) -> subprocess.Popen:
        return self.cluster.start(*self.command(*options, **arguments), env=self.environment(**(env or {})))

    def expect_end(self, out: str, steps: int, size: int = 1000) -> None:
        for rank, end in expected(steps, size).items():
            self.assertIn(f"rank {rank} ends with {end!r}\n", out)

    def reached(self, restart: int) -> int:
        """The step that every rank has begun since that restart."""
        files = list(self.cluster.work.glob(f"pace-*-{restart}"))
        newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
        numbers = struct.unpack(f"<{RANKS}q", newest.read_bytes()) if newest and newest.stat().st_size == 8 * RANKS else (0,)
        return min(numbers) - 1

    def events(self) -> "list[dict]":
        job = self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split()
        return self.cluster.events(int(job[0])) if job else []

    def test_a_later_job_goes_on(self) -> None:
        # The command belongs to the lineage: one that is killed and one that goes on have the same.
        arguments = {"steps": 150, "pause": 0.05}
        first = self.start("--dlrover-ckpt-every=10", "--dlrover-ckpt-keep=2", **arguments)
        wait_until(lambda: len(self.folder.steps()) >= 2 or first.poll() is not None, 60, "two checkpoints on storage", 0.05)
        self.assertIsNone(first.poll(), "".join(first.communicate()) if first.poll() is not None else "")
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        out, err = first.communicate(timeout=60)
        newest = self.folder.steps()[-1]
        self.folder.expect_whole(newest, 1000)
        self.assertLessEqual(len(self.folder.steps()), 3)  # Slurm may have killed the writer before it tidied up
        self.cluster.expect_clean()
        second = self.train("--dlrover-ckpt-every=10", "--dlrover-ckpt-keep=2", **arguments)
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} from {newest + 1}\n", second.stdout)
        self.expect_end(second.stdout, 150)
        self.assertEqual(self.folder.steps()[-1], 149, "the last checkpoint is there at the end")
        self.assertLessEqual(len(self.folder.steps()), 2)
        self.folder.expect_whole(149, 1000)
        self.assertEqual(os.readlink(self.folder.lineage() / "latest"), self.folder.manifest(149).with_suffix("").name)
        self.cluster.expect_clean()

    def test_a_damaged_checkpoint_is_passed_over(self) -> None:
        done = self.train("--dlrover-ckpt-every=5", steps=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = self.folder.steps()
        self.assertGreaterEqual(len(steps), 2)
        file = self.folder.manifest(steps[-1]).with_suffix("") / "rank-3.h5"
        data = bytearray(file.read_bytes())
        with h5py.File(file) as f:
            at = next(d for d in f["chunks"].values() if d.shape == (1000,)).id.get_offset() + 4000
        data[at] ^= 1
        file.write_bytes(data)
        again = self.train("--dlrover-ckpt-every=5", steps=60)
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn(f"rank 3 from {steps[-2] + 1}\n", again.stdout)
        self.expect_end(again.stdout, 60)

    def test_nothing_whole_is_no_beginning(self) -> None:
        done = self.train("--dlrover-ckpt-every=off", steps=6)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.folder.steps(), [5], "the newest, at the end")
        os.unlink(self.folder.manifest(5).with_suffix("") / "rank-2.h5")
        again = self.train("--dlrover-ckpt-every=off", steps=6)
        self.assertNotEqual(again.returncode, 0)
        self.assertNotIn("from 0", again.stdout)
        self.assertIn("rank-2.h5", again.stderr)

    def test_after_a_failure_and_at_the_end(self) -> None:
        process = self.start("--dlrover-ckpt-every=off", steps=200, pause=0.03, env={"DIE_AT": "12"})
        stored = wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "a checkpoint after the failure", 0.05)
        self.assertIsInstance(stored, list)
        self.assertIn(stored[0], range(5, 13))
        wait_until(lambda: self.reached(restart=1) > stored[0] + 10 or process.poll() is not None, 60, "ten steps after the restart", 0.05)
        self.assertIsNone(process.poll())
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        process.communicate(timeout=60)
        # SIGTERM is the end too: what was newest in memory is on storage.
        self.assertGreater(self.folder.steps()[-1], stored[0])
        self.folder.expect_whole(self.folder.steps()[-1], 1000)
        self.cluster.expect_clean()

    def test_steps_that_are_asked_for(self) -> None:
        done = self.train("--dlrover-ckpt-every=off", steps=30, env={"ASK_AT": "7 18"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.folder.steps(), [7, 18, 29])
        for step in self.folder.steps():
            self.folder.expect_whole(step, 1000)
        self.expect_end(done.stdout, 30)

    def test_a_step_that_is_asked_for_outlives_the_daemons(self) -> None:
        process = self.start("--dlrover-ckpt-every=off", steps=45, pause=0.2, env={"ASK_AT": "2 40"})
        wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "the first step asked for", 0.05)
        self.folder.lineage().chmod(0o555)
        def trouble() -> "dict | None":
            return next((e for e in self.events() if e["kind"] == "warning" and "is not on storage" in e["text"]), None)
        self.assertEqual(wait_until(trouble, 60, "a word about the trouble", 0.3)["train_step"], 40)
        for node in self.cluster.nodes:
            os.kill(self.cluster.daemon_pid(node), signal.SIGKILL)
        self.folder.lineage().chmod(0o755)
        wait_until(lambda: self.folder.steps() != [2] or process.poll() is not None, 40, "the second step asked for", 0.05)
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(self.folder.steps(), [2, 40, 44])
        self.expect_end(out, 45)

    def test_without_a_folder_nothing_can_be_asked_for(self) -> None:
        (self.top / "ask.py").write_text("""
import numpy
import dlrover_slurm as dlrover
try:
    dlrover.save(1, {"x": numpy.zeros(3)}, storage=True)
except dlrover.UnsupportedError as error:
    print("refused:", error)
print("saved:", dlrover.save(1, {"x": numpy.zeros(3)}))
""")
        done = self.cluster.run("srun", "-N1", "--dlrover-elastic", "/usr/bin/python3", str(self.top / "ask.py"), env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "refused: .*--dlrover-ckpt-dir")
        self.assertIn("saved: True", done.stdout)

    def test_a_folder_that_can_not_be_written_ends_the_step_before_it_begins(self) -> None:
        self.top.chmod(0o555)
        done = self.train(steps=5)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("rank", done.stdout)
        self.assertIn(str(self.top), done.stderr)
        self.assertIn("ermission", done.stderr)
        self.cluster.expect_clean()

    def test_storage_that_goes_away_does_not_disturb(self) -> None:
        process = self.start("--dlrover-ckpt-every=5", steps=250, pause=0.04)
        wait_until(lambda: self.folder.steps(), 60, "a checkpoint", 0.05)
        self.folder.lineage().chmod(0o555)
        def trouble() -> "dict | None":
            return next((e for e in self.events() if e["kind"] == "warning" and "is not on storage" in e["text"]), None)
        self.assertIn("ermission", wait_until(trouble, 20, "a word about the trouble", 0.3)["text"])
        before = self.folder.steps()[-1]
        self.folder.lineage().chmod(0o755)
        wait_until(lambda: self.folder.steps()[-1] > before or process.poll() is not None, 40, "a checkpoint after the trouble", 0.05)
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, out + err)
        self.expect_end(out, 250)
        self.assertEqual(self.folder.steps()[-1], 249)
        self.assertNotIn("restart", re.sub(r"0 restarts", "", err))

    def test_killed_writers_and_daemons_leave_nothing_half_done(self) -> None:
        rounds, size, chooser = 200 if NIGHTLY else 8, 200000, random.Random(7)
        process = self.start("--dlrover-ckpt-every=1", "--dlrover-ckpt-keep=4", steps=100000, pause=0.02, size=size)
        wait_until(lambda: self.folder.steps(), 60, "a checkpoint", 0.05)
        for number in range(rounds):
            before = self.folder.steps()[-1]
            wait_until(lambda: (self.folder.lineage() / "latest").exists() and self.folder.steps()[-1] > before or process.poll() is not None, 60, "another checkpoint", 0.01)
            self.assertIsNone(process.poll(), "the training has ended")
            if number % 4 == 3:
                os.kill(self.cluster.daemon_pid(chooser.choice(self.cluster.nodes)), signal.SIGKILL)
                continue
            writers = [p for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-writer")]
            if writers:
                os.kill(chooser.choice(writers).pid, signal.SIGKILL)
        newest = self.folder.steps()[-1]
        wait_until(lambda: self.folder.steps()[-1] > newest or process.poll() is not None, 60, "a checkpoint after the last kill", 0.05)
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        out, err = process.communicate(timeout=60)
        self.assertEqual(len(re.findall(r"rank \d from", out)), RANKS, "no worker was restarted: " + out + err)
        for step in self.folder.steps():
            self.folder.expect_whole(step, size)
        self.cluster.expect_clean()


if __name__ == "__main__":
    sys.exit(unittest.main())
