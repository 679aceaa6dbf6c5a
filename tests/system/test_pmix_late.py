# SPDX-License-Identifier: Apache-2.0
"""A rank for which others of its own node wait in PMIx: libpmix tells them, and its server, nothing."""

import pathlib
import tempfile
import unittest

from cluster import Cluster
from pmix_case import MISSING, build, expect_nothing_left, folder

SIZE = 3


class LateCase(unittest.TestCase):
    BUSY_LIMIT = "30min"

    @classmethod
    def setUpClass(cls) -> None:
        settings = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()), "dlrover.toml")
        settings.write_text(f'[pmix]\nwait_limit = "5s"\nbusy_limit = "{cls.BUSY_LIMIT}"\n[timing]\nstop_grace = "1s"\n')
        cls.cluster = cls.enterClassContext(Cluster("late", nodes=1, arguments=("--dlrover-conf", str(settings))))
        cls.program = build(cls.cluster, "pmix_late")

    def run_late(self, how: str) -> "list[dict]":
        """What the time line says; in the end all ranks have met."""
        done = self.cluster.run("timeout", "100", "srun", "--job-name", how, "-N1", f"-n{SIZE}", "--overcommit", "--dlrover-elastic", "--dlrover-pmix=yes",
                                self.program, how, str(folder(self.cluster, how)))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"rank {rank}: all are there" for rank in range(SIZE)])
        expect_nothing_left(self.cluster)
        return self.cluster.events(self.cluster.job_id(how))

    def expect_found(self, how: str, rank: int, waited: str, failed: str) -> None:
        events = self.run_late(how)
        texts = [event["text"] for event in events]
        for line in (f"On n1, {waited} (pmix.wait_limit).", f"Rank {rank} on n1{failed}."):
            self.assertIn(line, texts)  # again where the server had no processor for a while
        self.assertEqual([event["rank"] for event in events if event["kind"] == "worker-failed"], [rank])
        self.assertEqual(sum(event["kind"] == "world-published" for event in events), 2)


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class Late(LateCase):
    def test_one_that_hangs_has_failed(self) -> None:
        self.expect_found("hang", 1, "ranks 0, 2 waited 5 s in PMIx for a fence, to which rank 1 of this node did not come",
                          ", which does nothing, counts as failed: ranks 0, 2 of this node wait for it in PMIx")

    def test_one_that_does_not_come_to_a_group(self) -> None:
        self.expect_found("group", 1, "ranks 0, 2 waited 5 s in PMIx for a process group, to which rank 1 of this node did not come",
                          ", which does nothing, counts as failed: ranks 0, 2 of this node wait for it in PMIx")

    def test_those_that_wait_for_each_other_begin_again(self) -> None:
        self.expect_found("mismatch", 0, "ranks 0, 1, 2 waited 5 s in PMIx for a fence, which does not come about",
                          " counts as failed: ranks of this node wait in PMIx for each other, and nothing of it comes about")

    def test_one_that_computes_is_waited_for(self) -> None:
        self.expect_waited_for("compute")

    def test_one_that_reads_is_waited_for(self) -> None:
        self.expect_waited_for("read")

    def expect_waited_for(self, how: str) -> None:
        events = self.run_late(how)
        self.assertEqual([event["text"] for event in events if event["kind"] == "worker-failed"], [], "\n".join(str(event["time_us"]) + " " + event["text"] for event in events))
        self.assertTrue(any("rank 1 of this node did not come" in event["text"] for event in events))


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class Busy(LateCase):
    BUSY_LIMIT = "8s"

    def test_one_that_computes_for_ever_has_failed(self) -> None:
        self.expect_found("spin", 1, "ranks 0, 2 waited 5 s in PMIx for a fence, to which rank 1 of this node did not come",
                          " counts as failed, whatever it does: ranks 0, 2 of this node waited 8 s in PMIx for it (pmix.busy_limit)")


if __name__ == "__main__":
    unittest.main()
