# SPDX-License-Identifier: Apache-2.0
"""dlrover rollback: a person takes a running job back to an older step."""

import re
import unittest

from cluster import wait_until
from stored_walk import RANKS, StoredWalks


class Rollback(StoredWalks):
    LABEL = "rollback"

    def dlrover(self, *words: str, user: "str | None" = None):
        options = {"user": user} if user else {}
        return self.cluster.run("dlrover", *words, node=self.cluster.nodes[0], **options)

    def job(self) -> str:
        return self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split()[0]

    def test_a_running_job_goes_on_from_an_older_step(self) -> None:
        process = self.start("--dlrover-ckpt-every=10", steps=120, pause=0.15)
        wait_until(lambda: len(self.folder.steps()) >= 3, 60, "three checkpoints on storage")
        job, older = self.job(), self.folder.steps()[0]
        restarts = self.status()[0]["restarts_left"]
        begun = self.status()[0]["generation"]

        # What can not be is refused before anything stops.
        absent = self.dlrover("rollback", job, "--step", str(older + 1), "--yes")
        self.assertEqual(absent.returncode, 1, absent.stdout)
        self.assertIn(f"step {older + 1} is not complete in memory, and not whole on storage", absent.stderr)
        self.assertIn(str(older), absent.stderr.split("holds steps")[1])
        self.assertIn("no terminal to ask on", self.dlrover("rollback", job, "--step", str(older)).stderr)
        self.assertEqual(self.dlrover("rollback", "99999", "--step", "1", "--yes").returncode, 3)
        other = self.dlrover("rollback", job, "--step", str(older), "--yes", user="nobody")
        self.assertEqual(other.returncode, 3, other.stdout + other.stderr)
        self.assertEqual(self.status()[0]["generation"], begun)

        newer = [step for step in self.folder.steps() if step > older]
        done = self.dlrover("rollback", job, "--step", str(older), "--yes")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"Job {job}.0 goes on from step {older}, with {RANKS} ranks.", done.stdout)
        self.assertIn("Set aside in", done.stdout)
        group = self.status()[0]
        self.assertEqual((group["restore_step"], group["restarts_left"]), (older, restarts))
        self.assertEqual([(s["back_to"], s["by_person"]) for s in group["suspects"]], [(older, True)])
        self.assertIsNotNone(self.event("Rolled back by hand", f"going on from step {older} on storage"))
        self.assertIn("rolled back by hand", self.dlrover("status", job).stdout)
        aside = {int(re.match(r"step-(\d+)\.", p.name).group(1)) for p in self.folder.lineage().glob("*.manifest.suspect")}
        self.assertLessEqual(set(newer), aside)
        self.assertNotIn(older, aside)

        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        self.expect_end(out, 120)
        for rank in range(RANKS):
            self.assertEqual([int(step) for step in re.findall(rf"rank {rank} from (\d+)\n", out)], [0, older + 1])
        self.folder.expect_whole(119, 1000)
        ended = self.dlrover("rollback", job, "--step", str(older), "--yes")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("has ended: dlrover ckpt rollback", ended.stderr)

    def test_a_job_that_ends_soon_after_is_followed_by_one_from_there(self) -> None:
        arguments = {"steps": 160, "pause": 0.05}  # they belong to the lineage
        process = self.start("--dlrover-ckpt-every=10", **arguments)
        wait_until(lambda: len(self.folder.steps()) >= 3, 60, "three checkpoints on storage")
        older = self.folder.steps()[0]
        # From a login node, which knows no group.
        done = self.cluster.run("dlrover", "rollback", self.job(), "--step", str(older), "--yes")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = self.folder.steps()  # the new line may have come as far as its first checkpoint
        process.kill()
        process.wait()
        wait_until(lambda: not self.cluster.run("squeue", "-h", user="root").stdout.split(), 60, "the job is over")
        last = self.folder.steps()[-1]
        self.assertLessEqual(steps[-1], last)
        again = self.train("--dlrover-ckpt-every=10", **arguments)
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn(f"rank 1 from {last + 1}\n", again.stdout)
        self.expect_end(again.stdout, 160)


if __name__ == "__main__":
    unittest.main()
