# SPDX-License-Identifier: Apache-2.0
"""A node dies: a spare takes its ranks, their state comes from a partner's memory, and the result is the undisturbed one."""

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

    def wait_for_safe(self, run: Run) -> int:
        """A step that is safe: slots are freed, so saves go on far beyond their number."""
        first = wait_until(lambda: max(0, run.common_save()), 30, "a save of all ranks", 0.001)
        return wait_until(lambda: run.common_save() if run.common_save() > first + 60 else 0, 60, "saves that go on", 0.001)

    def test_a_spare_goes_on_from_a_partners_memory(self) -> None:
        with Cluster("loss", nodes=4) as cluster:
            run = self.start(cluster, "spare", 1, "--dlrover-redundancy=partner:1")
            safe = self.wait_for_safe(run)
            generation, victim = run.generation(), cluster.nodes[1]
            began = time.time()
            cluster.control("kill-node", victim)
            run.wait_for_steps(after=generation)
            job = cluster.job_id("spare")
            for event in cluster.events(job)[-60:]:
                print(event["time_us"] % 1000000000 / 1e6, event["node"], event.get("train_step"), event["text"][:150])
            self.assertTrue(run.running(), run.output())
            took = time.time() - began
            restored = {page.restored_step for page in run.pages}
            self.assertEqual(len(restored), 1)
            self.assertGreaterEqual(restored.pop(), safe - 60)
            print(f"all ranks stepping again after {took:.2f} s, from step {run.pages[0].restored_step}; {safe} was saved")
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
