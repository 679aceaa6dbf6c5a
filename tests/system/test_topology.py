# SPDX-License-Identifier: Apache-2.0
"""Slurm's topology: the copies of a node's checkpoints are kept on nodes of other switches, so that a whole switch may fail."""

import time
import unittest

from cluster import Cluster, wait_until
from heat import Run, reference, start_with_copies

SIZE, STEPS = 256, 3000
SWITCH = {"n1": "leafA", "n2": "leafA", "n3": "leafB", "n4": "leafB", "n5": "leafC", "n6": "leafC"}


class Topology(unittest.TestCase):
    def test_a_switch_fails_with_all_its_nodes(self) -> None:
        arguments = [f"--switch={name}={','.join(node for node in SWITCH if SWITCH[node] == name)}" for name in dict.fromkeys(SWITCH.values())]
        cluster = self.enterContext(Cluster("topology", nodes=len(SWITCH), arguments=tuple(arguments)))
        run = start_with_copies(cluster, "switch", nodes=6, spares=2, ranks_per_node=1, size=SIZE, steps=STEPS)
        try:
            self.expect_survival(cluster, run)
        finally:
            print(run.output(), run.time_line(), sep="\n")

    def expect_apart(self, run: Run, *nodes: str) -> None:
        """No node's copies are on its own switch."""
        for node in nodes:
            copies = run.status(node)["copies"]
            self.assertEqual(copies["switches"], [SWITCH[partner] for partner in copies["partners"]])
            self.assertEqual(len(copies["switches"]), 1)
            self.assertNotEqual(copies["switches"], [SWITCH[node]], f"{node} and {copies['partners']} hang on one switch")
            self.assertEqual(copies["same_switch"], 0)

    def expect_survival(self, cluster: Cluster, run: Run) -> None:
        self.expect_apart(run, "n1", "n2", "n3", "n4")
        safe, generation = run.safe_step("n1"), run.generation()
        began = cluster.lose("n3", "n4")
        run.wait_for_steps(after=generation)
        self.assertTrue(run.running(), run.output())
        restored = {page.restored_step for page in run.pages}
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), safe)
        print(f"leafB with n3 and n4 lost: all ranks stepping again after {time.time() - began:.2f} s, from step {min(restored)}; step {safe} was safe")
        wait_until(lambda: run.safe_step("n1") > max(restored), 30, "safe steps of the new world", 0.02)
        self.expect_apart(run, "n1", "n2", "n5", "n6")
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
        self.assertEqual(run.violations(), "")
        self.assertNotIn("storage", run.time_line())
        self.assertEqual(run.out.read_bytes(), reference(cluster, SIZE, STEPS), "the field differs from the undisturbed one")


if __name__ == "__main__":
    unittest.main()
