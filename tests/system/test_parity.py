# SPDX-License-Identifier: Apache-2.0
"""Parities in place of copies: the objects of nodes that are lost, several at once, are made again in the memory of those that are left."""

import os
import signal
import time
import unittest

import test_resize
from cluster import Cluster, wait_until
from heat import Run, reference, start_with_copies

STEPS = 1200


class Parity(unittest.TestCase):
    CLUSTER_NODES = 8

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("parity", nodes=cls.CLUSTER_NODES, arguments=("--slurmdbd", "--conf", "CPUs=32")))

    def start(self, label: str, redundancy: str, steps: int = STEPS, **options: object) -> Run:
        run = start_with_copies(self.cluster, label, redundancy=redundancy, steps=steps, **options)
        self.addCleanup(self.tidy, run)
        return run

    def tidy(self, run: Run) -> None:
        print(run.output(), run.time_line(), sep="\n")
        if run.running():
            self.cluster.run("scancel", "-n", run.label, user="root")

    def expect_result(self, run: Run, generation: int, restored_from: int, steps: int = STEPS) -> None:
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, f"{run.label}: all ranks done")
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.generation(), generation)
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, 256, steps), "the field differs from the undisturbed one")
        story = run.time_line()
        self.assertNotIn("storage", story)
        self.assertGreaterEqual(min(page.restored_step for page in run.pages), restored_from)

    def test_two_nodes_at_once(self) -> None:
        """Both of one coding group; each group keeps the other's parities."""
        self.lose_two("two", nodes=8, group_size=3)

    def lose_two(self, label: str, nodes: int, group_size: int, **options: object) -> None:
        steps = 3 * STEPS  # looking at every node takes a while
        run = self.start(label, "rs:4+2", steps, nodes=nodes, spares=2, ranks_per_node=1, **options)
        safe, generation = run.safe_step("n1"), run.generation()
        copies = run.status(run.nodes_with_ranks("n1")[-1])["copies"]
        self.assertEqual(len(copies["partners"]), 2)
        self.assertGreaterEqual(run.status(copies["partners"][0])["copies"]["parities"], 1)
        group = [n for n in run.nodes_with_ranks("n1") if run.status(n)["copies"]["partners"] == copies["partners"]]
        self.assertEqual(len(group), group_size)
        victims = [n for n in group if n not in ("n1", "n2")][:2]
        began = self.cluster.lose(*victims)
        run.wait_for_steps(after=generation)
        self.assertTrue(run.running(), run.output())
        restored = {page.restored_step for page in run.pages}
        self.assertEqual(len(restored), 1)
        self.assertGreaterEqual(min(restored), safe)
        print(f"{victims} of the group {group} lost: all ranks stepping again after {time.time() - began:.2f} s, from step {min(restored)}; step {safe} was safe")
        generation = run.generation()
        # Protected anew.
        wait_until(lambda: run.safe_step("n1") > min(restored) + 50, 60, "safe steps in the new world", 0.05)
        self.expect_result(run, generation, safe, steps)

    def test_movers_that_are_killed(self) -> None:
        """What a mover was adding up then is nothing; steps become safe all the same, and nobody notices."""
        steps = 6000
        run = self.start("killed", "rs:2+1", steps, nodes=3, spares=0)
        generation = run.generation()
        for _ in range(3):
            movers = [p for _, p in self.cluster.processes() if p.state != "Z" and p.command and p.command[0].endswith("/dlrover-mover")]
            safe = run.safe_step("n1")
            for mover in movers:
                os.kill(mover.pid, signal.SIGKILL)
            wait_until(lambda: run.safe_step("n1") > safe, 40, f"a step after {safe} is safe", 0.05)
        self.expect_result(run, generation, -1, steps)


class SmallParity(Parity):
    """The spares keep the parities of one coding group of four."""
    CLUSTER_NODES = 6
    test_two_nodes_at_once = test_movers_that_are_killed = None

    def test_two_of_a_group_of_four(self) -> None:
        self.lose_two("four", nodes=6, group_size=4, spares_late=False)


class OtherSize(test_resize.Resize):
    """Fewer nodes go on from what is made again of parities."""
    test_three_of_four_nodes_go_on = test_two_of_four_nodes_go_on = None

    def test_three_of_four_nodes_go_on_from_parities(self) -> None:
        self.start("one", "rs:2+1")
        self.lose(1)
        self.expect_result()

    def test_two_of_four_nodes_go_on_from_parities(self) -> None:
        self.start("both", "rs:2+2")
        self.lose(2)
        self.expect_result()


if __name__ == "__main__":
    unittest.main()
