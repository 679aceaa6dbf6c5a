# SPDX-License-Identifier: Apache-2.0
"""A lost node is replaced by one that Slurm moves into the job itself, where a site permits that; else by a job of its own."""

import time
import unittest

from cluster import NIGHTLY, Cluster, wait_until
from heat import Run, reference, start_with_copies

SIZE, STEPS = 256, 9000
PERMITTED = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=5,bf_interval=5,permit_job_expansion"


class Expansion(unittest.TestCase):
    def cluster(self, name: str, nodes: int, *conf: str) -> Cluster:
        settings = [word for text in (PERMITTED, *conf) for word in ("--conf", text)]
        cluster = Cluster(name, nodes=nodes, arguments=("--slurmdbd", *settings))
        self.addCleanup(cluster.__enter__().__exit__, None, None, None)
        return cluster

    def start(self, cluster: Cluster, label: str, steps: int = STEPS) -> Run:
        """n1 to n3 work, n4 is the spare, the others have no part in the job."""
        run = start_with_copies(cluster, label, nodes=4, spares=1, copies=1, batch=True, size=SIZE, steps=steps, save_every=5, step_us=4000)
        self.addCleanup(lambda: cluster.run("scancel", str(run.job), user="root"))
        self.addCleanup(lambda: print(run.time_line()))
        return run

    def job(self, cluster: Cluster, job: int) -> "dict[str, str]":
        text = cluster.run("scontrol", "-o", "show", "job", str(job), user="root", check=True).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def nodes_of(self, cluster: Cluster, job: int) -> "list[str]":
        return cluster.run("scontrol", "show", "hostnames", self.job(cluster, job)["NodeList"], user="root", check=True).stdout.split()

    def lose(self, run: Run, node: str) -> float:
        """Until all ranks step without it; when it began."""
        generation = run.generation()
        began = run.cluster.lose(node)
        run.wait_for_steps(after=generation)
        return began

    def expect_joined(self, run: Run, node: str, seconds: float = 40) -> float:
        wait_until(lambda: any(f"{node} has joined the group (by expansion of the job)" in e["text"] for e in run.notes()), seconds, f"{node} in the group", 0.2)
        joined = time.time()
        wait_until(lambda: any(e["kind"] == "node-ready" and e["node"] == node for e in run.notes()), 30, "its agents", 0.2)
        safe = run.safe_step("n1")
        wait_until(lambda: run.safe_step("n1") > safe, 30, "newer safe steps", 0.1)
        return joined

    def expect_end(self, run: Run, steps: int = STEPS) -> None:
        cluster = run.cluster
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 240, "all ranks done")
        wait_until(lambda: not cluster.run("squeue", "-h", user="root").stdout.strip(), 60, "an empty queue", 0.2)
        job = self.job(cluster, run.job)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), run.time_line())
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(cluster, SIZE, steps), "the field differs from the undisturbed one")

    def test_the_job_is_expanded_again_and_again(self) -> None:
        cluster = self.cluster("expansion", 6)
        run = self.start(cluster, "expanded")
        began = self.lose(run, "n3")
        joined = self.expect_joined(run, "n5")
        print(f"n5 had joined {joined - began:.1f} s after the power failed")
        self.assertEqual(self.nodes_of(cluster, run.job), ["n1", "n2", "n4", "n5"])
        self.assertEqual(run.status("n1")["joined"], ["n5 (by expansion)"])
        self.lose(run, "n4")
        self.assertIn("n5", run.nodes_with_ranks("n1"), run.time_line())
        self.expect_joined(run, "n6")
        self.lose(run, "n5")
        self.assertEqual(sorted(run.nodes_with_ranks("n1")), ["n1", "n2", "n6"], run.time_line())
        self.assertEqual(self.nodes_of(cluster, run.job), ["n1", "n2", "n6"], "Slurm has the lost node still")
        self.expect_end(run)
        self.assertIn("Slurm has expanded the job in place of n3: by n5.", run.time_line())
        own = cluster.run("squeue", "-h", "-t", "all", "-n", f"dlrover-{run.job}-node", "-o", "%i %T", user="root", check=True).stdout
        self.assertNotIn("RUNNING", own)

    @unittest.skipUnless(NIGHTLY, "only nightly: it takes a while")
    def test_where_it_is_not_permitted_a_job_of_its_own_comes(self) -> None:
        cluster = self.cluster("contained", 5, "PrologFlags=Alloc,Contain")
        run = self.start(cluster, "contained", steps=4000)
        self.lose(run, "n3")
        wait_until(lambda: any("n5 has joined the group (job " in e["text"] for e in run.notes()), 40, "a node that has joined", 0.2)
        self.assertNotIn("not expanded", run.time_line())
        self.expect_end(run, 4000)

    @unittest.skipUnless(NIGHTLY, "only nightly: it takes a while")
    def test_no_node_is_free(self) -> None:
        """Refused at once: a job waits for one, and the events say why."""
        cluster = self.cluster("unfree", 5)
        other = cluster.start("srun", "-w", "n5", "--exclusive", "sleep", "600")
        self.addCleanup(other.terminate)
        wait_until(lambda: cluster.run("squeue", "-h", "-w", "n5", user="root").stdout.strip(), 20, "n5 taken", 0.1)
        run = self.start(cluster, "unfree", steps=4000)
        self.lose(run, "n3")
        queue = lambda: cluster.run("squeue", "-h", "-n", f"dlrover-{run.job}-node", "-o", "%T", user="root", check=True).stdout.split()
        wait_until(lambda: queue() == ["PENDING"], 30, "a companion job that waits", 0.2)
        self.assertIn("the job is not expanded, a job for another node is asked for", run.time_line())
        other.terminate()
        cluster.run("scancel", "-u", "alice", "-n", "sleep", user="root")
        wait_until(lambda: any("n5 has joined the group (job " in e["text"] for e in run.notes()), 40, "a node that has joined", 0.2)
        self.expect_end(run, 4000)

    @unittest.skipUnless(NIGHTLY, "only nightly: it takes a while")
    def test_a_leader_that_dies_leaves_nothing_over(self) -> None:
        """Its node is gone as soon as the job is expanded: the next leader goes on with the node, or takes it out of the job."""
        cluster = self.cluster("unfinished", 7)
        run = start_with_copies(cluster, "unfinished", nodes=5, spares=2, copies=1, batch=True, size=SIZE, steps=40000, save_every=5, step_us=4000)
        self.addCleanup(lambda: cluster.run("scancel", str(run.job), user="root"))
        self.addCleanup(lambda: print(run.time_line()))
        self.lose(run, "n3")
        leader = run.status("n1")["leader"]
        wait_until(lambda: {"n6", "n7"} & set(self.nodes_of(cluster, run.job)), 30, "an expanded job", 0.02)
        self.lose(run, leader)
        wait_until(lambda: any("has joined the group" in e["text"] for e in run.notes()), 60, "a node in place of one", 0.2)

        def nobodys() -> "set[str]":
            ready = {e["node"] for e in run.notes() if e["kind"] == "node-ready"}
            return set(self.nodes_of(cluster, run.job)) - ready - set(run.nodes_with_ranks("n1"))
        # One that had its place in the table and never came is given up after a minute.
        wait_until(lambda: not nobodys(), 100, "a job without a node that is nobody's", 1)
        self.assertLessEqual(len(self.nodes_of(cluster, run.job)), 5)
        cluster.run("scancel", str(run.job), user="root")
        wait_until(lambda: not cluster.run("squeue", "-h", user="root").stdout.strip(), 60, "an empty queue", 0.2)


if __name__ == "__main__":
    unittest.main()
