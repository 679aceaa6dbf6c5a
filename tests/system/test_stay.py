# SPDX-License-Identifier: Apache-2.0
"""Processes that stay: they leave a generation that ends and go on in the next one, without being started again."""

import json
import os
import pathlib
import re
import signal
import subprocess
import unittest

from cluster import Cluster, Process, prefix, wait_until
from event_codes import event_code
from pmix_case import MISSING, build, expect_nothing_left, folder

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 150
PYTHON_PMIX, HAS_TORCH = (subprocess.run(["/usr/bin/python3", "-c", f"import {name}"], capture_output=True, check=False).returncode == 0 for name in ("pmix", "torch"))


class Stay(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("stay", nodes=3))
        cls.cluster.work.chmod(0o777)

    def start(self, label: str, *arguments: str, steps: int = STEPS, options: "tuple[str, ...]" = (), nodes: int = 2) -> "subprocess.Popen[str]":
        self.label, self.files = label, folder(self.cluster, label)
        environment = {"PYTHONPATH": (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip(), "PYTHONDONTWRITEBYTECODE": "1"}
        process = self.cluster.start("srun", "--job-name", label, f"-N{nodes}", "--ntasks-per-node=2", "--overcommit", "--mem=400", "--dlrover-elastic=2:2", *options,
                                     "/usr/bin/python3", str(HERE / "stay_worker.py"), str(self.files), str(steps), *arguments, env=environment)
        self.addCleanup(lambda: process.poll() is None and process.terminate())
        self.process = process
        return process

    def expect_world(self, restart: int) -> "set[int]":
        """All four ranks have begun in it. Those whose process is another one than in the world before."""
        wait_until(lambda: len(self.in_world(restart)) == 4 or self.process.poll() is not None, 90, f"world {restart}", 0.02)
        self.assertIsNone(self.process.poll(), self.process.communicate() if self.process.poll() is not None else "")
        before = self.in_world(restart - 1)
        return {rank for rank, now in self.in_world(restart).items() if before and now["pid"] != before[rank]["pid"]}

    def begins(self) -> "list[dict]":
        names = ("restart", "pid", "step", "right", "port")
        return [dict(zip(names, line.split()), rank=int(path.name[4:]), restart=int(line.split()[0]), step=int(line.split()[2]))
                for path in sorted(self.files.glob("log-*")) for line in path.read_text().splitlines()]

    def in_world(self, restart: int) -> "dict[int, dict]":
        return {b["rank"]: b for b in self.begins() if b["restart"] == restart}

    def worker(self, node: "str | None" = None) -> "tuple[str, Process]":
        """A rank's own process (of its agent the command line is the same)."""
        return next((where, p) for where, p in self.cluster.processes()
                    if p.command and p.command[0].endswith("python3") and str(self.files) in p.command and node in (None, where))

    def story(self) -> str:
        return "\n".join(e["text"] for e in self.cluster.events(self.cluster.job_id(self.label)))

    def expect_end(self, process: "subprocess.Popen[str]") -> None:
        output, errors = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, output + errors)
        self.assertEqual({b["right"] for b in self.begins()}, {"right"}, self.begins())

    def expect_one_step(self, restart: int) -> None:
        """All go on from one step, which they had not begun with before."""
        before, now = self.in_world(restart - 1), self.in_world(restart)
        self.assertEqual(len({b["step"] for b in now.values()}), 1, self.begins())
        self.assertGreater(now[0]["step"], before[0]["step"])
        self.assertNotEqual(now[0]["port"], before[0]["port"])

    def test_a_rank_dies_and_the_others_go_on_in_their_processes(self) -> None:
        process = self.start("one", steps=300)
        for restart in (1, 2):  # a process can stay more than once
            self.expect_world(restart - 1)
            wait_until(lambda: self.complete_step() > 10 * restart, 60, "complete steps", 0.05)
            _, victim = self.worker(self.cluster.nodes[1])
            os.kill(victim.pid, signal.SIGKILL)
            self.assertEqual(len(self.expect_world(restart)), 1, self.begins())
            self.expect_one_step(restart)
        self.assertIn("Worker goes on with pid", self.story())
        self.expect_end(process)
        self.cluster.expect_clean()

    def status(self) -> dict:
        done = self.cluster.run("dlrover", "status", str(self.cluster.job_id(self.label)), "--json", user="root", node=self.cluster.nodes[0])
        groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
        return groups[0] if groups else {"checkpoints": [], "ranks": []}

    def complete_step(self) -> int:
        return max((c["train_step"] for c in self.status()["checkpoints"] if c["complete"]), default=-1)

    def test_the_daemon_is_killed_while_they_wait(self) -> None:
        process = self.start("crash", steps=200)
        self.expect_world(0)
        wait_until(lambda: self.complete_step() > 10, 60, "complete steps", 0.05)
        node, victim = self.worker(self.cluster.nodes[1])
        other = self.cluster.nodes[0]
        os.kill(self.cluster.daemon_pid(other), signal.SIGKILL)
        os.kill(victim.pid, signal.SIGKILL)
        self.expect_world(1)
        self.expect_one_step(1)
        self.expect_end(process)
        self.cluster.expect_clean()

    @unittest.skipUnless(HAS_TORCH, "needs python3-torch")
    def test_a_process_group_of_torch(self) -> None:
        process = self.start("torch", "torch", steps=300)
        self.expect_world(0)
        wait_until(lambda: self.complete_step() > 10, 60, "complete steps", 0.05)
        _, victim = self.worker(self.cluster.nodes[1])
        os.kill(victim.pid, signal.SIGKILL)
        self.assertEqual(len(self.expect_world(1)), 1, self.begins())
        self.expect_one_step(1)
        self.expect_end(process)
        self.cluster.expect_clean()

    def test_who_does_not_leave_in_time_is_started_again(self) -> None:
        process = self.start("late", "late")
        self.expect_world(0)
        wait_until(lambda: self.complete_step() > 10, 60, "complete steps", 0.05)
        node = next(n for n in self.cluster.nodes if {r["rank"]: r["node"] for r in self.status()["ranks"]}[3] == n)
        _, victim = self.worker(node)
        os.kill(victim.pid, signal.SIGKILL)
        changed = self.expect_world(1)
        self.assertIn(0, changed)
        self.assertEqual(len(changed), 2, self.begins())
        self.expect_end(process)
        self.cluster.expect_clean()

    def test_a_node_is_lost(self) -> None:
        process = self.start("node", steps=400, nodes=3, options=("--dlrover-spares=1", "--dlrover-redundancy=partner:1"))
        self.expect_world(0)
        wait_until(lambda: self.complete_step() > 10, 60, "complete steps", 0.05)
        ranks = {r["rank"]: r["node"] for r in self.status()["ranks"]}
        lost = next(n for n in ranks.values() if n != self.cluster.nodes[0])
        self.cluster.lose(lost)
        self.addCleanup(self.cluster.start_node, lost)
        self.expect_world(1)
        pids = {b["pid"] for b in self.in_world(0).values() if ranks[b["rank"]] != lost}
        self.assertEqual(len(pids & {b["pid"] for b in self.in_world(1).values()}), 2, self.begins())
        self.expect_end(process)

    @unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
    def test_a_client_of_pmix_in_c(self) -> None:
        flags = (f"-I{prefix()}/include", f"-L{prefix()}/lib", f"-Wl,-rpath,{prefix()}/lib", "-ldlrover")
        done = self.cluster.run("srun", "--job-name", "c", "-N2", "--ntasks-per-node=2", "--overcommit", "--mem=400", "--dlrover-elastic", "--dlrover-pmix=yes",
                                build(self.cluster, "stay_program", *flags), str(event_code("GENERATION")), "2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found: "dict[tuple[int, str], list[int]]" = {}
        for rank, name, value in re.findall(r"^rank (\d+): (\w+) (-?\d+)$", done.stdout, re.M):
            found.setdefault((int(rank), name), []).append(int(value))
        first, second = (sum(base + rank for rank in range(4)) for base in (100, 200))
        for rank in range(4):
            first_pid, second_pid = found[rank, "pid"]
            self.assertEqual(first_pid != second_pid, rank == 1, done.stdout)
            self.assertEqual(found[rank, "published"], [first, second])
            self.assertEqual(found[rank, "before"], [first])
            self.assertEqual(found[rank, "from"][0], 0)
            self.assertIn(found[rank, "from"][1], range(1, 11))
            self.assertEqual(found.get((rank, "ended")), None if rank == 1 else [1])
        expect_nothing_left(self.cluster)

    @unittest.skipUnless(PYTHON_PMIX, "needs Debian's python3-pmix")
    @unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
    def test_a_client_of_pmix_in_python(self) -> None:
        process = self.start("python", "pmix", options=("--dlrover-pmix=yes",), steps=300)
        stayed = []
        for restart in (1, 2):
            self.expect_world(restart - 1)
            wait_until(lambda: self.complete_step() > 10 * restart, 60, "complete steps", 0.05)
            _, victim = self.worker(self.cluster.nodes[1])
            os.kill(victim.pid, signal.SIGKILL)
            ended = self.expect_world(restart)
            self.assertEqual(len(ended), 1, self.begins())
            stayed += [f"ended-{restart - 1}-{rank}" for rank in set(range(4)) - ended]
        self.expect_end(process)
        said = {path.name: path.read_text().split() for path in self.files.glob("pmix-*")}
        self.assertEqual({name: words[1:] for name, words in said.items()},
                         {f"pmix-{restart}-{rank}": ["10", "10" if restart else "0"] for restart in (0, 1, 2) for rank in range(4)})
        self.assertEqual(len({words[0] for words in said.values()}), 3, "a namespace for each generation")
        heard = {path.name: path.read_text() for path in self.files.glob("ended-*")}
        self.assertEqual(sorted(heard), sorted(stayed), "who stays hears of each generation's end, by a handler of its own")
        self.assertEqual(len({(name.split("-")[1], generation) for name, generation in heard.items()}), 2, heard)
        expect_nothing_left(self.cluster)


if __name__ == "__main__":
    unittest.main()
