# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a Python program hear of their group by dlrover_slurm.on_membership(), without PMIx."""

import unittest

from cluster import TOP, prefix
from events_case import EventsCase


class Membership(EventsCase):
    def setUp(self) -> None:
        self.create("membership")
        path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        self.command = ["/usr/bin/python3", "-B", str(TOP / "tests" / "system" / "membership_program.py"), path]

    def test_every_rank_hears_what_happens_to_the_group(self) -> None:
        self.run_story()


if __name__ == "__main__":
    unittest.main()
