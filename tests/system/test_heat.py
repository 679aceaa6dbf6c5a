# SPDX-License-Identifier: Apache-2.0
"""examples/heat without a cluster: the same field for any number of ranks, resumed from plain files after SIGKILL in any phase."""

import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

from cluster import wait_until
from heat import Page, program

LOST_PEER = 4


class Heat(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.ranks: "list[subprocess.Popen]" = []
        self.addCleanup(self.end_ranks)

    def end_ranks(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    def start(self, count: int, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.end_ranks()
        self.ranks = [self.start_rank(rank, count, port, options) for rank in range(count)]

    def start_rank(self, rank: int, count: int, port: int, options: "tuple[str, ...]") -> subprocess.Popen:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("DLROVER_", "SLURM_"))}
        env.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   DLROVER_LOCAL_DIR=str(self.folder / "checkpoints"))
        argv = [str(program()), "--size", "96", "--steps", "300", "--save-every", "5", "--phase-dir", str(self.folder), *options]
        return subprocess.Popen(argv, env=env, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def codes(self) -> "list[int]":
        return [rank.wait(60) for rank in self.ranks]

    def field(self, count: int, *options: str) -> bytes:
        self.start(count, "--out", str(self.folder / "field"), *options)
        self.assertEqual(self.codes(), [0] * count)
        return (self.folder / "field").read_bytes()

    def test_field_does_not_depend_on_the_ranks(self) -> None:
        alone = self.field(1, "--save-every", "0")
        self.assertEqual(len(alone), 96 * 96 * 8)
        self.assertEqual(self.field(5, "--save-every", "0"), alone)
        self.assertNotEqual(self.field(1, "--save-every", "0", "--steps", "299"), alone)

    def test_ordered_death_in_each_phase(self) -> None:
        undisturbed = self.field(1, "--save-every", "0")
        pages = [Page(self.folder / f"rank-{rank}") for rank in range(3)]
        for number, phase in enumerate(("startup", "step", "copy", "seal")):
            with self.subTest(phase):
                pages[number % 3].order(phase, 0)
                self.start(3, "--step-us", "500", "--ballast-mb", "1")
                self.assertEqual(self.ranks[number % 3].wait(30), -9)
                if phase != "startup":  # there the others wait for it: stopping them is an agent's work
                    self.assertEqual(self.codes().count(LOST_PEER), 2)
                self.assertEqual(pages[number % 3].phase_name, phase)
        self.assertEqual(self.field(3, "--ballast-mb", "1"), undisturbed)
        self.assertEqual([pages[0].kills("startup"), pages[1].kills("step"), pages[2].kills("copy"), pages[0].kills("seal")], [1, 1, 1, 1])

    def test_second_process_of_a_rank_is_noticed(self) -> None:
        self.start(1, "--steps", "1000000", "--step-us", "1000")
        wait_until((self.folder / "rank-0").exists, 10, "the first process")
        page = Page(self.folder / "rank-0")
        wait_until(lambda: page.step > 0, 10, "its first step")
        second = self.start_rank(0, 1, 1, ())
        self.assertEqual(second.wait(30), 5)
        self.assertIn("two processes have rank 0", (self.folder / "violations").read_text())


if __name__ == "__main__":
    unittest.main()
