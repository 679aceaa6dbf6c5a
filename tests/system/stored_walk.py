# SPDX-License-Identifier: Apache-2.0
"""A training whose every state is known, with checkpoints on storage: the program, the folder as anybody can read it, and what tests of both share."""

import json
import pathlib
import re
import struct
import subprocess
import unittest

import h5py

from cluster import Cluster, prefix, wait_until

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
poison_at, noticed_at = os.environ.get("POISON_AT"), os.environ.get("NOTICED_AT")  # one rank's state goes bad, and fails later
ask_at = [int(step) for step in os.environ.get("ASK_AT", "").split()]  # one rank's word; all wait until it is on storage
ask_all = "ASK_ALL" in os.environ  # every step; nobody waits for storage
longest = 0.0
for step in range(first, steps):
    begun[world.rank] = step + 1
    while begun.min() < step + 1:
        time.sleep(0.001)
    state["x"] = (state["x"] * 1.0000001 + step) % 97.0
    if poison_at == str(step) and world.rank == 1 and world.restart_count == 0:
        state["x"][0] = numpy.nan
    if noticed_at and step >= int(noticed_at) and not numpy.isfinite(state["x"]).all():
        raise FloatingPointError("the state is not finite")
    dlrover.report_step(step)
    wait = 30 if step == steps - 1 or step in ask_at else 0
    saving = time.monotonic()
    dlrover.save(step, {"x": state["x"]}, wait=wait, storage=ask_all or (step in ask_at and world.rank == 2))
    longest = max(longest, 0 if wait else time.monotonic() - saving)
    end = time.monotonic() + 60
    while step in ask_at and not glob.glob(f"{os.environ['DLROVER_CKPT_DIR']}/*/step-{step}.*.manifest") and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(pause)
    if die_at == str(step) and world.rank == 1 and world.restart_count == 0:
        os.kill(os.getpid(), 9)
print("rank", world.rank, "longest save", round(longest, 3))
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


class StoredWalks(unittest.TestCase):
    """Subclasses name their cluster: LABEL, and what it is started with."""

    LABEL = ""
    ARGUMENTS: "tuple[str, ...]" = ("--conf", "KillWait=30")

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster(cls.LABEL, nodes=2, arguments=cls.ARGUMENTS))
        (cls.cluster.work / "train.py").write_text(PROGRAM)
        cls.python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()

    def run(self, result=None):
        self.paces_before = set(self.cluster.work.glob("pace-*"))
        return super().run(result)

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
        process = self.cluster.start(*self.command(*options, **arguments), env=self.environment(**(env or {})))
        self.addCleanup(self.stop, process)
        return process

    def stop(self, process: subprocess.Popen) -> None:
        """A test that fails leaves nothing to the next one."""
        if process.poll() is None:
            process.kill()
            self.cluster.run("scancel", "-u", "alice", user="root")
            wait_until(lambda: not self.cluster.run("squeue", "-h", user="root").stdout.split(), 60, "no job is left", 0.2)

    def expect_end(self, out: str, steps: int, size: int = 1000) -> None:
        for rank, end in expected(steps, size).items():
            self.assertIn(f"rank {rank} ends with {end!r}\n", out)

    def reached(self, restart: int) -> int:
        """The step that every rank has begun since that restart; -1: no job of this test has."""
        files = set(self.cluster.work.glob(f"pace-*-{restart}")) - self.paces_before
        newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
        numbers = struct.unpack(f"<{RANKS}q", newest.read_bytes()) if newest and newest.stat().st_size == 8 * RANKS else (0,)
        return min(numbers) - 1

    def events(self) -> "list[dict]":
        job = self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split()
        return self.cluster.events(int(job[0])) if job else []

    def status(self) -> "list[dict]":
        """The groups that the first node's daemon tells of."""
        job = self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split()
        done = self.cluster.run("dlrover", "status", job[0], "--json", user="root", node=self.cluster.nodes[0]) if job else None
        return json.loads(done.stdout)["groups"] if done and done.returncode == 0 else []

    def safe_step(self) -> int:
        """The newest step that has its copies; -1: none."""
        return max((g["copies"]["safe_step"] for g in self.status() if g["copies"]), default=-1)

    def complete_step(self) -> int:
        """The newest step that is complete in memory; -1: none."""
        return max((c["train_step"] for g in self.status() for c in g["checkpoints"] if c["complete"]), default=-1)

    def event(self, *words: str) -> "dict | None":
        """The first one whose text has all these words."""
        return next((e for e in self.events() if all(word in e["text"] for word in words)), None)
