# SPDX-License-Identifier: Apache-2.0
"""What a rank goes on from in memory is compared with its checksums by its node's agent while the program starts, so that it opens it at once."""

import json
import unittest

from cluster import Cluster, prefix, wait_until

PROGRAM = """
import os, signal, sys, time
import dlrover_slurm as dlrover
folder = sys.argv[1]
if dlrover.world().restart_count == 0:
    for step in (1, 2):
        dlrover.save(step, {"data": bytes(8 << 20)})
    os.kill(os.getpid(), signal.SIGKILL)
deadline = time.monotonic() + 20
while not os.path.exists(folder + "/go") and time.monotonic() < deadline:  # a program takes its time to start
    time.sleep(0.01)
assert dlrover.load().step == 2
"""


class Verified(unittest.TestCase):
    @staticmethod
    def verified(cluster: Cluster, job: int) -> int:
        """Objects, by agents."""
        done = cluster.run("dlrover", "status", str(job), "--json", user="root", node="n1", check=True)
        return (json.loads(done.stdout)["groups"][0]["verified"] or {"agent_objects": 0})["agent_objects"]

    def test_while_the_program_starts(self) -> None:
        """With a PMIx server, as is the default, a node's ranks get their world later than its daemon; the last of the processes before may have ended by then."""
        cluster = self.enterContext(Cluster("verified", nodes=1))
        for pmix in ("auto", "no"):
            with self.subTest(pmix=pmix):
                folder = cluster.work / pmix
                folder.mkdir()
                (folder / "train.py").write_text(PROGRAM)
                path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
                process = cluster.start("srun", "--job-name", pmix, "-N1", "-n1", "--mem=400", "--dlrover-elastic", f"--dlrover-pmix={pmix}",
                                        "/usr/bin/python3", "-B", str(folder / "train.py"), str(folder), env={"PYTHONPATH": path})
                self.addCleanup(lambda p=process: p.poll() is None and p.kill())
                job = cluster.job_id(pmix)
                wait_until(lambda j=job: sum("Worker started" in event["text"] for event in cluster.events(j)) == 2, 30, "the rank started again", 0.05)
                wait_until(lambda j=job: self.verified(cluster, j) == 1, 10, "its object verified", 0.05)
                (folder / "go").touch()
                self.assertEqual(process.wait(60), 0, process.communicate())
                restored = [event["text"] for event in cluster.events(job) if "State restored" in event["text"]]
                self.assertEqual(restored, ["State restored from the node's memory, verified while the program started."])


if __name__ == "__main__":
    unittest.main()
