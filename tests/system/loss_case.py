# SPDX-License-Identifier: Apache-2.0
"""A run with copies whose nodes are lost: what the tests of losses share."""

import pathlib
import time
import unittest

from cluster import Cluster, Process, wait_until
from heat import Run, reference, start_with_copies

STEPS = 1500
FROM_STORAGE = r"restored from storage|from step \d+ on storage"  # as the time line says it
TICKS = """#!/bin/bash
for ((i = 1; ; ++i)); do echo $i >>"$SLURM_JOB_ID.ticks"; sleep 0.1; done
"""


def user_processes(cluster: Cluster, node: str, program: str) -> "list[Process]":
    return [p for where, p in cluster.processes() if where == node and p.state != "Z" and p.command and p.command[0].endswith("/" + program)]


class Case:
    """A run with copies, and what is lost of it."""

    def __init__(self, test: "NodeLosses", label: str, steps: int = STEPS, **options: object) -> None:
        self.test, self.cluster, self.steps = test, test.cluster, steps
        self.run = start_with_copies(self.cluster, label, steps=steps, **options)
        test.addCleanup(self.tidy)
        self.lost: "list[str]" = []
        self.over = False
        self.generation, self.safe, self.began = self.run.generation(), -1, 0.0

    def tidy(self) -> None:
        if not self.over:
            print(self.run.output(), self.run.time_line(), self.cluster.daemon_logs(), sep="\n")
            self.cluster.run("scancel", str(self.run.job_id()), user="root")

    def witness(self) -> str:
        """A node that is still there."""
        return next(node for node in self.cluster.nodes if node not in self.lost)

    def status(self) -> dict:
        return self.run.status(self.witness())

    def ranks_of(self, node: str) -> "list[int]":
        return [rank["rank"] for rank in self.status()["ranks"] if rank["node"] == node]

    def partners(self, node: str) -> "list[str]":
        return self.run.status(node)["copies"]["partners"]

    def lose(self, *nodes: str, power: bool = True, at_all: bool = True) -> None:
        """at_all: not by another case, in a moment."""
        self.safe = self.run.safe_step(self.witness())
        self.lost += nodes
        self.began = time.time()
        if power:
            self.test.powered_off.update(nodes)
        if at_all:
            self.began = self.cluster.lose(*nodes, power=power)

    def expect_steps(self) -> None:
        """All ranks go on, from one step, which is none older than what was safe."""
        run, test = self.run, self.test
        run.wait_for_steps(after=self.generation)
        took = time.time() - self.began
        test.assertTrue(run.running(), run.output())
        restored = {page.restored_step for page in run.pages}
        test.assertEqual(len(restored), 1)
        test.assertGreaterEqual(min(restored), self.safe)
        print(f"{run.label}: all ranks stepping again after {took:.2f} s, from step {min(restored)}; step {self.safe} was safe")
        self.generation = run.generation()

    def expect_result(self, *, storage: bool = False) -> None:
        """storage: there is one. Nothing comes from there all the same."""
        run, test = self.run, self.test
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 60, f"{run.label}: all ranks done")
        test.assertEqual(run.violations(), "")
        test.assertEqual(run.generation(), self.generation)
        test.assertEqual(run.out.read_bytes(), reference(self.cluster, 256, self.steps), "the field differs from the undisturbed one")
        story = run.time_line()
        test.assertIn("fetched from", story)
        test.assertNotRegex(story, FROM_STORAGE if storage else "storage")
        self.over = True
        if run.process:
            test.leaving.append(run)


class Neighbour:
    """Another user's jobs, one on each node: each counts up, and is started again by nobody."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.folder = cluster, cluster.work / "bob"
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o777)
        self.script = self.folder / "tick.sh"
        self.script.write_text(TICKS)
        self.script.chmod(0o755)
        self.jobs: "dict[str, int]" = {}

    def begin(self) -> None:
        """On each node where none runs, and waits until two of them do."""
        for node in self.cluster.nodes:
            if node not in self.jobs:
                done = self.cluster.run("sbatch", "--parsable", "-J", f"bob-{node}", "-w", node, "--mem=50", "--no-requeue", "-D", str(self.folder),
                                        "-o", str(self.folder / f"{node}.out"), str(self.script), user="bob", check=True)
                self.jobs[node] = int(done.stdout)
        # Slurm may take a minute to let a job onto a node that was booted.
        wait_until(lambda: len(self.running()) >= 2, 60, "two of bob's jobs")

    def running(self) -> "list[str]":
        return [node for node, job in self.jobs.items() if self.ticks(job).exists()]

    def ticks(self, job: int) -> pathlib.Path:
        return self.folder / f"{job}.ticks"

    def forget(self, node: str) -> None:
        """Its power failed, and the job went with it, or it is about to be booted: a job that ends just then holds it for half a minute."""
        job = self.jobs.pop(node, None)
        if not job:
            return
        self.cluster.run("scancel", str(job), user="root")
        if any(host["host"] == node and host.get("slurmd") for host in self.cluster.describe()["hosts"]):
            wait_until(lambda: not self.cluster.run("squeue", "-h", "-a", "-j", str(job), user="root").stdout.strip(), 30, f"the end of bob's job on {node}", 0.1)

    def expect_untouched(self, test: unittest.TestCase) -> None:
        nodes = self.running()
        test.assertNotEqual(nodes, [])
        for node in nodes:
            job = self.jobs[node]
            shown = self.cluster.run("scontrol", "-o", "show", "job", str(job), user="root").stdout
            test.assertIn("JobState=RUNNING ", shown, f"bob's job on {node}")
            test.assertIn("Restarts=0 ", shown)
            test.assertIn(f" NodeList={node} ", shown)
            count = len(self.ticks(job).read_text().split())
            wait_until(lambda j=job, c=count: len(self.ticks(j).read_text().split()) > c, 10, f"bob's job on {node} goes on")
            counted = self.ticks(job).read_text().split()
            test.assertEqual(counted, [str(i) for i in range(1, len(counted) + 1)])


class NodeLosses(unittest.TestCase):
    """On six nodes, which another user's jobs share all the while: what is done about a lost node must not touch those on the others."""
    LABEL = "losses"

    @classmethod
    def setUpClass(cls) -> None:
        # Without slurmdbd Slurm takes nodes out of a job once. Jobs of lost nodes keep their CPUs until their sruns end.
        cls.cluster = cls.enterClassContext(Cluster(cls.LABEL, nodes=6, arguments=("--slurmdbd", "--conf", "CPUs=32")))
        cls.leaving: "list[Run]" = []
        cls.addClassCleanup(cls.expect_ends)
        cls.neighbour = Neighbour(cls.cluster)

    @classmethod
    def expect_ends(cls) -> None:
        """srun learns seconds later of its step's end where a node was lost: so all are waited for together."""
        begun = time.monotonic()
        codes = {run.label: run.finish(40) for run in cls.leaving}
        print(f"all sruns ended within {time.monotonic() - begun:.1f} s")
        assert set(codes.values()) <= {0}, codes
        for node in cls.cluster.nodes:
            cls.neighbour.forget(node)
        cls.cluster.expect_clean(15)

    def setUp(self) -> None:
        self.powered_off: "set[str]" = set()
        self.addCleanup(self.power_on)
        self.neighbour.begin()

    def tearDown(self) -> None:
        for node in self.powered_off:
            self.neighbour.forget(node)
        self.neighbour.expect_untouched(self)

    def power_on(self) -> None:
        for node in self.powered_off:
            self.cluster.control("kill-node", node, check=False)  # where a test failed before it was lost
            self.cluster.start_node(node)
