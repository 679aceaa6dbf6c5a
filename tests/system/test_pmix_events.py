# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a PMIx program hear of their group: ranks and nodes that are lost, why generations end, checkpoints that are safe and on storage."""

import re
import unittest

from cluster import NIGHTLY, prefix, wait_until
from events_case import NODES, RANKS_HERE, SIZE, EventsCase, ask
from pmix_case import MISSING, build


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixEvents(EventsCase):
    options = ["--dlrover-pmix=yes"]

    def setUp(self) -> None:
        self.create("pmixevents")
        lib = prefix() / "lib"
        self.command = [build(self.cluster, "pmix_events", f"-I{prefix() / 'include'}", f"-L{lib}", "-ldlrover", f"-Wl,-rpath,{lib}")]

    def test_every_rank_hears_what_happens_to_the_group(self) -> None:
        last, out = self.run_story()
        asked = dict(line.split()[1:] for line in out.splitlines() if line.startswith("asked "))
        newest = re.findall(r"^rank \d+ of (\S+) from step \d+$", out, re.M)[-1]
        nodes = asked.pop("dlrover.nodes").split(",")
        self.assertTrue(len(set(nodes)) == NODES and set(nodes) < set(self.cluster.nodes), nodes)
        self.assertEqual([asked.pop(f"dlrover.{name}") for name in ("generation", "ranks", "world.size")], [newest, ",".join(NODES * [str(RANKS_HERE)]), str(SIZE)])
        self.assertEqual(set(asked), {"dlrover.step.safe", "dlrover.step.durable", "dlrover.goodput"})
        safe, durable, goodput = (float(asked[f"dlrover.{name}"]) for name in ("step.safe", "step.durable", "goodput"))
        self.assertTrue(0 < safe <= last and 0 < durable <= last and 0 < goodput < 1, asked)

    def test_a_rank_asks_for_a_checkpoint_and_for_another_beginning(self) -> None:
        everybody = set(range(SIZE))
        ranks = self.start()
        stored = min(int(line.values["dlrover.step"]) for line in ranks.wait_for("durable", everybody))
        first = ranks.newest_generation()
        self.assertEqual(ask(ranks.process, ranks.files, "checkpoint tonight"), "SUCCESS")
        self.assertEqual(len(ranks.wait_for("checkpoint", everybody, first)), SIZE, "each once")
        self.assertEqual(ask(ranks.process, ranks.files, "restart never"), "BAD-PARAM")
        self.assertEqual(ask(ranks.process, ranks.files, f"restart {stored + 1000000}"), "NOT-SUPPORTED")
        self.assertEqual(ranks.newest_generation(), first)

        wait_until(lambda: max(int(line.values["dlrover.step"]) for line in ranks.heard("safe")) > stored + 20, 60, "steps after the one to go back to")
        self.assertEqual(ask(ranks.process, ranks.files, f"restart {stored}"), "SUCCESS")
        second = ranks.wait_for_next_generation(first)
        self.assertEqual({line.generation for line in ranks.heard("checkpoint")}, {first})
        _, out = ranks.let_end()
        begun = sorted((generation, int(rank), int(step)) for rank, generation, step in re.findall(r"^rank (\d+) of (\S+) from step (\d+)$", out, re.M))
        self.assertEqual(begun, sorted((generation, rank, step) for generation, step in ((first, 0), (second, stored)) for rank in everybody))

    @unittest.skipUnless(NIGHTLY, "only nightly: a minute of a job's time has to pass")
    def test_every_rank_hears_that_the_jobs_time_is_nearly_over(self) -> None:
        self.options = [*self.options, "--time=3"]
        heard = self.start().wait_for("draining", set(range(SIZE)), seconds=120)
        self.assertEqual(len(heard), SIZE, "each once")
        self.assertTrue(all(60 < int(line.values["dlrover.seconds"]) <= 120 for line in heard), [line.values for line in heard])


if __name__ == "__main__":
    unittest.main()
