# SPDX-License-Identifier: Apache-2.0
"""What all ranks have alike is not sent from node to node again, and a node that is lost costs nothing all the same."""

import json
import pathlib
import subprocess
import unittest

from cluster import Cluster, prefix, wait_until

HERE = pathlib.Path(__file__).resolve().parent
HAS_TORCH = subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(HAS_TORCH, "needs python3-torch")
class Replicas(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("replicas", nodes=4))

    def start(self, label: str, redundancy: str = "partner:1", workers: int = 2) -> None:
        """On so many nodes and a spare, two ranks on each."""
        self.ranks = 2 * workers
        self.folder = self.cluster.work / label
        self.folder.mkdir()
        self.folder.chmod(0o777)
        environment = {"PYTHONPATH": (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip(), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = self.cluster.start("srun", "--job-name", label, f"-N{workers + 1}", "--mem=1500", "--ntasks-per-node=2", "--overcommit",
                                          f"--dlrover-elastic={workers}:{workers}", "--dlrover-spares=1", f"--dlrover-redundancy={redundancy}", "/usr/bin/python3", str(HERE / "replicas_worker.py"), str(self.folder), label, env=environment)
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())
        self.job = self.cluster.job_id(label)
        wait_until(lambda: self.copies()["safe_step"] >= 5, 90, "safe steps", 0.2)

    def copies(self) -> dict:
        done = self.cluster.run("dlrover", "status", str(self.job), "--json", user="root", node=self.cluster.nodes[0])
        group = json.loads(done.stdout)["groups"][0] if done.returncode == 0 and done.stdout else {}
        return group.get("copies") or {"safe_step": -1}

    def expect_end(self) -> None:
        (self.folder / "end").touch()
        _, errors = self.process.communicate(timeout=90)
        self.assertEqual(self.process.returncode, 0, errors)

    def begins(self) -> "list[str]":
        return [line for path in sorted(self.folder.glob("log-*")) for line in path.read_text().splitlines()]

    def test_parameters_of_data_parallelism(self) -> None:
        self.start("alike")
        self.expect_that_a_lost_node_costs_nothing()

    def test_they_are_added_up_where_they_are(self) -> None:
        """A parity is made of all bytes: of these most are what the node that makes it has saved itself."""
        self.start("alike", "rs:2+1", workers=3)
        self.expect_that_a_lost_node_costs_nothing()

    def expect_that_a_lost_node_costs_nothing(self) -> None:
        copies = self.copies()
        print(f"{copies['spared_bytes']} of {copies['arrived_bytes']} bytes were there already")
        self.assertGreater(copies["spared_bytes"], 0.9 * copies["arrived_bytes"])
        text = self.cluster.run("dlrover", "status", str(self.job), user="root", node=self.cluster.nodes[0]).stdout
        self.assertIn("that came were there already (replicas)", text)
        safe, lost = copies["safe_step"], self.begins()[-1].split()[2]  # not the spare: its agents have the same command line
        self.cluster.lose(lost)
        wait_until(lambda: len(self.begins()) >= 2 * self.ranks, 60, "ranks that go on", 0.1)
        steps = {int(line.split()[0]) for line in self.begins()} - {0}
        self.assertEqual(len(steps), 1, self.begins())
        self.assertGreaterEqual(steps.pop(), safe)
        self.expect_end()
        self.assertEqual({line.split()[1] for line in self.begins()}, {"right"})

    def test_shards_are_sent(self) -> None:
        self.start("apart")
        copies = self.copies()
        self.assertLess(copies["spared_bytes"], 0.01 * copies["arrived_bytes"])
        self.assertGreater(copies["arrived_bytes"], 3 * 4 * (8 << 20))
        self.expect_end()
        self.assertEqual({line.split()[1] for line in self.begins()}, {"right"})


if __name__ == "__main__":
    unittest.main()
