# SPDX-License-Identifier: Apache-2.0
"""A C program that restarts protected arrays at another number of ranks than saved them; what belongs to a rank is refused in words, and nothing is lost by it."""

import re
import subprocess
import unittest

from cluster import Cluster, wait_until
from heat import program, reference

SIZE, STEPS = 96, 3000


class Sizes(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("heat-sizes", nodes=3))

    def start(self, label: str, nodes: int, *more: str) -> subprocess.Popen:
        """Two ranks on each node; one command for one label: it belongs to the lineage."""
        self.folder = self.cluster.work / label
        if not self.folder.exists():
            self.folder.mkdir()
            self.folder.chmod(0o777)
        process = self.cluster.start("srun", f"-N{nodes}", "--ntasks-per-node=2", "--dlrover-elastic", f"--dlrover-ckpt-dir={self.folder}", "--dlrover-ckpt-every=5",
                                     "--dlrover-name=heat", str(program()), "--size", str(SIZE), "--steps", str(STEPS), "--save-every", "10", "--step-us", "3000",
                                     "--out", f"{self.folder}/field", *more)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def steps(self, suffix: str = "") -> "list[int]":
        return sorted(int(re.match(r"step-(\d+)\.", path.name).group(1)) for path in self.folder.glob(f"*/step-*.manifest{suffix}"))

    def cancel_after(self, process: subprocess.Popen, step: int) -> int:
        """The step that is newest on storage then."""
        wait_until(lambda: (self.steps() or [-1])[-1] >= step or process.poll() is not None, 90, f"step {step} on storage", 0.05)
        self.assertIsNone(process.poll(), "".join(process.communicate()) if process.poll() is not None else "")
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        process.communicate(timeout=60)
        self.cluster.expect_clean()
        return self.steps()[-1]

    def restored(self) -> "list[str]":
        """What the daemons say of restores from storage in the job that runs."""
        job = self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split()
        return [e["text"] for e in self.cluster.events(int(job[0])) if "estored" in e["text"]] if job else []

    def test_two_and_six_ranks_go_on_where_four_were(self) -> None:
        at = self.cancel_after(self.start("sizes", 2), 100)
        for nodes in (1, 3):
            process = self.start("sizes", nodes)
            texts = wait_until(lambda: self.restored() or process.poll() is not None, 60, "a restore", 0.2)
            self.assertIsNone(process.poll(), "".join(process.communicate()) if process.poll() is not None else "")
            self.assertIn("State restored from storage.", texts)
            if nodes == 1:
                at = self.cancel_after(process, at + 100)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual((self.folder / "field").read_bytes(), reference(self.cluster, SIZE, STEPS), "the field differs from the undisturbed one")

    def test_a_ranks_own_memory_is_refused_in_words(self) -> None:
        options = ("--ballast-mb", "1")  # of each rank's own
        at = self.cancel_after(self.start("own", 2, *options), 100)
        for nodes, ranks in ((1, 2), (3, 6)):
            refused = self.start("own", nodes, *options)
            out, err = refused.communicate(timeout=90)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("dlrover_restart: id 2: ", err)
            self.assertIn(f"the checkpoint of step {at} was saved by 4 ranks, this world has {ranks}", err)
            self.assertIn("nothing was restored", err)
            self.cluster.expect_clean()
        # The right number of ranks goes on from there as if nothing had been.
        self.assertEqual(self.steps()[-1], at)
        self.assertEqual(self.steps(".suspect"), [])
        process = self.start("own", 2, *options)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual((self.folder / "field").read_bytes(), reference(self.cluster, SIZE, STEPS))


if __name__ == "__main__":
    unittest.main()
