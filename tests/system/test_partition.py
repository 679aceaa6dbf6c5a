# SPDX-License-Identifier: Apache-2.0
"""The network falls apart, or a node stands still, with slurmctld there or away: never do two worlds go on, and those that may go on do.

Each case is a cell of a matrix: the nodes of the job, what is done to them, and whether slurmctld answers meanwhile. By DESIGN, section 3: with
Slurm's word one side that has half of the nodes goes on; without it only majorities of the nodes and of the world; the others stop their ranks and
wait. In the end the field has the undisturbed bits."""

import dataclasses
import os
import time
import unittest

from cluster import NIGHTLY, PATIENCE, Cluster, Hosts, wait_until
from heat import reference, start_with_copies
from mcluster import faults as host_faults
from mcluster import net

STEPS = 3000
LEASE, SILENCE = 5.0, 1.0  # [timing] agent_lease, leader_silence
LONGEST_WAIT_S = 3.0  # once slurmctld is back: DESIGN, section 3
#: Where nobody who goes on had a rank, and so could stop it, a new leader waits for the leases of the world before from its own beginning on.
LEASES_S = 2 * SILENCE + LEASE


@dataclasses.dataclass(frozen=True)
class Cell:
    nodes: int
    what: str
    slurm: bool  # slurmctld answers meanwhile

    @property
    def lasts(self) -> float:
        """Longer than a side that hears nobody but Slurm has ever waited."""
        return 15.0 if self.slurm and self.what in ("halves", "batch host alone") else 0.0

    @property
    def workers(self) -> int:
        """As many as either side of halves can have; else one spare stands by."""
        return self.nodes // 2 if self.what == "halves" else self.nodes - 1

    @property
    def waits(self) -> bool:
        """For slurmctld: no majority of the nodes, or of the world, is left."""
        return not self.slurm and (self.what == "halves" or (self.workers - 1) * 2 <= self.workers)

    def sides(self, names: "list[str]", world: "list[str]", leader: str) -> "tuple[list[str], list[str]]":
        """That may go on, and the others. Of halves either may, since each has a node with ranks, and these keep all copies; but the batch host alone,
        which Slurm can not take out, never does."""
        if self.what == "halves" and self.nodes > 2:
            order = world + [name for name in names if name not in world]
            return order[1::2], order[0::2]
        alone = {"leader alone": leader, "batch host cut": names[0], "batch host alone": names[0]}.get(self.what, names[self.workers - 1])
        return [name for name in names if name != alone], [alone]

    def __str__(self) -> str:
        return f"{self.nodes}-{self.what.replace(' ', '-')}-{'up' if self.slurm else 'down'}"


ALONE = ("leader alone", "batch host alone", "batch host cut", "cut", "frozen")
KINDS = {2: ("halves", "cut", "frozen"), 3: ALONE, 4: ("halves", *ALONE), 6: ("halves", *ALONE)}
MATRIX = [Cell(nodes, what, slurm) for nodes, kinds in KINDS.items() for what in kinds for slurm in (True, False)]
ALWAYS = (Cell(4, "halves", True), Cell(3, "leader alone", False), Cell(3, "batch host alone", True))  # not only nightly


class Trial:
    """One cell, carried out."""

    def __init__(self, test: "Partition", cell: Cell) -> None:
        self.test, self.cell, self.cluster = test, cell, test.cluster
        self.hosts = Hosts.load(self.cluster.name)
        self.names = self.cluster.nodes[:cell.nodes]
        copies = max(1, cell.workers - 1) if cell.what == "halves" else 1
        self.run = start_with_copies(self.cluster, str(cell), nodes=cell.nodes, spares=cell.nodes - cell.workers, copies=copies, steps=STEPS, older_may_live=True)
        test.addCleanup(self.tidy)
        self.over = self.separated = False
        self.before, self.safe = self.run.generation(), self.run.safe_step(self.names[0])
        self.ranks = self.run.nodes_with_ranks(self.names[0])
        self.one, self.other = cell.sides(self.names, self.ranks, self.run.status(self.names[0])["leader"])
        self.began = 0.0
        self.losers: "list[str]" = []

    def carry_out(self) -> None:
        if not self.cell.slurm:
            self.cluster.control("stop-slurmctld")
        self.separate()
        if not self.cell.waits and not set(self.ranks) & set(self.other):
            return self.expect_the_same_world()  # a node that was late at the start has none
        back = answers = self.began
        if self.cell.waits:
            self.expect_rest()
            back = time.time()
            self.cluster.control("start-slurmctld")
            answers = time.time()
        self.run.wait_for_steps(after=self.before, seconds=40)
        waited = time.time() - answers
        print(f"{self.cell}: all ranks stepping again {time.time() - back:.2f} s after {'the return of slurmctld was begun' if self.cell.waits else 'the fault'}")
        self.expect_one_side(back)
        if self.cell.waits:
            self.test.assertLess(waited, (LONGEST_WAIT_S + (LEASES_S if set(self.ranks) <= set(self.losers) else 0)) * PATIENCE, "after slurmctld has answered again")
        time.sleep(max(0.0, self.began + self.cell.lasts - time.time()))
        self.join()
        self.expect_result()

    def separate(self) -> None:
        self.separated = True
        lock = self.hosts.lock()
        try:
            self.began = time.time()
            if self.cell.what == "frozen":
                host_faults.freeze(self.hosts, self.other[0])
            elif self.cell.what.endswith("cut"):
                net.cut(self.hosts, self.other[0])
            else:
                net.separate(self.hosts, self.one, self.other)
        finally:
            os.close(lock)

    def join(self) -> None:
        if self.cell.what == "frozen":
            self.cluster.control("thaw-node", self.other[0])
        elif self.cell.what.endswith("cut"):
            self.cluster.control("heal-link", self.other[0])
        else:
            self.cluster.control("rejoin")
        self.separated = False
        if not self.cell.slurm and not self.cell.waits:
            self.cluster.control("start-slurmctld")

    # ---- what has to be ----

    def ranks_on(self, nodes: "list[str]") -> "list[str]":
        return [f"{where}: {p.pid}" for where, p in self.cluster.processes() if where in nodes and p.state != "Z" and p.command and p.command[0].endswith("/heat")]

    def expect_rest(self) -> None:
        """Neither side may go on: without a majority of the nodes the ranks end, nothing is lost, and it is said what is waited for."""
        able = [name for side in (self.one, self.other) if len(side) * 2 <= self.cell.nodes and not (self.cell.what == "frozen" and side == self.other) for name in side]
        wait_until(lambda: not self.ranks_on(able), LEASE + 5, f"the ranks' end: {self.ranks_on(able)}", 0.1)
        print(f"{self.cell}: no rank was left {time.time() - self.began:.2f} s after the fault")
        rest = time.time()
        self.test.assertEqual(self.worlds(), [])
        # A frozen node keeps who asks for events waiting: what counts is when it was said.
        words = wait_until(lambda: [event["time_us"] / 1e6 for event in self.events() if "waiting for Slurm" in event["text"]], 30, "a word of what is waited for", 0.2)
        self.test.assertLess(min(words) - rest, 15, self.story())

    def events(self) -> "list[dict]":
        """Since the fault: who is asked asks those of its side. All are asked when they are no longer separated."""
        able = [self.one[0], *([] if self.cell.what == "frozen" else self.other[:1])] if self.separated else self.cluster.nodes
        return [event for event in self.cluster.events(self.run.job_id(), able) if event["time_us"] / 1e6 > self.began and not event["kind"].startswith("checkpoint-")]

    def story(self) -> str:
        return "\n".join(f"{event['time_us'] / 1e6 - self.began:.3f} {event['node']} {event['generation']['number']} {event['text']}" for event in self.events())

    def worlds(self) -> "list[dict]":
        return [event for event in self.events() if event["kind"] == "world-published"]

    def expect_the_same_world(self) -> None:
        """Who can not be heard had no ranks: the others' go on."""
        first = min(page.step for page in self.run.pages)
        time.sleep(LEASE + 2)
        self.test.assertGreater(min(page.step for page in self.run.pages), first, self.story())
        self.test.assertEqual((self.worlds(), self.run.generation()), ([], self.before), self.story())
        print(f"{self.cell}: {', '.join(self.one)} went on with the same world")
        self.losers = self.other
        self.join()
        self.expect_result()

    def expect_one_side(self, back: float) -> None:
        sides = [side for side in (self.one, self.other) if any(event["node"] in side for event in self.worlds())]
        self.test.assertEqual(len(sides), 1, self.story())
        if self.cell.what != "halves" or self.cell.nodes == 2:
            self.test.assertEqual(sides[0], self.one)
        self.losers = [name for name in self.names if name not in sides[0]]
        if self.cell.what != "frozen":
            self.expect_no_ranks(LEASE + 2 - (time.time() - self.began))
        first = min(event["time_us"] / 1e6 for event in self.worlds())
        print(f"{self.cell}: {', '.join(sides[0])} went on, the world came {first - back:.2f} s after that")
        self.test.assertGreaterEqual(min(page.restored_step for page in self.run.pages), self.safe)

    def expect_no_ranks(self, seconds: float) -> None:
        """Of those that did not go on."""
        wait_until(lambda: not self.ranks_on(self.losers), max(seconds, 1), f"the end of ranks on {self.losers}", 0.1)

    def expect_result(self) -> None:
        run, test = self.run, self.test
        joined = time.time()
        self.expect_no_ranks(5)
        print(f"{self.cell}: no rank is left on {', '.join(self.losers)} {time.time() - joined:.2f} s after they can reach each other again")
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 60, f"{self.cell}: all ranks done")
        test.assertEqual(run.violations(), "")
        test.assertEqual(run.out.read_bytes(), reference(self.cluster, 256, STEPS), "the field differs from the undisturbed one")
        code = run.finish(60)
        print(f"{self.cell}: srun ended with {code}")
        test.assertIn("all ranks finished", self.story())
        for name in self.losers:
            told = {event["node"] for event in self.cluster.events(run.job_id(), [name])}
            test.assertTrue(told, f"{name} knows the group no more")
            if name in self.ranks:  # a spare may have had nothing to tell
                test.assertIn(name, told, "it does not tell its part any more")
        test.assertEqual([event for event in self.worlds() if event["node"] in self.losers], [], self.story())
        # Slurm kills the tasks of a node that it has taken out, and that it hears again: srun says so.
        test.assertIn(code, (0, 137), run.output())
        self.over = True

    def expect_end_in_slurm(self) -> None:
        """Where slurmctld was away slurmstepd tells it a minute later that the step is over."""
        def gone() -> bool:
            shown = self.cluster.run("squeue", "-h", "-u", "alice", user="root")
            return shown.returncode == 0 and not shown.stdout.strip()
        wait_until(gone, 100, "the job's end in Slurm", 0.5)

    def tidy(self) -> None:
        if not self.over:
            print(self.run.output(), self.story(), sep="\n")
        if self.separated:
            self.join()
        self.cluster.control("start-slurmctld", check=False)
        if self.over:
            self.expect_end_in_slurm()
        else:
            wait_until(lambda: self.cluster.run("scancel", str(self.run.job_id()), user="root").returncode == 0, 20, "slurmctld", 0.5)
        for node in self.other if len(self.other) == 1 else ():
            self.cluster.control("kill-node", node)
            self.cluster.start_node(node)
        self.cluster.expect_clean(40)
        wait_until(lambda: set(self.cluster.run("sinfo", "-h", "-N", "-o", "%T", user="root").stdout.split()) == {"idle"}, 40, "all nodes idle", 0.5)


class Partition(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        # Without slurmdbd Slurm takes nodes out of a job once. Jobs of lost nodes keep their CPUs until their sruns end. Where slurmctld was away as a step
        # ended slurmstepd tells it a minute later: the minicluster's 20 s would drain the nodes (Kill task failed).
        cls.cluster = cls.enterClassContext(Cluster("partition", nodes=6, arguments=("--slurmdbd", "--users", "alice,bob", "--conf", "CPUs=32", "--conf", "UnkillableStepTimeout=90")))

    @unittest.skipUnless(NIGHTLY, "only nightly")
    def test_another_users_job_is_not_touched(self) -> None:
        """It shares a node that is cut off, taken out of the group's job, and comes back; and the node that leads."""
        run = start_with_copies(self.cluster, "shared", steps=STEPS, older_may_live=True)
        self.addCleanup(lambda: self.cluster.run("scancel", str(run.job_id()), user="root"))
        cut, leader = "n3", run.status("n1")["leader"]
        folder = self.cluster.work / "bob"
        folder.mkdir()
        folder.chmod(0o777)
        script = folder / "tick.sh"
        script.write_text("#!/bin/bash\nfor i in {1..300}; do echo $i >>$(hostname).ticks; sleep 0.1; done\n")
        script.chmod(0o755)
        jobs = {node: int(self.cluster.run("sbatch", "--parsable", "-J", f"bob-{node}", "-w", node, "--mem=50", "-D", str(folder), "-o", str(folder / f"{node}.out"), str(script), user="bob", check=True).stdout)
                for node in (cut, leader)}
        for node in jobs:
            wait_until((folder / f"{node}.ticks").exists, 20, f"bob's job on {node}")
        before = run.generation()
        self.cluster.lose(cut, power=False)
        run.wait_for_steps(after=before)
        self.cluster.control("heal-link", cut)
        for node, job in jobs.items():
            wait_until(lambda j=job: "JobState=COMPLETED " in self.show(j), 60, f"the end of bob's job: {self.show(job)}", 0.5)
            self.assertIn("ExitCode=0:0 ", self.show(job))
            self.assertEqual((folder / f"{node}.ticks").read_text().split(), [str(i) for i in range(1, 301)])

    @unittest.skipUnless(NIGHTLY, "only nightly: on a machine that is busy others do not reach it in time either")
    def test_a_link_that_the_leader_alone_lacks(self) -> None:
        """Others reach the node. Where the link is whole again in time nothing has happened; else the node is taken out, later than one that nobody reaches."""
        run = start_with_copies(self.cluster, "apart", nodes=6, steps=STEPS, older_may_live=True)
        self.addCleanup(lambda: self.cluster.run("scancel", str(run.job_id()), user="root"))
        leader, before = run.status("n1")["leader"], run.generation()
        node = next(name for name in run.nodes_with_ranks("n1") if name not in ("n1", leader))
        hosts = Hosts.load(self.cluster.name)

        def separate() -> float:
            lock = hosts.lock()
            try:
                net.separate(hosts, [leader], [node])
            finally:
                os.close(lock)
            return time.time()
        began = separate()
        self.addCleanup(self.cluster.control, "rejoin")
        time.sleep(2.1)  # one that nobody reaches is gone by then; TCP tries again after 3 s
        self.cluster.control("rejoin")
        print(f"apart for {time.time() - began:.2f} s")
        time.sleep(5)
        self.assertEqual(run.generation(), before, run.time_line())
        separate()
        run.wait_for_steps(after=before)
        said = [event["text"] for event in self.cluster.events(run.job_id(), [leader]) if " gone " in event["text"]]
        self.assertRegex(said[0], rf"^{node} gone \(n\d reaches {node}, this node does not\): Slurm is asked to take them out of the job$")
        self.assertNotIn(node, run.nodes_with_ranks(leader))

    def show(self, job: int) -> str:
        return self.cluster.run("scontrol", "-o", "show", "job", str(job), user="root").stdout


def add_case(cell: Cell) -> None:
    def case(self: Partition) -> None:
        Trial(self, cell).carry_out()
    nightly = unittest.skipUnless(NIGHTLY or cell in ALWAYS, "only nightly: a matrix of cuts, each of which takes half a minute")
    setattr(Partition, f"test_{str(cell).replace('-', '_')}", nightly(case))


for one_cell in MATRIX:
    add_case(one_cell)


if __name__ == "__main__":
    unittest.main()
