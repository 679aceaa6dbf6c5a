# SPDX-License-Identifier: Apache-2.0
"""dlrover-watch ends srun where it would wait for a lost node for ever, and never outlives it."""

import os
import pathlib
import signal
import subprocess
import time
import unittest

from cluster import Cluster, Process, prefix, wait_until
from heat import Run

PROGRAM = str(prefix() / "libexec" / "dlrover" / "dlrover-watch")


class Watch(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("watch", nodes=4))

    def watches(self, job: int) -> "list[Process]":
        everyone = (Process.read(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
        return [p for p in everyone if p and p.command[:2] == [PROGRAM, str(job)] and p.state != "Z" and self.is_ours(p)]

    def is_ours(self, process: Process) -> bool:
        """Not another cluster's, whose jobs have the same numbers."""
        try:
            return os.readlink(f"/proc/{process.pid}/root/etc/slurm") == str(self.cluster.folder / "etc")
        except OSError:  # it has ended
            return False

    def only_watch(self, job: int) -> Process:
        found = wait_until(lambda: self.watches(job), 10, f"a watch of job {job}")
        self.assertEqual(len(found), 1, found)
        return found[0]

    def expect_no_watch(self, job: int) -> None:
        wait_until(lambda: not self.watches(job), 3, f"no watch of job {job}: {self.watches(job)}")

    def start_srun(self, label: str, *command: str, options: "tuple[str, ...]" = ("--dlrover-elastic", "-N2")) -> "tuple[subprocess.Popen, int]":
        with open(self.cluster.work / label, "w") as out:
            srun = self.cluster.start("srun", "--job-name", label, "--ntasks-per-node=1", *options, *command, stdout=out, stderr=out)
        self.addCleanup(lambda: srun.poll() is None and srun.kill())
        return srun, self.cluster.job_id(label)

    def srun_of(self, watch: Process) -> int:
        """The pid, here, of the process that the watch has a handle of."""
        info = pathlib.Path(f"/proc/{watch.pid}/fdinfo/3").read_text()
        return int(next(line.split()[1] for line in info.splitlines() if line.startswith("Pid:")))

    def test_an_ordinary_step_leaves_none_behind(self) -> None:
        srun, job = self.start_srun("ordinary", "sleep", "6")
        watch = self.only_watch(job)
        self.assertNotEqual(watch.uid, 0)
        files = {int(fd): os.readlink(f"/proc/{watch.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{watch.pid}/fd")}
        self.assertEqual(files, {0: "/dev/null", 1: "/dev/null", 2: "/dev/null", 3: "anon_inode:[pidfd]"})
        self.assertEqual(Process.read(self.srun_of(watch)).command[0], "srun")
        self.assertNotEqual(os.getsid(watch.pid), os.getsid(self.srun_of(watch)))
        # Signals for the job are not for it.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(watch.pid, number)
        maps = pathlib.Path(f"/proc/{watch.pid}/maps")
        wait_until(lambda: "auth_munge" in maps.read_text(), 5.5, "a first look at Slurm, which libslurm signs")
        self.assertEqual(len(self.watches(job)), 1)
        status = pathlib.Path(f"/proc/{watch.pid}/status").read_text()
        print("dlrover-watch:", [" ".join(line.split()) for line in status.splitlines() if line.startswith(("VmRSS", "RssAnon", "Threads"))])
        self.assertEqual((srun.wait(30), (self.cluster.work / "ordinary").read_text()), (0, ""))
        self.expect_no_watch(job)

    def test_a_step_of_one_node_and_one_without_the_option_have_none(self) -> None:
        for label, options in (("single", ("--dlrover-elastic", "-N1")), ("plain", ("-N2",))):
            with self.subTest(label):
                srun, job = self.start_srun(label, "sh", "-c", "echo runs; sleep 2", options=options)
                wait_until(lambda: "runs" in (self.cluster.work / label).read_text(), 20, "a task that runs: srun has started by then what it starts")
                self.assertEqual(self.watches(job), [])
                self.assertEqual(srun.wait(30), 0)

    def test_it_ends_when_srun_is_killed(self) -> None:
        _, job = self.start_srun("killed", "sleep", "600")
        watch = self.only_watch(job)
        os.kill(self.srun_of(watch), signal.SIGKILL)
        self.expect_no_watch(job)
        self.cluster.run("scancel", str(job))

    def test_it_ends_when_the_job_is_cancelled(self) -> None:
        srun, job = self.start_srun("cancelled", "sleep", "600")
        self.only_watch(job)
        self.cluster.run("scancel", str(job), check=True)
        self.assertNotEqual(srun.wait(30), 0)
        self.expect_no_watch(job)

    def test_zz_a_batch_job_ends_after_a_lost_node(self) -> None:
        run = Run(self.cluster, "batch", spares=1, srun=("--dlrover-redundancy=partner:1",), size=128, steps=2000, save_every=5, step_us=4000)
        code = run.folder / "code"
        self.addCleanup(lambda: print(run.output()))
        run.submit()
        wait_until(run.all_stepping, 30, "all ranks stepping", 0.002)
        job, generation = run.job_id(), run.generation()
        self.only_watch(job)
        wait_until(lambda: run.common_save() > 60, 60, "saves that go on", 0.001)
        # Slurm does not give up the batch host, and the spare's loss would change nothing.
        batch_host = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%B", user="root").stdout.strip()
        with_ranks = {self.cluster.namespaces()[page.find_process().namespace] for page in run.pages}
        self.cluster.control("kill-node", max(with_ranks - {batch_host}))
        try:
            wait_until(lambda: run.stepping_in() > generation, 30, "all ranks stepping again", 0.002)
        finally:
            print("\n".join(f"{event['time_us'] / 1e6:.3f} {event['node']} {event['text']}" for event in self.cluster.events(job)[-30:]))
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
        done = time.monotonic()
        wait_until(lambda: code.exists() and code.read_text(), 30, "srun's end")
        print(f"srun in a batch job ended {time.monotonic() - done:.1f} s after the last rank was done, with {code.read_text().strip()}")
        self.assertEqual(code.read_text(), "0\n")
        self.assertEqual(run.violations(), "")
        state = wait_until(lambda: (lambda line: line if "JobState=COMPLETED" in line else "")(
            self.cluster.run("scontrol", "-o", "show", "job", str(job), user="root").stdout), 20, "the job's end")
        self.assertIn("ExitCode=0:0", state)
        self.assertEqual(self.watches(job), [])


if __name__ == "__main__":
    unittest.main()
