# SPDX-License-Identifier: Apache-2.0
"""A job is requeued, and its next run goes on from what the surviving nodes have kept in memory: there is no storage."""

import json
import pathlib
import time
import unittest

from cluster import NIGHTLY, Cluster, wait_until
from heat import Run, reference
from loss_case import Neighbour
from mcluster import net
from mcluster.cluster import Cluster as Hosts

SIZE, STEPS = 256, 3000


class RequeueCase(unittest.TestCase):
    cluster: Cluster

    def send(self, label: str, nodes: int, redundancy: str, options: str = "", first: str = "true", least: int = 0) -> "tuple[Run, pathlib.Path]":
        """A batch job, and where its output goes: on some of the nodes, ``least`` (0: all) of them needed. ``first``: what its script does before."""
        run = Run(self.cluster, label, nodes=nodes, size=SIZE, steps=STEPS, save_every=5, step_us=4000, ballast_mb=8)
        words = ["srun", *(word for word in run.options if not word.startswith("--dlrover-")), *run.command]
        script, output = run.folder / "job.sh", run.folder / "stdout"
        script.write_text(f"#!/bin/bash\n#SBATCH -N{nodes} --ntasks-per-node=2 --job-name={label} --requeue --open-mode=append\n"
                          f"#SBATCH --dlrover-elastic={least or nodes}:{nodes} --dlrover-redundancy={redundancy} {options}\n"
                          f"{first}\n{' '.join(words)}\ncode=$?\necho $code >{run.folder}/code-$SLURM_RESTART_COUNT\nexit $code\n")
        self.cluster.run("sbatch", "-o", str(output), str(script), check=True)
        self.addCleanup(lambda: print(output.read_text()[-4000:]))
        return run, output

    def submit(self, *how: "str | int", **more: "str | int") -> "tuple[Run, int]":
        """The same, when it is training."""
        run, _ = self.send(*how, **more)
        wait_until(run.all_stepping, 30, "all ranks stepping", 0.002)
        return run, self.cluster.job_id(str(how[0]))

    def all_new(self, run: Run, old: "set[int]") -> bool:
        """Generations are counted anew in the job's next run."""
        return run.all_stepping() and all(page.started_us not in old for page in run.pages)

    def group(self, job: int, node: str) -> dict:
        done = self.cluster.run("dlrover", "status", str(job), "--json", user="root", node=node, check=True)
        return json.loads(done.stdout)["groups"][0]

    def show(self, job: int) -> str:
        return self.cluster.run("scontrol", "-o", "show", "job", str(job), user="root").stdout

    def expect_result(self, run: Run, job: int) -> None:
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
        wait_until(lambda: "JobState=COMPLETED" in self.show(job), 30, "the job's end")
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, SIZE, STEPS), "the field differs from the undisturbed one")

    def texts(self, job: int) -> "list[str]":
        return [f"{event['time_us'] / 1e6:.3f} {event['node']} {event['text']}" for event in self.cluster.events(job)]


class Requeue(RequeueCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("requeue", nodes=4))

    def test_too_few_nodes(self) -> None:
        neighbour = Neighbour(self.cluster)
        neighbour.begin()
        run, job = self.submit("few", 3, "partner:1")
        batch_host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        wait_until(lambda: self.group(job, batch_host)["copies"]["safe_step"] > 100, 30, "safe steps that go on", 0.1)
        status = self.group(job, batch_host)
        safe, old = status["copies"]["safe_step"], {page.started_us for page in run.pages}
        victim = next(rank["node"] for rank in status["ranks"] if rank["node"] != batch_host)
        began = time.time()
        self.cluster.control("kill-node", victim)
        try:
            wait_until(lambda: self.all_new(run, old), 90, "all ranks stepping again", 0.002)
        finally:
            print(self.show(job), *self.texts(job)[:40], sep="\n")
        took = time.time() - began
        restored = {page.restored_step for page in run.pages}
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), safe)
        print(f"all ranks stepping again {took:.2f} s after the loss, in the job's next run, from step {min(restored)}; step {safe} was safe")
        self.assertIn("Restarts=1", self.show(job))
        self.assertTrue(any("fetched from" in text for text in self.texts(job)))
        self.expect_result(run, job)
        neighbour.forget(victim)
        neighbour.expect_untouched(self)

    def test_its_script_begins_while_slurmctld_is_away(self) -> None:
        """Slurm's own srun gives up after MessageTimeout, and the job fails with it."""
        ready, go = self.cluster.work / "ready", self.cluster.work / "go"
        _, output = self.send("away", 3, "partner:1", first=f"touch {ready}; until [ -e {go} ]; do sleep 0.1; done")
        wait_until(ready.exists, 30, "the script")
        job = self.cluster.job_id("away")
        self.cluster.control("stop-slurmctld")
        go.touch()
        time.sleep(12)  # more than twice the MessageTimeout of these clusters
        self.assertIn("slurmctld does not answer", output.read_text())
        ended = self.cluster.run("env", f"SLURM_JOB_ID={job}", "timeout", "--kill-after=60", "3", "srun", f"--jobid={job}", "--dlrover-elastic", "true")
        self.assertEqual(ended.returncode, 124, ended.stderr)
        self.assertIn("srun was to end while it waited for slurmctld", ended.stderr)
        self.cluster.control("start-slurmctld")
        wait_until(lambda: "slurmctld answers" in output.read_text(), 30, "srun goes on")
        time.sleep(3)  # the step itself comes only when slurmctld, which has just begun, has heard from the nodes: a minute
        self.assertIn("JobState=RUNNING", self.show(job))
        self.assertNotIn("Unable to confirm allocation", output.read_text())

    def test_for_the_batch_host(self) -> None:
        """Enough nodes are left, but the script is to be done to its end."""
        run, job = self.submit("host", 3, "partner:1", options="--dlrover-on-batch-loss=requeue", least=1)
        host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        wait_until(lambda: self.group(job, host)["copies"]["safe_step"] > 60, 30, "safe steps", 0.1)
        safe, old, began = self.group(job, host)["copies"]["safe_step"], {page.started_us for page in run.pages}, time.time()
        self.cluster.lose(host)
        try:
            wait_until(lambda: self.all_new(run, old), 120, "all ranks stepping again", 0.002)
        finally:
            print(self.show(job), *self.texts(job)[:40], sep="\n")
        restored = {page.restored_step for page in run.pages}
        print(f"all ranks stepping again {time.time() - began:.2f} s after the loss, in the job's next run, from step {min(restored)}; step {safe} was safe")
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), safe)
        self.assertIn("Restarts=1", self.show(job))
        logs = [path.read_text() for path in (self.cluster.folder / "log").glob("dlroverd-n*.log")]
        self.assertTrue(any("the batch host is lost: Slurm is asked to requeue the job" in log for log in logs))
        self.expect_result(run, job)
        self.assertEqual((run.folder / "code-1").read_text(), "0\n")
        self.assertFalse((run.folder / "code-0").exists(), "the script of the run that was lost")

    def test_a_lost_node_is_excluded_for_a_minute_and_checked_then(self) -> None:
        """There is no other one but that which the user does not want."""
        run, job = self.submit("again", 3, "partner:1", options="--exclude=n4")
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        old = {page.started_us for page in run.pages}
        batch_host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        victim = next(node for node in ("n3", "n2") if node != batch_host)
        wait_until(lambda: self.group(job, batch_host)["copies"]["safe_step"] > 60, 30, "safe steps", 0.1)
        self.cluster.lose(victim)
        wait_until(lambda: f"dlrover-excluded:{victim}" in self.show(job), 60, "the mark", 0.2)
        marked = time.time()
        self.cluster.start_node(victim)
        try:
            wait_until(lambda: self.all_new(run, old), 150, "all ranks stepping again", 0.05)
        finally:
            print(self.show(job), *self.texts(job)[:40], sep="\n")
        took = time.time() - marked
        print(f"all ranks stepping again {took:.1f} s after {victim} was excluded")
        self.assertGreater(took, 45)
        self.assertNotIn("dlrover-excluded", self.show(job))
        self.assertIn("ExcNodeList=n4 ", self.show(job))
        self.assertIn(f"dlrover-lost:1:{victim}", self.show(job))
        self.assertTrue(any(f"{victim} was lost in the job's run before; checked in" in text for text in self.texts(job)), "it was used unchecked")
        self.assertEqual(len({page.restored_step for page in run.pages}), 1)
        self.expect_result(run, job)

    @unittest.skipUnless(NIGHTLY, "only nightly: half a minute for a line of the log")
    def test_a_full_comment_excludes_nothing(self) -> None:
        """Slurm keeps a job's AdminComment to 32 KiB, and what stands there stays."""
        _, job = self.submit("full", 3, "partner:1", options="--exclude=n4")
        comment = "w" * (32 * 1024 - 10)
        self.cluster.run("scontrol", "update", f"JobId={job}", f"AdminComment={comment}", user="root", check=True)
        batch_host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        wait_until(lambda: self.group(job, batch_host)["copies"]["safe_step"] > 60, 30, "safe steps", 0.1)
        self.cluster.lose(next(node for node in ("n3", "n2") if node != batch_host))
        logs = list((self.cluster.folder / "log").glob("dlroverd-n*.log"))
        wait_until(lambda: any("has an AdminComment that leaves no room" in log.read_text() for log in logs), 60, "the log's line", 0.2)
        self.assertIn("ExcNodeList=n4 ", self.show(job))
        self.assertIn(f"AdminComment={comment} ", self.show(job))
        self.cluster.run("scancel", str(job), user="alice", check=True)

    def test_by_hand(self) -> None:
        """Slurm's own requeue; without copies the objects have to be where their ranks are. In the next run the step has another number."""
        run, job = self.submit("hand", 4, "single", first="test -z $SLURM_RESTART_COUNT || srun -N1 -n1 true")
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        saved, old, began = run.common_save(), {page.started_us for page in run.pages}, time.time()
        self.cluster.run("scontrol", "requeue", str(job), user="alice", check=True)
        wait_until(lambda: "JobState=PENDING" in self.show(job) or "Restarts=1" in self.show(job), 30, "the job waiting")
        wait_until(lambda: self.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", user="alice").returncode == 0, 60, "StartTime", 0.5)
        try:
            wait_until(lambda: self.all_new(run, old), 150, "all ranks stepping again", 0.002)
        finally:
            print(self.show(job), *self.texts(job)[:40], sep="\n")
        restored = {page.restored_step for page in run.pages}
        print(f"all ranks stepping again {time.time() - began:.2f} s after scontrol requeue, from steps {restored}; step {saved} was complete")
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), saved)
        self.expect_result(run, job)

    def test_a_cancelled_job_keeps_nothing(self) -> None:
        run, job = self.submit("cancelled", 3, "partner:1")
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        node = self.group(job, "n1")["node"]
        self.assertGreater(self.group(job, node)["arena_bytes"], 0)
        self.cluster.run("scancel", str(job), user="alice", check=True)
        began = time.time()
        wait_until(lambda: all(self.group(job, n)["arena_bytes"] == 0 for n in ("n1", "n2", "n3")), 40, "memory given back", 0.2)
        print(f"memory was given back {time.time() - began:.1f} s after scancel")


@unittest.skipUnless(NIGHTLY, "only nightly: it waits for Slurm, two minutes after a requeue Slurm's own delay is over")
class NoShrink(RequeueCase):
    def test_too_few_nodes(self) -> None:
        """Slurm keeps the lost node in the job, so the run ends after SlurmdTimeout, and the next one begins on its nodes all the same."""
        shrink = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,disable_job_shrink"
        self.cluster = self.enterContext(Cluster("requeue-no-shrink", nodes=6, arguments=("--conf", shrink, "--conf", "SlurmdTimeout=150")))
        # Of what is free Slurm takes the first ones.
        other = self.cluster.run("sbatch", "--parsable", "-N2", "-w", "n1,n2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600", user="alice", check=True).stdout.strip()
        wait_until(lambda: "JobState=RUNNING" in self.show(int(other)), 30, "the other job running", 0.1)
        run, job = self.submit("kept", 3, "partner:1")
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        batch_host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        wait_until(lambda: self.group(job, batch_host)["copies"]["safe_step"] > 60, 30, "safe steps", 0.1)
        safe, old = self.group(job, batch_host)["copies"]["safe_step"], {page.started_us for page in run.pages}
        self.assertEqual(batch_host, "n3")
        self.cluster.run("scancel", other, user="alice", check=True)
        began = time.time()
        self.cluster.lose("n4")
        try:
            wait_until(lambda: self.all_new(run, old), 300, "all ranks stepping again", 0.01)
        finally:
            print(self.show(job), *self.texts(job)[:40], sep="\n")
        took, restored = time.time() - began, {page.restored_step for page in run.pages}
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), safe)
        print(f"all ranks stepping again {took:.1f} s after the loss, from step {min(restored)}; step {safe} was safe")
        self.expect_result(run, job)


@unittest.skipUnless(NIGHTLY, "only nightly: a minute passes before Slurm gives the nodes again")
class Unfit(RequeueCase):
    def test_the_next_run_s_leader_fails_its_check(self) -> None:
        """Two of five nodes are lost, and come back; the link of the one that is to lead is slow now. Four are enough."""
        # Without slurmdbd Slurm takes no word about a job that has lost nodes twice.
        self.cluster = self.enterContext(Cluster("unfit", nodes=5, arguments=("--slurmdbd",)))
        run, job = self.submit("unfit", 5, "partner:1", least=4)
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        batch_host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        self.assertEqual(batch_host, "n1", "then n2 is the first to lead")
        self.cluster.lose("n2")
        self.cluster.lose("n3")
        wait_until(lambda: "dlrover-excluded:" in self.show(job), 30, "the mark", 0.2)
        self.cluster.start_node("n2")
        self.cluster.start_node("n3")
        net.narrow(Hosts.load(self.cluster.name), "n2", rate="8mbit", queue="400ms")
        try:
            wait_until(lambda: "JobState=COMPLETED" in self.show(job), 240, "the job's end", 0.2)
        finally:
            texts = self.texts(job)
            print(self.show(job), *texts[:60], sep="\n")
        resigned = next(text for text in texts if " n2 this node no longer leads: it was lost before, and its check has failed: " in text)
        refused = next(text for text in texts if "n2 was lost before and is not let in again: two-node check failed: n2: " in text)
        world = next(text for text in texts if "8 ranks on 4 nodes" in text)
        began, left, ended = (float(text.split()[0]) for text in (resigned, refused, world))
        print(f"refused {left - began:.2f} s after it resigned, the world {ended - began:.2f} s after")
        self.assertLess(ended - began, 30, "the others have waited for it")
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, SIZE, STEPS), "the field differs from the undisturbed one")


class Preemption(RequeueCase):
    """Slurm takes the nodes for a job of a higher partition, at once or after GraceTime."""

    @classmethod
    def setUpClass(cls) -> None:
        settings = ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "PriorityTier=1",
                    "PartitionName=high Nodes=n1,n2 PriorityTier=10 MaxTime=INFINITE State=UP")
        words = (word for setting in settings for word in ("--conf", setting))
        cls.cluster = cls.enterClassContext(Cluster("preemption", nodes=2, arguments=tuple(words)))

    def preempt(self, grace: int) -> "tuple[float, float]":
        """After how many seconds the other job has the nodes, and all ranks step again."""
        self.cluster.run("scontrol", "update", "PartitionName=main", f"GraceTime={grace}", user="root", check=True)
        folder = self.cluster.work / f"store-{grace}"
        folder.mkdir()
        folder.chmod(0o777)
        run, job = self.submit(f"grace{grace}", 2, "partner:1", f"--dlrover-ckpt-dir={folder} --dlrover-ckpt-every=1000000")
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        saved, old, began = run.common_save(), {page.started_us for page in run.pages}, time.time()
        other = self.cluster.run("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3", user="alice", check=True).stdout.strip()
        wait_until(lambda: "JobState=RUNNING" in self.show(int(other)), grace + 60, "the other job running", 0.1)
        taken = time.time() - began
        wait_until(lambda: self.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", user="alice").returncode == 0
                   or self.all_new(run, old), 60, "the job waiting", 0.5)
        try:
            wait_until(lambda: self.all_new(run, old), 150, "all ranks stepping again", 0.002)
        finally:
            print(self.show(job), *self.texts(job)[:40], sep="\n")
        again = time.time() - began
        restored = {page.restored_step for page in run.pages}
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), saved)
        self.assertIn("Restarts=1", self.show(job))
        stored = [int(path.name.split(".")[0].removeprefix("step-")) for path in folder.rglob("step-*.manifest")]
        self.assertGreaterEqual(max(stored, default=0), saved, "the newest complete step was not stored before the nodes went")
        self.expect_result(run, job)
        print(f"GraceTime {grace}: the other job had the nodes after {taken:.1f} s, all ranks stepping again after {again:.1f} s, from step {min(restored)}")
        return taken, again

    @unittest.skipUnless(NIGHTLY, "only nightly: Slurm's own requeue, as in test_by_hand")
    def test_at_once(self) -> None:
        self.preempt(0)

    @unittest.skipUnless(NIGHTLY, "only nightly: as test_a_minute")
    def test_ten_seconds(self) -> None:
        self.preempt(10)

    def test_a_minute(self) -> None:
        """The nodes are given up as soon as the newest step is stored."""
        taken, _ = self.preempt(60)
        self.assertLess(taken, 30)
        self.cluster.run("scontrol", "update", "PartitionName=main", "GraceTime=0", user="root", check=True)


if __name__ == "__main__":
    unittest.main()
