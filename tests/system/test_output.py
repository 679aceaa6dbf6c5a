# SPDX-License-Identifier: Apache-2.0
"""A worker that writes 1 MiB/s is not slowed by an srun that is stopped, or that vanished with its host."""

import json
import os
import select
import signal
import unittest

from cluster import Cluster, Process, wait_until

SECONDS = 20
#: Writes 1 MiB/s for SECONDS and says how long the slowest write took.
WRITER = f"""
import json, os, sys, time
begun, slowest, block = time.monotonic(), 0.0, (b"x" * 1023 + b"\\n") * 64
for tick in range({SECONDS} * 16):
    before = time.monotonic()
    os.write(1, block)
    slowest = max(slowest, time.monotonic() - before)
    time.sleep(max(0.0, begun + (tick + 1) / 16 - time.monotonic()))
with open(sys.argv[1] + ".tmp", "w") as file:
    json.dump({{"slowest": slowest, "seconds": time.monotonic() - begun}}, file)
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
"""


class Output(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("output", nodes=3))
        (cls.cluster.work / "writer.py").write_text(WRITER)
        cls.cluster.work.chmod(0o777)

    def argv(self, label: str) -> "list[str]":
        return ["srun", "--job-name", label, "-w", "n1", "-n1", "--dlrover-elastic", "/usr/bin/python3", str(self.cluster.work / "writer.py"),
                str(self.cluster.work / label)]

    def wait_for_writer(self) -> None:
        wait_until(lambda: any(word.endswith("writer.py") for _, p in self.cluster.processes() if p.command[:1] == ["/usr/bin/python3"] for word in p.command),
                   20, "the writer", 0.05)

    def expect_not_slowed(self, label: str) -> None:
        result = self.cluster.work / label
        wait_until(result.exists, SECONDS + 15, "the writer's end", 0.1)
        measured = json.loads(result.read_text())
        # One that waited for srun would never end. An agent without a processor fills the pipe for a while.
        self.assertLess(measured["slowest"], 5, measured)
        self.assertLess(measured["seconds"], SECONDS + 5, measured)

    def sruns(self, label: str) -> "list[Process]":
        everything = [Process.read(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
        return [p for p in everything if p and p.command[:1] == ["srun"] and label in p.command]

    def test_stopped_srun(self) -> None:
        with open(self.cluster.work / "stopped.out", "wb") as out:
            process = self.cluster.start(*self.argv("stopped"), stdout=out)
        self.wait_for_writer()
        stopped = self.sruns("stopped")
        self.assertTrue(stopped)
        for srun in stopped:
            os.kill(srun.pid, signal.SIGSTOP)
        self.expect_not_slowed("stopped")
        for srun in stopped:
            os.kill(srun.pid, signal.SIGCONT)
        process.send_signal(signal.SIGCONT)  # minicluster exec stops when its command does, as a shell's job would
        self.assertEqual(process.wait(60), 0)
        self.cluster.expect_clean()

    def test_vanished_srun(self) -> None:
        process = self.cluster.start(*self.argv("vanished"), node="n3")
        self.wait_for_writer()
        wait_until(lambda: select.select([process.stdout], [], [], 0)[0], 20, "output at n3", 0.05)
        self.cluster.control("kill-node", "n3")
        self.expect_not_slowed("vanished")
        process.wait(30)
        self.cluster.run("scancel", str(self.cluster.job_id("vanished")))
        self.cluster.expect_clean(120)  # slurmstepd tries long to reach its srun


if __name__ == "__main__":
    unittest.main()
