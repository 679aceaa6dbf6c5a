# SPDX-License-Identifier: Apache-2.0
"""examples/heat over MPI: it goes on from memory after the death of a rank and of a node, and the field is the undisturbed one."""

import unittest

from cluster import Cluster, wait_until
from heat import Run, program, reference
from pmix_case import MISSING as MISSING_PMIX, MPI_SETTINGS

SIZE, STEPS, NODES = 256, 1500, 4
MISSING = [*MISSING_PMIX, *([] if program("heat-mpi").exists() else ["a build with the MPI example"])]


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixHeat(unittest.TestCase):
    def start(self, cluster: Cluster, label: str, spares: int = 0) -> Run:
        """With checkpoints that are safe."""
        nodes = cluster.nodes[:NODES + spares]
        run = Run(cluster, label, spares=spares, srun=("--dlrover-pmix=yes", "--dlrover-redundancy=partner:1", "--overcommit", "--mem=400", "-w", ",".join(nodes)),
                  nodes=len(nodes), size=SIZE, steps=STEPS, save_every=5, step_us=4000)
        run.command = ["env", *MPI_SETTINGS, str(program("heat-mpi")), *run.command[1:]]
        self.addCleanup(lambda: run.running() and run.process.terminate())
        self.assertEqual(run.ranks, 2 * NODES)
        run.start()
        run.wait_for_steps()
        wait_until(lambda: run.running() and run.safe_step(cluster.nodes[0]) > 20, 30, "safe steps", 0.1)
        return run

    def expect_restart_from_memory(self, run: Run, generation: int, safe: int) -> None:
        run.wait_for_steps(after=generation)
        self.assertTrue(run.running(), run.output())
        restored = {page.restored_step for page in run.pages}
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), safe)
        print(f"{run.label}: all ranks stepping again from step {min(restored)}; step {safe} was safe")

    def expect_undisturbed_end(self, run: Run) -> None:
        self.assertEqual(run.finish(300), 0, run.output())
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(run.cluster, SIZE, STEPS), "the field differs from the undisturbed one")
        self.assertNotIn("storage", run.time_line())

    def test_ranks_and_nodes_that_die(self) -> None:
        with Cluster("pmixheat", nodes=NODES + 1) as cluster:
            names = cluster.nodes
            run = self.start(cluster, "rank")
            generation, safe = run.generation(), run.safe_step(names[0])
            self.assertIsNotNone(run.pages[3].kill_now())
            self.expect_restart_from_memory(run, generation, safe)
            self.expect_undisturbed_end(run)

            run = self.start(cluster, "node", spares=1)
            generation, safe = run.generation(), run.safe_step(names[0])
            cluster.lose(next(node for node in reversed(run.nodes_with_ranks(names[0])) if node not in names[:2]))  # not the batch host
            self.expect_restart_from_memory(run, generation, safe)
            self.expect_undisturbed_end(run)
            self.assertIn("fetched from", run.time_line())


if __name__ == "__main__":
    unittest.main()
