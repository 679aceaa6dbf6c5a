# SPDX-License-Identifier: Apache-2.0
"""A state that was bad before anything failed: restarts from it fail again, and the group goes back to a step from before."""

import re
import time
import unittest

from cluster import wait_until
from stored_walk import RANKS, StoredWalks


class Suspect(StoredWalks):
    LABEL = "suspect"

    def test_the_group_goes_back_until_the_state_is_good(self) -> None:
        # Bad from step 30 on, and noticed at step 45: neither what is in memory then, nor step 39 on storage, is any good.
        process = self.start("--dlrover-ckpt-every=10", "--dlrover-max-restarts=8", steps=80, pause=0.05, env={"POISON_AT": "30", "NOTICED_AT": "45"})
        job = int(wait_until(lambda: self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split(), 30, "the job")[0])
        groups: "list[dict]" = []
        while process.poll() is None:  # told only while it runs, and for a while after
            groups = [g for g in self.status() if g["suspects"]] or groups
            time.sleep(0.1)
        out, err = process.communicate()
        groups = [g for g in self.status() if g["suspects"]] or groups
        texts = list(dict.fromkeys(event["text"] for event in self.cluster.events(job)))
        self.assertEqual(process.returncode, 0, out + err)
        self.expect_end(out, 80)
        begun = [int(step) for step in re.findall(r"rank 1 from (\d+)\n", out)]
        self.assertEqual(begun[0], 0)
        self.assertIn(begun[-1], range(1, 31), begun)
        # The newest in memory, twice; then ever further back, although the bad ones on storage lead to newer steps in memory each time.
        self.assertEqual(begun[1:3], [45, 45], begun)
        told = [text for text in texts if "two failures came back" in text]
        back = [int(re.search(r"; going on from step (\d+) on storage", text).group(1)) for text in told]
        self.assertEqual(back, sorted(set(back), reverse=True), told)
        self.assertGreaterEqual(back[0], 30, "the newest on storage is tried first")
        self.assertEqual(back[-1] + 1, begun[-1], begun)
        self.assertLessEqual(len(begun), 3 + 2 * len(back), begun)
        self.assertIn("although the group had gone back", told[-1])
        self.assertEqual([(s["train_step"], s["back_to"]) for s in groups[0]["suspects"]], [(44, back[-1])])
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} from {begun[-1]}\n", out)
        self.assertEqual(self.folder.steps()[-1], 79)
        self.folder.expect_whole(79, 1000)
        # A later job goes on from what was saved last, not from the bad line.
        again = self.train("--dlrover-ckpt-every=10", "--dlrover-max-restarts=8", steps=80, pause=0.05, env={"POISON_AT": "30", "NOTICED_AT": "45"})
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn("rank 1 from 80\n", again.stdout)

    def test_without_an_older_step_it_ends_as_before(self) -> None:
        done = self.train("--dlrover-ckpt-every=off", steps=80, env={"POISON_AT": "30", "NOTICED_AT": "31"})
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("ends with", done.stdout)
        begun = [int(step) for step in re.findall(r"rank 1 from (\d+)\n", done.stdout)]
        self.assertNotIn(0, begun[1:], "never from the beginning because of it")


if __name__ == "__main__":
    unittest.main()
