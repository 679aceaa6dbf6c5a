# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a PMIx program hear of their group: ranks and nodes that are lost, why generations end, checkpoints that are safe and on storage."""

import unittest

from cluster import NIGHTLY, prefix
from events_case import SIZE, EventsCase
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
        asked = {name: float(value) for _, name, value in (line.split() for line in out.splitlines() if line.startswith("asked "))}
        self.assertEqual(set(asked), {"dlrover.step.safe", "dlrover.step.durable", "dlrover.goodput"})
        self.assertTrue(0 < asked["dlrover.step.safe"] <= last and 0 < asked["dlrover.step.durable"] <= last and 0 < asked["dlrover.goodput"] < 1, asked)

    @unittest.skipUnless(NIGHTLY, "only nightly: a minute of a job's time has to pass")
    def test_every_rank_hears_that_the_jobs_time_is_nearly_over(self) -> None:
        self.options = [*self.options, "--time=3"]
        heard = self.start().wait_for("draining", set(range(SIZE)), seconds=120)
        self.assertEqual(len(heard), SIZE, "each once")
        self.assertTrue(all(60 < int(line.values["dlrover.seconds"]) <= 120 for line in heard), [line.values for line in heard])


if __name__ == "__main__":
    unittest.main()
