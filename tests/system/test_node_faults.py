# SPDX-License-Identifier: Apache-2.0
"""Nodes fail in each way that has a part of its own: the one that leads, the batch host, two at once, one while another is being replaced, a cut link,
a daemon in the midst of copying. Each time the group goes on from memory and ends with the undisturbed bits."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from cluster import NIGHTLY, TOP, Cluster, wait_until
from heat import Run
from loss_case import FROM_STORAGE, Case, NodeLosses, user_processes


class NodeFaults(NodeLosses):
    LABEL = "faults"

    def test_leader(self) -> None:
        """The node that leads, and has ranks."""
        case = Case(self, "leader")
        before = case.status()
        leader, term = before["leader"], before["generation"]["term"]
        self.assertNotEqual(case.ranks_of(leader), [])
        case.lose(leader)
        case.expect_steps()
        after = case.status()
        self.assertNotEqual(after["leader"], leader)
        self.assertGreater(after["generation"]["term"], term)
        case.expect_result()

    def test_batch_host(self) -> None:
        """It has ranks, and the sruns of two jobs: one ends before Slurm gives the node up, the other one later."""
        late = Case(self, "late", batch=True, steps=3000, step_us=10000)
        host = "n1"
        self.assertIn(f"BatchHost={host} ", self.job(late))
        self.assertNotEqual(late.ranks_of(host), [])
        late.lose(host, at_all=False)
        early = Case(self, "early", batch=True, steps=800, names=["n1", "n2", "n3", "n5"])  # late's spare has to answer all the time
        early.lose(host)
        late.began = early.began
        early.expect_steps()
        late.expect_steps()
        wait_until(lambda: {page.phase_name for page in early.run.pages} == {"done"}, 60, "the end of the early one")
        if time.time() - early.began < 9:  # else Slurm may have given the node up (SlurmdTimeout)
            self.assertIn(" NodeList=n[1-4] ", self.job(late))
        early.expect_result()
        wait_until(lambda: " NodeList=n[2-4] " in self.job(late), 40, "Slurm gives the node up", 0.2)
        self.assertNotEqual({page.phase_name for page in late.run.pages}, {"done"})
        late.expect_result()
        for case in (early, late):
            wait_until(lambda c=case: "JobState=COMPLETED " in self.job(c), 30, f"the job's end: {self.job(case)}", 0.1)
            self.assertIn("ExitCode=0:0 ", self.job(case))
            self.expect_accounted(case)

    def expect_accounted(self, case: Case) -> None:
        """slurmctld has no step of it any more, and in the accounting job, script and step are over (those of before Slurm gave a node up are RESIZING)."""
        job = str(case.run.job_id())
        self.assertEqual(self.cluster.run("squeue", "-h", "-s", "-j", job, user="root", check=True).stdout, "")
        rows: "list[str]" = []
        def over() -> bool:
            rows[:] = self.cluster.run("sacct", "-j", job, "-D", "-n", "-P", "-o", "JobID,State,End", user="root", check=True).stdout.splitlines()
            return {f"{job}{part}" for part in ("", ".batch", ".0")} <= {row.split("|")[0] for row in rows} and not any("RUNNING" in row or "Unknown" in row for row in rows)
        try:
            wait_until(over, 20, f"the accounting of {case.run.label}", 0.5)
        finally:
            print(f"{case.run.label}: {', '.join(rows)}")

    def job(self, case: Case) -> str:
        return self.cluster.run("scontrol", "-o", "show", "job", str(case.run.job_id()), user="root").stdout

    def test_two_at_once(self) -> None:
        """A node, and one of the two that have its copies; one of them leads."""
        case = Case(self, "two", nodes=6, spares=2, copies=2)
        leader = case.status()["leader"]
        other = next(node for node in case.partners(leader) if node != "n1")
        case.lose(leader, other)
        case.expect_steps()
        case.expect_result()

    def test_another_during_recovery(self) -> None:
        """While the first one's ranks wait for their state, a node is lost that has it."""
        case = Case(self, "another", nodes=6, spares=2, copies=2)
        first = "n3"
        second = next(node for node in case.partners(first) if node != "n1")
        movers = [p.pid for node in self.cluster.nodes for p in user_processes(self.cluster, node, "dlrover-mover") if node not in (first, second)]
        self.assertEqual(len(movers), 4)
        for pid in movers:  # nobody's state comes
            os.kill(pid, signal.SIGSTOP)
        case.lose(first)
        wait_until(lambda: case.run.generation() > case.generation, 20, "the world without the first", 0.002)
        between, safe = case.run.generation(), case.safe
        case.lose(second)
        self.assertFalse(case.run.all_stepping())
        case.safe = safe
        for pid in movers:
            os.kill(pid, signal.SIGCONT)
        case.expect_steps()
        self.assertGreater(case.generation, between)
        case.expect_result()

    def test_cut_link(self) -> None:
        """The node lives, and hears nobody: it stops its ranks by itself, and is not in the way when it is heard again."""
        case = Case(self, "cut", older_may_live=True)
        node = "n3"
        ranks = {p.pid for p in user_processes(self.cluster, node, "heat")}
        self.assertEqual(len(ranks), 2)
        case.lose(node, power=False)
        # Slurm takes its time with a node that it did not hear for a while: it is booted anew.
        self.powered_off.add(node)
        case.expect_steps()
        self.assertNotEqual(user_processes(self.cluster, node, "heat"), [], "its lease is longer")
        wait_until(lambda: not user_processes(self.cluster, node, "heat"), 10, "its ranks end", 0.02)
        print(f"its ranks ended {time.time() - case.began:.2f} s after the cut")
        self.assertNotEqual(case.run.status(node)["generation"]["number"], case.generation)
        self.cluster.control("heal-link", node)
        case.expect_result()
        self.assertEqual(user_processes(self.cluster, node, "heat"), [])

    def test_daemon_in_mid_copy(self) -> None:
        """A daemon dies while its objects are copied, then a node whose copies it has."""
        case = Case(self, "mid-copy")
        lost = "n3"
        crashed = case.partners(lost)[0]
        mover = user_processes(self.cluster, crashed, "dlrover-mover")[0]
        os.kill(mover.pid, signal.SIGSTOP)
        def copying() -> bool:
            copies = case.run.status(crashed)["copies"]
            return copies["safe_step"] < copies["target_step"] and copies["copied"] < copies["to_copy"]
        wait_until(copying, 10, "copies that wait")
        old = self.cluster.daemon_pid(crashed)
        os.kill(old, signal.SIGKILL)
        os.kill(mover.pid, signal.SIGCONT)
        wait_until(lambda: self.cluster.daemon_pid(crashed) not in (None, old), 20, f"another dlroverd on {crashed}")
        case.lose(lost)
        case.expect_steps()
        case.expect_result()

    @unittest.skipUnless(NIGHTLY, "only nightly: torch starts slowly")
    def test_digits(self) -> None:
        """A real trainer, ten times: weights, optimizer, random numbers and position in the data come back bit for bit."""
        undisturbed = self.digits_digest("digits-0", self.start_digits("digits-0", "n[1,5-6]", "--dlrover-elastic"))
        for number in range(1, 11):
            self.assertEqual(self.disturbed_digits(f"digits-{number}", power=number % 2 == 1), undisturbed, f"digits-{number}")
            for node in self.powered_off:
                self.cluster.control("kill-node", node, check=False)  # which was only cut off, it may be
                self.neighbour.forget(node)
            self.power_on()
            self.powered_off.clear()

    def disturbed_digits(self, label: str, power: bool) -> str:
        """A node of it loses its power, or its link, once copies are there. There is something on storage, and nobody reads it."""
        stored = self.cluster.work / label / "stored"
        disturbed = self.start_digits(label, "n[1-4]", "--dlrover-elastic=2:3", "--dlrover-spares=1", "--dlrover-redundancy=partner:1",
                                      f"--dlrover-ckpt-dir={stored}", "--dlrover-ckpt-every=3")
        job = self.cluster.job_id(label)
        wait_until(lambda: (self.digits_status(job).get("copies") or {}).get("safe_step", -1) >= 5, 60, "safe steps", 0.05)
        wait_until(lambda: (self.digits_status(job).get("storage") or {}).get("stored_step", -1) >= 1, 30, "a step on storage", 0.05)
        status = self.digits_status(job)
        victim = status["ranks"][-1]["node"]
        self.assertNotEqual(victim, "n1")
        safe = status["copies"]["safe_step"]
        self.powered_off.add(victim)
        self.cluster.lose(victim, power=power)
        digest = self.digits_digest(label, disturbed)
        story = "\n".join(event["text"] for event in self.cluster.events(job))
        self.assertIn("fetched from", story)
        self.assertNotRegex(story, FROM_STORAGE)
        resumed = [int(line.split()[-1]) for line in (self.cluster.work / label / "stdout").read_text().splitlines() if line.startswith("resumed after step")]
        print(f"{label}: step {safe} was safe, resumed after {resumed}")
        self.assertEqual(len(resumed), 1)
        self.assertGreaterEqual(resumed[0], safe)
        return digest

    def start_digits(self, label: str, nodes: str, *options: str) -> "subprocess.Popen":
        folder = self.cluster.work / label
        folder.mkdir()
        folder.chmod(0o777)
        with open(folder / "stdout", "w") as out:
            srun = self.cluster.start("srun", "--job-name", label, "-w", nodes, "--ntasks-per-node=1", "--mem=900", *options, "/usr/bin/python3",
                                      str(TOP / "examples/digits/train.py"), "--steps", "40", "--step-time", "0.1", "--out", str(folder / "result"), stdout=out, stderr=out)
        self.addCleanup(lambda: srun.poll() is None and srun.terminate())
        return srun

    def digits_status(self, job: int) -> dict:
        done = self.cluster.run("dlrover", "status", str(job), "--json", user="root", node="n1")
        groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
        return groups[0] if groups else {}

    def digits_digest(self, label: str, srun: "subprocess.Popen") -> str:
        self.assertEqual(srun.wait(90), 0, (self.cluster.work / label / "stdout").read_text())
        return (self.cluster.work / label / "result.sha256").read_text()


@unittest.skipUnless(NIGHTLY, "only nightly: it waits for Slurm")
class NoDatabase(unittest.TestCase):
    def test_a_second_loss_does_not_wait_for_slurm(self) -> None:
        """Without slurmdbd Slurm changes a job's size once. The time line says so, a majority goes on, and steps of others are not kept waiting."""
        self.powered_off: "set[str]" = set()
        self.leaving: "list[Run]" = []
        self.cluster = self.enterContext(Cluster("no-database", nodes=6))
        case = Case(self, "twice", nodes=6, spares=2, copies=2, steps=1_000_000)
        self.addCleanup(case.run.process.kill)
        case.lose("n3")
        case.expect_steps()
        wait_until(lambda: case.run.safe_step("n1") > case.safe, 20, "newer safe steps")
        case.lose("n4")
        wait_until(lambda: "slurmdbd" in case.run.time_line(), 20, "a word about slurmdbd", 0.2)
        begun = time.monotonic()
        other = Run(self.cluster, "other", srun=("-w", case.status()["leader"], "--mem=400"), nodes=1, size=64, steps=10).start()
        self.assertEqual(other.finish(20), 0, other.output())
        print(f"another step on the leader's node took {time.monotonic() - begun:.1f} s meanwhile")
        case.expect_steps()
        story = wait_until(lambda: "n4 removed" in case.run.time_line() and case.run.time_line(), 60, "Slurm gives the node up", 0.5)
        self.assertEqual(story.count("waiting for Slurm"), 1, story)
        self.assertIn("n4 removed: they are no longer part of the job", story)
        case.over = True
        self.cluster.run("scancel", str(case.run.job_id()), user="root")

    def test_slurm_keeps_a_lost_node_in_the_job(self) -> None:
        """disable_job_shrink, and a node whose peers do not hear it while slurmctld does: it had the job requeued under the others."""
        self.powered_off, self.leaving = set(), []
        folder = self.enterContext(tempfile.TemporaryDirectory())
        settings = pathlib.Path(folder, "dlrover.toml")
        settings.write_text('[timing]\nwithout_slurm = "10s"\n')  # a minority waits 17.5 s, not 67.5 s
        settings.chmod(0o644)
        shrink = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,disable_job_shrink"
        self.cluster = self.enterContext(Cluster("keeps", nodes=5, arguments=("--conf", shrink, "--dlrover-conf", str(settings))))
        case = Case(self, "kept", nodes=5, spares=1, copies=1, steps=1_000_000, older_may_live=True)
        self.addCleanup(case.run.process.kill)
        case.safe, case.lost, case.began = case.run.safe_step("n1"), ["n3"], time.time()
        self.cluster.control("separate", "n3", "n1,n2,n4,n5")
        try:
            case.expect_steps()
            wait_until(lambda: "n3 removed" in case.run.time_line(), 5, "the group goes on without n3", 0.1)
            time.sleep(max(0.0, case.began + 25 - time.time()))
        finally:
            self.cluster.control("rejoin")
        shown = self.cluster.run("scontrol", "show", "job", str(case.run.job_id()), user="root").stdout
        self.assertIn("dlrover-without:0.0:n3", shown)
        self.assertIn("Restarts=0", shown)
        self.assertEqual(case.run.generation(), case.generation, case.run.time_line())
        self.assertTrue(case.run.running(), case.run.output())
        wait_until(lambda: not user_processes(self.cluster, "n3", "heat"), 10, "the ranks' end on n3", 0.2)
        case.over = True
        self.cluster.run("scancel", str(case.run.job_id()), user="root")


if __name__ == "__main__":
    unittest.main()
