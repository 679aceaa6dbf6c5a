# SPDX-License-Identifier: Apache-2.0
"""Nodes die, there is no spare and no storage: fewer nodes go on from what is in the memory of those that are left, and more again when one has joined."""

import json
import pathlib
import time
import unittest

from cluster import Cluster, prefix, wait_until
from resize_field import field_after

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 900


class Resize(unittest.TestCase):
    steps = STEPS

    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("resize", nodes=4))
        self.prepare()

    def prepare(self) -> None:
        self.environment = {"PYTHONPATH": (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip(),
                            "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}

    def start(self, label: str, redundancy: str) -> None:
        self.folder = self.cluster.work / label
        self.folder.mkdir()
        self.folder.chmod(0o777)
        self.output = open(self.folder / "output", "w+", encoding="utf-8")
        self.addCleanup(self.output.close)
        self.process = self.cluster.start("srun", "--job-name", label, "-N4", "-w", ",".join(self.cluster.nodes[:4]), "--mem=400", "--ntasks-per-node=2", "--dlrover-elastic=2:4",
                                          f"--dlrover-redundancy={redundancy}", "python3", str(HERE / "resize_worker.py"), str(self.folder), str(self.steps),
                                          env=self.environment, stdout=self.output, stderr=self.output)
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())
        self.job = self.cluster.job_id(label)
        wait_until(lambda: self.safe_step() > 50, 60, "safe steps", 0.1)

    def status(self) -> dict:
        done = self.cluster.run("dlrover", "status", str(self.job), "--json", user="root", node=self.cluster.nodes[0])
        return json.loads(done.stdout)["groups"][0] if done.returncode == 0 and done.stdout else {}

    def safe_step(self) -> int:
        return (self.status().get("copies") or {}).get("safe_step", -1)

    def begins(self, world_size: int) -> "list[list[str]]":
        """What each rank of a world of that size said when it began."""
        lines = [line.split() for path in self.folder.glob("log-*") for line in path.read_text().splitlines()]
        return [line for line in lines if int(line[1]) == world_size]

    def lose(self, count: int) -> None:
        safe, victims = self.safe_step(), self.cluster.nodes[:4][-count:]
        began = self.cluster.lose(*victims)
        ranks = 2 * (4 - count)
        try:
            wait_until(lambda: len(self.begins(ranks)) >= ranks, 60, f"{ranks} ranks that go on", 0.05)
        finally:
            self.output.seek(0)
            self.texts = [f"{event['time_us'] / 1e6 - began:.2f} {event['node']} {event['text']}" for event in self.cluster.events(self.job)]
            print(self.output.read()[-3000:], *self.texts[-40:], sep="\n")
        lines = self.begins(ranks)
        print(f"{ranks} ranks have their state {time.time() - began:.2f} s after the loss; each took {min(float(l[5]) for l in lines):.2f} to "
              f"{max(float(l[5]) for l in lines):.2f} s to read its part")
        self.assertEqual({line[4] for line in lines}, {"right"})
        self.assertEqual(len({line[2] for line in lines}), 1, "one step for all")
        self.assertGreaterEqual(int(lines[0][2]), safe)
        self.assertEqual({line[3] for line in lines}, {"8"}, "saved by 8 ranks")
        self.assertTrue(any("in memory, saved by 8 ranks" in text for text in self.texts))
        self.assertTrue(any("State restored from memory, saved by 8 ranks" in text for text in self.texts))
        self.assertFalse(any("storage" in text for text in self.texts))

    def expect_result(self) -> None:
        self.assertEqual(sum(int(line[2]) == 0 for line in self.begins(8)), 8)
        wait_until(lambda: self.safe_step() > 300 or self.process.poll() is not None, 60, "safe steps of the smaller world", 0.1)
        wait_until(lambda: sum(path.stat().st_size for path in self.folder.glob("rows-*")) == len(field_after(self.steps)), 90, "the whole field", 0.2)
        rows = b"".join(path.read_bytes() for path in sorted(self.folder.glob("rows-*")))
        self.assertEqual(rows, field_after(self.steps), "the field differs from the undisturbed one")

    def test_three_of_four_nodes_go_on(self) -> None:
        self.start("three", "partner:1")
        self.lose(1)
        self.expect_result()

    def test_two_of_four_nodes_go_on(self) -> None:
        self.start("two", "partner:2")
        self.lose(2)
        self.expect_result()


class GrowsBack(Resize):
    """There is one more node."""
    steps = 2000
    test_three_of_four_nodes_go_on = test_two_of_four_nodes_go_on = None

    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("grow", nodes=5, arguments=("--slurmdbd",)))
        self.prepare()

    def test_a_companions_node_makes_it_four_again(self) -> None:
        self.start("grow", "partner:1")
        began = time.time()
        self.lose(1)
        self.expect_four_again(began)
        self.expect_result()

    def test_a_companion_that_has_to_wait_makes_it_four_again(self) -> None:
        """Another user's job has the only other node: three go on until it ends."""
        over = self.cluster.work / "over"
        bobs = self.cluster.run("sbatch", "--parsable", "-w", "n5", "--exclusive", "-o", "/dev/null", "--wrap", f"until test -e {over}; do sleep 0.1; done", user="bob", check=True).stdout.strip()
        wait_until(lambda: "JobState=RUNNING " in self.show(bobs), 30, "bob's job on n5", 0.1)
        self.start("waits", "partner:1")
        began = time.time()
        self.lose(1)
        wait_until(lambda: self.companions() == ["PENDING"], 30, "a companion job that waits", 0.2)
        safe = self.safe_step()
        wait_until(lambda: self.safe_step() > safe + 50, 30, "safe steps of three nodes", 0.1)
        self.assertEqual(self.companions(), ["PENDING"])
        self.assertEqual(len(self.begins(8)), 8, "a fourth node has come from nowhere")
        self.assertIn("JobState=RUNNING ", self.show(bobs))
        over.touch()
        freed = time.time()
        self.expect_four_again(began)
        print(f"8 ranks again {time.time() - freed:.1f} s after n5 was free")
        self.assertRegex(self.show(bobs), r" JobState=COMPLETED .* Restarts=0 .* ExitCode=0:0 ")
        self.expect_result()

    def show(self, job: str) -> str:
        return self.cluster.run("scontrol", "-o", "show", "job", job, user="root", check=True).stdout

    def companions(self) -> "list[str]":
        return self.cluster.run("squeue", "-h", "-n", f"dlrover-{self.job}-node", "-o", "%T", user="root", check=True).stdout.split()

    def expect_four_again(self, began: float) -> None:
        try:
            wait_until(lambda: len(self.begins(8)) >= 16, 60, "a world of four nodes again", 0.05)
        finally:
            print(*(f"{event['time_us'] / 1e6 - began:.2f} {event['node']} {event['text']}" for event in self.cluster.events(self.job)), sep="\n")
        print(f"8 ranks again {time.time() - began:.1f} s after the loss")
        again = sorted((line for line in self.begins(8) if int(line[2]) > 0), key=lambda line: int(line[2]))
        self.assertEqual(len(again), 8)
        self.assertEqual({line[4] for line in again}, {"right"})
        self.assertEqual({line[3] for line in again}, {"6"}, "saved by 6 ranks")
        self.assertEqual(len({line[2] for line in again}), 1, "one step for all")
        self.assertIn("n5", {line[6] for line in again})


if __name__ == "__main__":
    unittest.main()
