# SPDX-License-Identifier: Apache-2.0
"""How a job ends: hopeless programs, exit codes, scancel, time limit, Ctrl-C; nothing stays behind."""

import os
import pathlib
import signal
import tempfile
import textwrap
import time
import unittest

from cluster import NIGHTLY, PATIENCE, Cluster, stopped, wait_until
from heat import Run, program

#: How long the memory of a group that failed after a complete checkpoint is kept, by its settings.
KEPT_SECONDS = 3
#: How long before the job's time ends storage gets the newest checkpoint for the first time, besides 10 s.
END_LEAD = 20
ELASTIC = ("srun", "-N2", "--ntasks-per-node=1", "--dlrover-elastic")


class Endings(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        settings = pathlib.Path(folder, "dlrover.toml")
        settings.write_text(f'[memory]\ndead_group_ttl = "{KEPT_SECONDS}s"\n[storage]\nend_lead = "{END_LEAD}s"\n')
        cls.cluster = cls.enterClassContext(Cluster("endings", nodes=2, arguments=("--dlrover-conf", str(settings))))
        cls.descriptors = cls.open_files()

    @classmethod
    def open_files(cls) -> "dict[str, int]":
        """Descriptors of each keeper and daemon."""
        hosts = cls.cluster.describe()["hosts"]
        return {f"{host['host']} {name}": len(os.listdir(f"/proc/{host[name]}/fd")) for host in hosts for name in ("keeper", "dlroverd") if host[name]}

    def expect_clean(self) -> None:
        self.cluster.expect_clean(10)
        wait_until(lambda: all(count <= self.descriptors[who] for who, count in self.open_files().items()), 20 + KEPT_SECONDS,
                   f"as many open descriptors as before: {self.descriptors}, not {self.open_files()}", 0.2)

    def script(self, name: str, text: str) -> str:
        path = self.cluster.work / name
        path.write_text(textwrap.dedent(text))
        path.chmod(0o755)
        return str(path)

    def start_heat(self, label: str, *srun: str) -> Run:
        run = Run(self.cluster, label, srun=srun, size=64, steps=1_000_000, save_every=10, step_us=1000).start()
        self.addCleanup(lambda: run.running() and run.process.kill())
        run.wait_for_steps()
        self.assertTrue(run.running(), run.output())
        return run

    def test_hopeless_program(self) -> None:
        starts = self.cluster.work / "starts"
        starts.touch()
        starts.chmod(0o666)
        path = self.script("hopeless.py", f"""\
            #!/usr/bin/python3
            import os
            with open("{starts}", "a") as file:
                file.write(os.environ["RANK"] + "\\n")
            raise ValueError("there is no such data set")
            """)
        begun = time.monotonic()
        done = self.cluster.run(*ELASTIC, path, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertLess(time.monotonic() - begun, 30 * PATIENCE)
        self.assertIn("Traceback", done.stderr)
        self.assertIn("ValueError: there is no such data set", done.stderr)
        counts = [starts.read_text().split().count(rank) for rank in ("0", "1")]
        self.assertLessEqual(max(counts), 3, "at most two restarts")
        sentences = [line for line in done.stderr.splitlines() if line.startswith("dlrover") and "restarting it is no use" in line]
        self.assertEqual(len(sentences), 1, done.stderr)
        self.expect_clean()

    def test_exit_codes(self) -> None:
        for command, code in (("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 128 + 11), ("test $RANK = 0 || exit 3", 3)):
            with self.subTest(command):
                done = self.cluster.run(*ELASTIC, "sh", "-c", command, timeout=60)
                self.assertEqual(done.returncode, code, done.stderr)
        missing = self.cluster.run(*ELASTIC, "/nonexistent/program", timeout=60)
        self.assertEqual(missing.returncode, 127, missing.stderr)  # as a shell says it
        self.assertIn("/nonexistent/program", missing.stderr)
        self.expect_clean()

    def test_step_without_checkpoints_is_quiet(self) -> None:
        done = self.cluster.run(*ELASTIC, "hostname", timeout=60)
        self.assertEqual((done.returncode, sorted(done.stdout.split()), done.stderr), (0, ["n1", "n2"], ""))
        self.expect_clean()

    def test_scancel(self) -> None:
        run = self.start_heat("cancelled")
        self.cluster.run("scancel", str(self.cluster.job_id("cancelled")), check=True)
        self.assertNotEqual(run.finish(30), 0)
        self.expect_clean()

    def test_scancel_of_a_batch_job(self) -> None:
        path = self.script("batch.sh", f"""\
            #!/bin/bash
            #SBATCH -N2 --ntasks-per-node=2 --job-name=batch
            #SBATCH --dlrover-elastic
            srun {program()} --size 64 --steps 1000000 --step-us 1000
            """)
        self.cluster.run("sbatch", path, check=True)
        wait_until(lambda: sum("heat" in p.command[0] for _, p in self.cluster.processes() if p.command) >= 4, 30, "four workers of the batch job", 0.1)
        self.cluster.run("scancel", str(self.cluster.job_id("batch")), check=True)
        self.expect_clean()

    def test_ctrl_c(self) -> None:
        run = self.start_heat("interrupted")
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: "to abort" in run.output(), 20, "srun's word that a second Ctrl-C within one second ends the job")
        # Within one second of the last one: srun may not have had the processor.
        wait_until(lambda: run.process.poll() is not None or run.process.send_signal(signal.SIGINT), 20, "srun's end", 0.3)
        self.assertNotEqual(run.finish(30), 0)
        self.expect_clean()

    def end_of(self, run: Run) -> float:
        """When the job's time is over, as Slurm says."""
        job = self.cluster.run("scontrol", "-o", "show", "job", str(run.job_id()), user="root").stdout
        return time.mktime(time.strptime(next(word for word in job.split() if word.startswith("EndTime="))[8:], "%Y-%m-%dT%H:%M:%S"))

    def test_time_limit(self) -> None:
        """What is newest goes to storage before, twice."""
        folder = self.cluster.work / "limited-stored"
        folder.mkdir()
        folder.chmod(0o777)
        run = self.start_heat("limited", "--time=1", f"--dlrover-ckpt-dir={folder}", "--dlrover-ckpt-every=off")
        def orders() -> "list[dict]":
            return [event for event in run.notes() if "goes to storage now" in event["text"]]
        wait_until(lambda: len(orders()) == 2, 70, "two orders", 0.5)
        first, second = orders()
        end = self.end_of(run)
        before = [end - order["time_us"] / 1e6 for order in (first, second)]
        print(f"ordered {before[0]:.1f} and {before[1]:.1f} s before the job's end")
        self.assertGreater(before[0], END_LEAD)
        self.assertLess(before[0], END_LEAD + 15)
        self.assertGreater(before[1], 8)
        self.assertLess(before[1], 15)
        self.assertGreater(second["train_step"], first["train_step"])
        wait_until(lambda: run.status("n1")["storage"]["stored_step"] >= second["train_step"], 8, "it is on storage", 0.1)
        self.assertNotEqual(run.finish(150), 0)
        self.expect_clean()

    @unittest.skipUnless(NIGHTLY, "only nightly: two minutes of a job's time have to pass")
    def test_time_limit_where_storage_is_slow(self) -> None:
        """The longer an order has taken, the earlier the last two come; what they ordered is there before the time is over."""
        folder = self.cluster.work / "slow-stored"
        folder.mkdir()
        folder.chmod(0o777)
        run = self.start_heat("slow", "--time=2", f"--dlrover-ckpt-dir={folder}", "--dlrover-ckpt-every=15s")
        writers = [p.pid for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-writer")]
        self.assertEqual(len(writers), 2)
        end, heard = self.end_of(run), {}
        while time.time() < end - 1 and run.running():
            with stopped(writers):  # as if each call took long
                time.sleep(8)
            time.sleep(0.7)
            heard.update({(event["time_us"], event["text"]): event for event in self.cluster.events(run.job_id()) if "storage" in event["text"]})
        orders = [event for _, event in sorted(heard.items()) if "goes to storage now" in event["text"]]
        stored = [event for _, event in sorted(heard.items()) if event["kind"] == "checkpoint-stored"]
        self.assertEqual(len(orders), 2, run.time_line())
        took = max(event["duration_us"] for event in stored if event["time_us"] < orders[0]["time_us"]) / 1e6
        before = [end - order["time_us"] / 1e6 for order in orders]
        print(f"storage took up to {took:.1f} s; ordered {before[0]:.1f} and {before[1]:.1f} s before the job's end")
        self.assertGreater(took, 2)
        self.assertGreater(before[0], max(2 * took, 10) + max(2 * took, END_LEAD) - 0.1)
        self.assertGreater(before[1], max(2 * took, 10) - 0.1)
        self.assertGreaterEqual(max(event["train_step"] for event in stored), orders[1]["train_step"], "it was there before the end")
        self.assertNotEqual(run.finish(150), 0)
        self.expect_clean()


if __name__ == "__main__":
    unittest.main()
