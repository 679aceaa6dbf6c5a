# SPDX-License-Identifier: Apache-2.0
"""A lost node is replaced by a job of one node: it joins the running step, does its part of the work, and ends with it."""

import os
import pathlib
import time
import unittest

from cluster import NIGHTLY, Cluster, stopped, wait_until
from heat import Run, held_back, reference, start_with_copies
from loss_case import Neighbour, user_processes

SIZE, STEPS = 256, 6000
LONG = 4200  # steps of 20 ms: a node is asked for again after a minute


class Companion(unittest.TestCase):
    def cluster(self, *arguments: str, nodes: int = 5, slurmdbd: bool = True) -> Cluster:
        """Without slurmdbd Slurm changes a job's size only once."""
        cluster = Cluster("companion", nodes=nodes, arguments=(*(("--slurmdbd",) if slurmdbd else ()), *arguments))
        self.addCleanup(cluster.__enter__().__exit__, None, None, None)
        return cluster

    def start(self, cluster: Cluster, label: str, steps: int = STEPS, step_us: int = 4000) -> Run:
        """n1 to n3 work, n4 is the spare, the others have no part in the step."""
        run = start_with_copies(cluster, label, nodes=4, spares=1, copies=1, size=SIZE, steps=steps, save_every=5, step_us=step_us)
        self.addCleanup(lambda: run.running() and run.process.terminate())
        return run

    def queue(self, cluster: Cluster, job: int) -> "list[str]":
        """The companion jobs: number, state, nodes."""
        done = cluster.run("squeue", "-h", "-n", f"dlrover-{job}-node", "-o", "%i %T %N", user="root", check=True)
        return done.stdout.splitlines()

    def expect_end(self, run: Run, steps: int = STEPS) -> None:
        cluster = run.cluster
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
        self.assertEqual(run.finish(40), 0, run.output())
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(cluster, SIZE, steps), "the field differs from the undisturbed one")
        wait_until(lambda: not cluster.run("squeue", "-h", "-u", "alice", user="root").stdout.strip(), 30, "nothing of alice's in the queue", 0.2)

    def test_its_node_works_in_place_of_a_lost_one(self) -> None:
        self.expect_replaced(self.cluster())

    @unittest.skipUnless(NIGHTLY, "only nightly: the same again, where Slurm takes out one lost node and not the next one")
    def test_without_slurmdbd(self) -> None:
        """Of the second loss the time line says that Slurm is waited for; three of four nodes need not."""
        line = self.expect_replaced(self.cluster(slurmdbd=False))
        self.assertIn("n3 removed: Slurm took them out of the job", line)
        self.assertIn("slurmdbd", line)

    @unittest.skipUnless(NIGHTLY, "only nightly: the same again, where Slurm takes out no lost node")
    def test_where_no_job_may_shrink(self) -> None:
        """The nodes that are left say in the job's AdminComment that they go on without the others."""
        shrink = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,disable_job_shrink"
        line = self.expect_replaced(self.cluster("--conf", shrink))
        self.assertIn("disable_job_shrink", line)

    def expect_replaced(self, cluster: Cluster) -> str:
        """The time line."""
        neighbour = Neighbour(cluster)
        neighbour.begin()
        run = self.start(cluster, "replaced")
        job = run.job_id()
        began, generation = cluster.lose("n3"), run.generation()
        companion = int(wait_until(lambda: self.queue(cluster, job), 30, "a companion job", 0.1)[0].split()[0])
        wait_until(lambda: any("n5 has joined the group" in e["text"] for e in run.notes()), 30, "a node that has joined", 0.2)
        print(f"n5 had joined {time.time() - began:.1f} s after the power failed")
        run.wait_for_steps(after=generation)
        self.assertNotIn("n5", run.nodes_with_ranks("n1"), "it is the spare now")
        wait_until(lambda: any(e["kind"] == "node-ready" and e["node"] == "n5" for e in run.notes()), 30, "its agents", 0.2)
        generation, safe = run.generation(), run.safe_step("n1")
        wait_until(lambda: run.safe_step("n1") > safe, 30, "newer safe steps", 0.1)
        cluster.lose("n4")
        run.wait_for_steps(after=generation)
        self.assertIn("n5", run.nodes_with_ranks("n1"), run.time_line())
        for node in ("n3", "n4"):
            neighbour.forget(node)
        self.expect_end(run)
        neighbour.expect_untouched(self)
        line = run.time_line()
        self.assertIn(f"Asked Slurm for a node in place of n3: job {companion}.", line)
        shown = cluster.run("scontrol", "-o", "show", "job", str(companion), user="root", check=True).stdout
        self.assertIn("JobState=COMPLETED", shown)
        self.assertIn("UserId=alice", shown)
        return line

    def test_no_node_is_free(self) -> None:
        cluster = self.cluster()
        other = cluster.start("srun", "-w", "n5", "--exclusive", "sleep", "600")
        self.addCleanup(other.terminate)
        wait_until(lambda: cluster.run("squeue", "-h", "-w", "n5", user="root").stdout.strip(), 20, "n5 taken", 0.1)
        run = self.start(cluster, "alone")
        job, generation = run.job_id(), run.generation()
        cluster.run("scontrol", "update", f"JobId={job}", "Nice=42", user="root", check=True)
        cluster.lose("n3")
        companion = wait_until(lambda: self.queue(cluster, job), 30, "a companion job", 0.1)[0].split()[0]
        self.assertIn("Nice=42", cluster.run("scontrol", "-o", "show", "job", companion, user="root", check=True).stdout)
        run.wait_for_steps(after=generation)
        self.assertRegex(" ".join(self.queue(cluster, job)), r"^\d+ PENDING")
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
        self.assertEqual(run.finish(40), 0, run.output())
        self.assertEqual(run.out.read_bytes(), reference(cluster, SIZE, STEPS))
        wait_until(lambda: not self.queue(cluster, job), 20, "no companion job that waits", 0.2)

    @unittest.skipUnless(NIGHTLY, "only nightly: a node is asked for again after a minute")
    def test_a_replacement_dies_before_it_asks_to_join(self) -> None:
        """Its job runs, its daemon is held back."""
        cluster = self.cluster(nodes=6)
        run = self.start(cluster, "unasked", LONG, 20000)
        with held_back(cluster, ["n5", "n6"]):
            generation, began = run.generation(), cluster.lose("n3")
            dead = self.runs_on(run)
            cluster.lose(dead)
        print(f"{dead} was lost {time.time() - began:.1f} s after n3")
        self.expect_another(run, dead, generation, began)

    @unittest.skipUnless(NIGHTLY, "only nightly: a node is asked for again after a minute")
    def test_a_replacement_dies_before_it_counts(self) -> None:
        """It has its place in the table, and never answers: its keeper, without which it promises nothing, stands still."""
        cluster = self.cluster(nodes=6)
        run = self.start(cluster, "uncounted", LONG, 20000)
        keepers = [host["keeper"] for host in cluster.describe()["hosts"] if host["host"] in ("n5", "n6")]
        with stopped(keepers):
            generation, began = run.generation(), cluster.lose("n3")
            dead = self.runs_on(run)
            wait_until(lambda: any(dead in text for text in run.status("n1")["joined"]), 30, f"{dead} in the table", 0.1)
            cluster.lose(dead)
        print(f"{dead} was lost {time.time() - began:.1f} s after n3")
        self.expect_another(run, dead, generation, began)

    @unittest.skipUnless(NIGHTLY, "only nightly: a leader is waited for, a minute long")
    def test_all_others_are_gone(self) -> None:
        """Then nobody tells it that the group is over. Slurm can say so of the job; where it can not be asked either it ends after a minute."""
        cluster = self.cluster(nodes=6)
        for slurm in (True, False):
            run = self.start(cluster, f"left-{slurm}", LONG, 20000)
            job = run.job_id()
            cluster.lose("n3")
            joined = lambda: next((e["node"] for e in run.notes() if "has joined the group" in e["text"]), None)
            node = wait_until(joined, 60, "another node in the group", 0.2)
            wait_until(lambda: any(e["kind"] == "node-ready" and e["node"] == node for e in run.notes()), 30, "its agents", 0.2)
            if not slurm:
                cluster.control("stop-slurmctld")
            began = cluster.lose("n1", "n2", "n4")
            self.assertTrue(user_processes(cluster, node, "dlrover-mover"))
            wait_until(lambda: not user_processes(cluster, node, "dlrover-mover"), 100, "the end of its step", 0.5)
            took = time.time() - began
            print(f"its step had ended {took:.1f} s after all others were lost, {'Slurm' if slurm else 'nobody'} could be asked")
            if not slurm:
                self.assertGreater(took, 50, "the others may only have been cut off for a while")
                cluster.control("start-slurmctld")
            wait_until(lambda: not self.queue(cluster, job), 100, "no companion job", 0.5)
            said = cluster.run("dlrover", "events", str(job), user="root", node=node).stdout
            if not slurm:
                self.assertIn("No leader of the group was heard for a minute", said)
            for lost in ("n1", "n2", "n3", "n4"):
                cluster.start_node(lost)
            run.process.kill()
            cluster.run("scancel", "-u", "alice", user="root")
            idle = lambda: set(cluster.run("sinfo", "-h", "-N", "-o", "%T", user="root").stdout.split()) == {"idle"}
            wait_until(idle, 90, "all nodes idle", 0.5)

    def runs_on(self, run: Run) -> str:
        """The companion job's node, as soon as it has one."""
        nodes = lambda: [line.split()[2] for line in self.queue(run.cluster, run.job_id()) if " RUNNING " in line]
        return wait_until(nodes, 40, "a companion job that runs", 0.05)[0]

    def expect_another(self, run: Run, dead: str, generation: int, began: float) -> None:
        """The group goes on as if nobody had come, and gets the other node."""
        self.addCleanup(lambda: print(run.time_line()))
        other = "n5" if dead == "n6" else "n6"
        run.wait_for_steps(after=generation)
        generation = run.generation()
        wait_until(lambda: any(f"{other} has joined the group" in e["text"] for e in run.notes()) or not run.running(), 120, f"{other} in the group", 0.5)
        print(f"{other} had joined {time.time() - began:.1f} s after n3 was lost")
        wait_until(lambda: any(e["kind"] == "node-ready" and e["node"] == other for e in run.notes()) or not run.running(), 30, "its agents", 0.2)
        self.assertTrue(run.running(), run.output())
        self.assertEqual([text.split()[0] for text in run.status("n1")["joined"]], [other])
        self.assertEqual(run.generation(), generation, "nobody was disturbed")
        self.expect_end(run, LONG)
        line = run.time_line()
        self.assertNotIn(f"{dead} has joined", line)
        self.assertEqual(line.count("Asked Slurm for a node in place of"), 2)


class Unmoved(unittest.TestCase):
    def test_an_allocation_that_was_to_be_moved_in_is_no_companion(self) -> None:
        """A leader that dies between Slurm's grant and the move leaves it over; the next one has to see what it is."""
        with Cluster("unmoved", nodes=2) as cluster:
            mark = "dlrover:7.0.0"
            jobs = [cluster.run("sbatch", "--parsable", "-N1", "--wrap=sleep 100", check=True).stdout.strip() for _ in range(2)]
            for job, comment in zip(jobs, (mark, f"site {mark} dlrover-expands")):
                cluster.run("scontrol", "update", f"JobId={job}", f"AdminComment={comment}", user="root", check=True)
            probe = pathlib.Path(os.environ["DLROVER_BUILD"]) / "tests" / "system" / "slurm_probe"
            user = cluster.run("id", "-u", check=True).stdout.strip()
            ask = lambda: cluster.run(str(probe), "companions", user, mark, user="root", check=True).stdout.splitlines()
            wait_until(lambda: all("waiting=0" in line for line in ask()), 20, "both jobs running", 0.2)
            self.assertEqual([line.split()[:3] for line in sorted(ask())],
                             [[f"job={job}", "waiting=0", f"expands={expands}"] for job, expands in zip(jobs, (0, 1))])


if __name__ == "__main__":
    unittest.main()
