# SPDX-License-Identifier: Apache-2.0
"""A node dies: a spare takes its ranks, their state comes from a partner's memory, and the result is the undisturbed one."""

import json
import time
import unittest

from cluster import Cluster, wait_until
from heat import Run, reference

SIZE, STEPS = 256, 3000


class NodeLoss(unittest.TestCase):
    def start(self, cluster: Cluster, label: str, spares: int, *srun: str) -> Run:
        run = Run(cluster, label, spares=spares, srun=srun, size=SIZE, steps=STEPS, save_every=5, step_us=4000, ballast_mb=8).start()
        self.addCleanup(lambda: run.running() and run.process.terminate())
        run.wait_for_steps()
        self.assertTrue(run.running(), run.output())
        return run

    def status(self, cluster: Cluster, job: int) -> dict:
        """As the batch host says, which stays."""
        done = cluster.run("dlrover", "status", str(job), "--json", user="root", node=cluster.nodes[0], check=True)
        return json.loads(done.stdout)["groups"][0]

    def safe_step(self, cluster: Cluster, job: int) -> int:
        return self.status(cluster, job)["copies"]["safe_step"]

    def test_a_spare_goes_on_from_a_partners_memory(self) -> None:
        with Cluster("loss", nodes=4) as cluster:
            run = self.start(cluster, "spare", 1, "--dlrover-redundancy=partner:1")
            job = cluster.job_id("spare")
            # Slots are freed, so saves go on far beyond their number.
            wait_until(lambda: self.safe_step(cluster, job) > 100, 30, "safe steps that go on", 0.1)
            generation, safe = run.generation(), self.safe_step(cluster, job)
            # Any node can be the spare: it is the last one to be ready.
            victim = next(rank["node"] for rank in self.status(cluster, job)["ranks"] if rank["node"] != cluster.nodes[0])
            began = time.time()
            cluster.control("kill-node", victim)
            run.wait_for_steps(after=generation)
            took = time.time() - began
            self.assertTrue(run.running(), run.output())
            restored = {page.restored_step for page in run.pages}
            self.assertEqual(len(restored), 1)
            self.assertGreaterEqual(min(restored), safe)
            print(f"all ranks stepping again after {took:.2f} s, from step {min(restored)}; step {safe} was safe")
            wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
            done = time.monotonic()
            self.assertEqual(run.finish(30), 0, run.output())
            print(f"srun ended {time.monotonic() - done:.1f} s after the last rank was done")
            self.assertEqual(run.violations(), "")
            self.assertEqual(run.out.read_bytes(), reference(cluster, SIZE, STEPS), "the field differs from the undisturbed one")
            texts = [event["text"] for event in cluster.events(job)]
            self.assertTrue(any("fetched from" in text for text in texts), "\n".join(texts))
            self.assertFalse(any("storage" in text for text in texts), "\n".join(texts))


if __name__ == "__main__":
    unittest.main()
