# SPDX-License-Identifier: Apache-2.0
"""A sample of the random faults; the whole campaign is tests/chaos and runs nightly."""

import pathlib
import subprocess
import sys
import unittest

import chaos

CHAOS = pathlib.Path(__file__).resolve().parents[1] / "chaos"


class Chaos(unittest.TestCase):
    def test_schedules_are_the_seeds_and_bearable(self) -> None:
        drawn, least, splits = set(), set(), 0
        for seed in range(1, 3001):
            schedule = chaos.draw(seed)
            self.assertEqual(schedule, chaos.draw(seed))
            lost = sum(fault.nodes for fault in schedule.faults)
            self.assertLessEqual(schedule.workers + schedule.spares + max(0, lost - schedule.spares), chaos.CLUSTER_NODES, schedule)
            self.assertTrue(schedule.faults)
            self.assertLess(schedule.copies, schedule.workers)
            drawn.add(schedule.redundancy)
            least.add(schedule.workers - schedule.least)
            self.assertGreater(schedule.least, schedule.copies - (not schedule.redundancy.startswith("partner")), schedule)
            splits += sum(fault.kind == chaos.SPLIT for fault in schedule.faults)
        self.assertEqual(drawn, {"partner:1", "partner:2", "rs:2+1", "rs:2+2", "rs:3+1"})
        self.assertEqual(least, {0, 1, 2})
        self.assertGreater(splits, 100)

    def test_sample(self) -> None:
        """A spare that is the batch host, and a companion job; a worker and the leader's daemon; a batch host that comes back after the group's end, and one
        that hung; a spare that is lost, and slurmctld away."""
        for seed in ("4", "9", "14", "16", "3"):
            done = subprocess.run([sys.executable, str(CHAOS), "--seed", seed], capture_output=True, text=True, timeout=600, check=False)
            print(done.stdout)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
