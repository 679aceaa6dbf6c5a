# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a Python program hear of their group by dlrover_slurm.on_membership(), without PMIx."""

import unittest

from cluster import TOP, prefix
from events_case import SIZE, EventsCase


class Membership(EventsCase):
    def setUp(self) -> None:
        self.create("membership")
        path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        self.command = ["/usr/bin/python3", "-B", str(TOP / "tests" / "system" / "membership_program.py"), path]

    def test_every_rank_hears_what_happens_to_the_group(self) -> None:
        self.run_story()

    def test_every_rank_hears_that_the_jobs_time_is_nearly_over(self) -> None:
        """Two minutes before: also those that subscribe later."""
        self.options = ["--time=2"]
        ranks = self.start()
        heard = ranks.wait_for("draining", set(range(SIZE)))
        self.assertEqual(len(heard), SIZE, "each once")
        lines = [event["text"] for event in self.cluster.events(ranks.job) if "its time is over then" in event["text"]]
        self.assertEqual(len(lines), 1, lines)
        ranks.let_end()


if __name__ == "__main__":
    unittest.main()
