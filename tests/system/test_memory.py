# SPDX-License-Identifier: Apache-2.0
"""Whose memory checkpoints are (`memory.arena_charge`), and that a program is told before training what can not fit."""

import json
import pathlib
import tempfile
import unittest

from cluster import Cluster, Process, prefix, wait_until

MIB = 1 << 20
STATE = 64 * MIB
PROGRAM = """
import pathlib, sys, time
import dlrover_slurm
folder, size = pathlib.Path(sys.argv[1]), int(sys.argv[2])
dlrover_slurm.load()
dlrover_slurm.prepare(size)
assert dlrover_slurm.save(1, {"weights": bytes(size // 2)}), "a save before the memory is ready"
(folder / "training").touch()
deadline = time.monotonic() + 120
while not (folder / "end").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
"""


def memory_cgroup(process: Process) -> pathlib.Path:
    for line in pathlib.Path(f"/proc/{process.pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if "memory" in names.split(","):
            return pathlib.Path("/sys/fs/cgroup/memory" + path)
    raise unittest.SkipTest("Slurm uses no memory cgroups here")


def shared_memory(group: pathlib.Path) -> int:
    """Bytes of pages in memory files that are charged to the group and those below it."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(fields["total_shmem"])


class Charge(unittest.TestCase):
    settings = ""
    arguments: "tuple[str, ...]" = ()

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(cls.settings)
            file.flush()
            cls.cluster = cls.enterClassContext(Cluster("memory", nodes=1, arguments=("--dlrover-conf", file.name, *cls.arguments)))

    def start(self, size: int, memory: str) -> None:
        self.folder = self.cluster.work / self.id().rpartition(".")[2]
        self.folder.mkdir()
        self.folder.chmod(0o777)
        script = self.folder / "train.py"
        script.write_text(PROGRAM)
        python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        self.job = self.cluster.start("srun", "-J", self.folder.name, "-N1", "-n1", f"--mem={memory}", "--dlrover-elastic", "--dlrover-max-restarts=0",
                                      "/usr/bin/python3", str(script), str(self.folder), str(size),
                                      env={"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"})
        self.addCleanup(lambda: self.job.poll() is None and self.job.kill())

    def group(self) -> dict:
        job = self.cluster.job_id(self.folder.name)
        done = self.cluster.run("dlrover", "status", str(job), "--json", node="n1")
        groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
        return groups[0] if groups else {}

    def ready(self) -> "dict | None":
        group = self.group()
        return group if group.get("arena_ready_bytes", 0) >= 3 * STATE else None

    def end(self) -> None:
        (self.folder / "end").touch()
        out, err = self.job.communicate(timeout=60)
        self.assertEqual(self.job.returncode, 0, out + err)

    def agent_cgroup(self) -> pathlib.Path:
        """That of the step's task, which runs below it."""
        found = [p for _, p in self.cluster.processes() if p.command and p.command[-1] == str(STATE)]
        self.assertTrue(found, "the step's processes")
        return memory_cgroup(found[0])

    def reach_training(self) -> dict:
        self.start(STATE, "1500M")
        wait_until(lambda: (self.folder / "training").exists() or self.job.poll() is not None, 60, "training")
        self.assertIsNone(self.job.poll(), "the program ended early")
        return wait_until(self.ready, 60, "all memory ready")


class Job(Charge):
    """The default here: Slurm states no MemSpecLimit."""

    def test_pages_are_the_steps(self) -> None:
        group = self.reach_training()
        self.assertEqual((group["arena_charge"], group["memory_slots"], group["memory_refused"]), ("job", 3, ""))
        self.assertEqual(group["memory_need_bytes"], group["arena_bytes"])
        self.assertGreater(group["prefault_us"], 0)
        self.assertGreaterEqual(shared_memory(self.agent_cgroup()), group["arena_bytes"])
        self.end()

    def test_what_exceeds_the_jobs_memory_is_refused_before_training(self) -> None:
        self.start(5 * STATE, "600M")
        out, err = self.job.communicate(timeout=60)
        self.assertNotEqual(self.job.returncode, 0, out + err)
        self.assertFalse((self.folder / "training").exists())
        self.assertIn("of the job's memory on this node", err)
        self.assertIn("its limit of 600 MiB", err)
        self.assertIn("--mem", err)
        self.assertNotIn("Out Of Memory", err)
        group = self.group()
        self.assertIn("its limit of 600 MiB", group["memory_refused"])
        self.assertIn("slots: 2", group["memory_refused"])
        self.assertEqual(group["arena_bytes"], 0)
        self.assertIn("memory refused", self.cluster.run("dlrover", "status", str(group["job_id"]), node="n1").stdout)

    def test_two_slots_where_the_jobs_memory_is_short(self) -> None:
        self.start(2 * STATE, "420M")
        wait_until(lambda: (self.folder / "training").exists() or self.job.poll() is not None, 60, "training")
        self.assertIsNone(self.job.poll(), "the program ended early")
        self.assertEqual(self.group()["memory_slots"], 2)
        self.assertTrue(any("Memory is short" in event["text"] for event in self.cluster.events(self.cluster.job_id(self.folder.name))))
        self.end()


class Node(Charge):
    settings = '[memory]\narena_charge = "node"\n'

    def test_pages_are_the_daemons(self) -> None:
        group = self.reach_training()
        self.assertEqual(group["arena_charge"], "node")
        # The first save may have come before the daemon: its slot then is the step's.
        self.assertLess(shared_memory(self.agent_cgroup()), group["arena_bytes"] // 2)
        self.end()


class MemSpecLimit(Charge):
    """What Slurm leaves the node is for checkpoints."""
    arguments = ("--conf", "MemSpecLimit=300")

    def test_pages_are_the_daemons(self) -> None:
        self.assertEqual(self.reach_training()["arena_charge"], "node")
        self.end()

    def test_more_than_the_node_has_is_refused_before_training(self) -> None:
        self.start(3 * STATE, "1500M")
        out, err = self.job.communicate(timeout=60)
        self.assertNotEqual(self.job.returncode, 0, out + err)
        self.assertFalse((self.folder / "training").exists())
        self.assertIn("300 MiB (MemSpecLimit)", err)


del Charge

if __name__ == "__main__":
    unittest.main()
