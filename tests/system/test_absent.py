# SPDX-License-Identifier: Apache-2.0
"""What is said on the terminal soon after the start: which nodes are waited for, and that the nodes do not share the folder for checkpoints."""

import pathlib
import subprocess
import time
import unittest

from cluster import PATIENCE, Cluster, wait_until
from heat import held_back


class Absent(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("absent", nodes=3))

    def start(self, *options: str) -> "tuple[subprocess.Popen, pathlib.Path]":
        """The process, and what it says."""
        file = self.cluster.work / f"{self.id().rsplit('.', 1)[-1]}.err"
        with open(file, "w") as err:
            process = self.cluster.start("srun", "--job-name", "absent", "--mem=200", *options, "sleep", "300", stderr=err)
        self.addCleanup(self.end, process)
        return process, file

    def end(self, process: subprocess.Popen) -> None:
        self.cluster.run("scancel", "-n", "absent", user="root", check=True)
        process.communicate(timeout=60)

    def wait_for(self, process: subprocess.Popen, file: pathlib.Path, words: str, seconds: float) -> str:
        def line() -> "str | None":
            self.assertIsNone(process.poll(), file.read_text())
            return next((line for line in file.read_text().splitlines() if words in line), None)
        return wait_until(line, seconds, words, 0.1)

    def expect_named(self, nodes: int, late: "list[str]", names: str) -> None:
        with held_back(self.cluster, late):
            began = time.monotonic()
            process, file = self.start(f"-N{nodes}", f"-w{','.join(self.cluster.nodes[:nodes])}", f"--dlrover-elastic={nodes}:{nodes}")
            said = self.wait_for(process, file, "the step waits for other nodes", 20)
            took = time.monotonic() - began
            print(f"{took:.1f} s after srun: {said}")
            self.assertIn(f"nothing is heard from {names}: dlroverd does not run there", said)
            self.assertLess(took, 10 * PATIENCE)
            time.sleep(1)
            self.assertEqual(file.read_text().count("the step waits for other nodes"), 1, "by one agent")
            self.assertEqual(self.sleepers(), [])
        # The request that its module could not wait for was found.
        wait_until(lambda: self.sleepers() == self.cluster.nodes[:nodes] or process.poll() is not None, 20, "the program on all nodes", 0.1)
        self.assertIsNone(process.poll(), file.read_text())

    def sleepers(self) -> "list[str]":
        return sorted(node for node, process in self.cluster.processes() if process.command[:2] == ["sleep", "300"])

    def test_a_node_without_its_daemon_is_named_by_the_leader(self) -> None:
        self.expect_named(3, ["n3"], "n3")

    def test_nodes_without_their_daemons_are_named_by_a_batch_host_alone(self) -> None:
        self.expect_named(2, ["n2"], "n2")

    def test_a_folder_that_the_nodes_do_not_share_is_told_at_the_start(self) -> None:
        process, file = self.start("-N3", "--dlrover-elastic", "--dlrover-ckpt-dir=/tmp/not-shared")  # hosts have a /tmp of their own
        said = self.wait_for(process, file, "is not the same folder on all nodes", 50)
        self.assertIn("warning: /tmp/not-shared", said)
        self.assertIn("is not seen on n2, n3", said)


if __name__ == "__main__":
    unittest.main()
