# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a Python program hear of their group by dlrover_slurm.on_membership(), without PMIx."""

import os
import signal
import time
import unittest
import unittest.mock

from cluster import TOP, prefix, stopped
from events_case import SIZE, EventsCase


class Membership(EventsCase):
    def setUp(self) -> None:
        self.create("membership")
        path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        self.command = ["/usr/bin/python3", "-B", str(TOP / "tests" / "system" / "membership_program.py"), path]

    def test_every_rank_hears_what_happens_to_the_group(self) -> None:
        self.run_story()

    def test_the_end_is_said_once_where_one_ends_before_the_other(self) -> None:
        """The next generation waits for a node that is slow, while of two agents of a node one has stopped and the other has not."""
        self.enterContext(unittest.mock.patch.dict(os.environ, {"LINGER_S": "0.5"}))
        ranks = self.start()
        ranks.wait_for("safe", set(range(SIZE)))
        generation = ranks.newest_generation()
        victim = ranks.rank_apart(generation)
        node, others = ranks.place_of(victim, generation), set(range(SIZE)) - {victim}
        slow = next(place for place in map(lambda rank: ranks.place_of(rank, generation), others)
                    if place not in (node, self.cluster.nodes[0], ranks.leader()))
        pid = ranks.process_of(victim).pid
        with stopped([self.cluster.daemon_pid(slow)]):
            os.kill(pid, signal.SIGKILL)
            ranks.wait_for("generation", {rank for rank in others if ranks.place_of(rank, generation) == node}, generation)
            time.sleep(0.3)  # as long as it could be said again
        ranks.wait_for_next_generation(generation)
        told = ranks.heard("generation", generation)
        self.assertEqual({line.values["dlrover.reason"] for line in told}, {f"rank {victim} on {node} was killed by signal 9 (Killed)"})
        self.assertEqual(sorted(line.rank for line in told), sorted(others), "each once")
        ranks.let_end()

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
