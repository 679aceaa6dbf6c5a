# SPDX-License-Identifier: Apache-2.0
"""A node that was lost comes back and joins again: it is checked with two others before; one that is slow is refused and drained."""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest

from cluster import NIGHTLY, Cluster, wait_until
from loss_case import Neighbour
from mcluster import net
from mcluster.cluster import Cluster as Hosts

#: Its libcuda.so.1 has GPUs with the faults that FAKE_GPUS says.
FAKE_DRIVER = pathlib.Path(os.environ.get("DLROVER_BUILD", ".")).resolve() / "tests" / "fakes" / "work" / ".libs"
PROGRAM = ("sleep", "600")
OPTIONS = ("--dlrover-redundancy=partner:1", "--dlrover-companion=no")


class NodeBack(unittest.TestCase):
    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        settings = pathlib.Path(folder, "dlrover.toml")
        settings.write_text("[node]\ndrain_failed = true\n")
        settings.chmod(0o644)
        self.cluster = self.enterContext(Cluster("back", nodes=4, arguments=("--slurmdbd", "--conf", "CPUs=4", "--dlrover-conf", str(settings), "--share", str(FAKE_DRIVER))))
        self.step = self.start("-N4", "--job-name=back", "--dlrover-elastic=2:4")
        self.job = self.cluster.job_id("back")
        wait_until(lambda: any(event["kind"] == "world-published" for event in self.cluster.events(self.job, ["n1", "n2", "n3"])), 30, "a world", 0.2)

    def start(self, *options: str, **more) -> subprocess.Popen:
        """A step of one task a node."""
        process = self.cluster.start("srun", "--ntasks-per-node=1", "--mem=512", *options, *OPTIONS, *PROGRAM, **more)
        self.addCleanup(lambda: process.poll() is None and process.terminate())
        return process

    def texts(self) -> "list[str]":
        return [event["text"] for event in self.cluster.events(self.job, ["n1", "n2", "n3"])]

    def wait_for(self, part: str, seconds: float) -> str:
        return wait_until(lambda: next((text for text in self.texts() if part in text), None), seconds, f'"{part}" in the time line', 0.2)

    def lose_and_boot(self) -> None:
        self.cluster.lose("n4")
        self.wait_for("n4 removed", 30)
        self.cluster.start_node("n4")
        wait_until(lambda: self.state("n4") == "idle", 40, "n4 idle", 0.2)

    def state(self, node: str) -> str:
        return self.cluster.run("sinfo", "-h", "-n", node, "-o", "%T", user="root").stdout.strip()

    def join(self, gpu: str = "") -> subprocess.Popen:
        """gpu: what a driver of ours for GPUs says of the node's one (tests/fakes/work); none: it has none."""
        env = {"CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": str(FAKE_DRIVER), "FAKE_GPUS": gpu} if gpu else None
        return self.start("-N1", "-w", "n4", f"--dlrover-join={self.job}.0", env=env)

    def test_a_sound_node_is_let_in(self) -> None:
        self.lose_and_boot()
        began = time.time()
        self.join(gpu="sound")
        try:
            text = self.wait_for("n4 has joined the group", 60)
        finally:
            print(*self.texts(), sep="\n")
        took = time.time() - began
        print(f"n4 let in {took:.1f} s after its srun began: {text}")
        self.assertIn("checked in", text)
        self.assertIn("exchange", text)
        self.assertIn("sound GPUs: 1", text)
        self.assertLess(took, 90)  # Slurm may take a minute to let a step onto a node that was booted

    @unittest.skipUnless(NIGHTLY, "only nightly: it takes a while")
    def test_a_slow_node_is_refused_and_drained(self) -> None:
        self.lose_and_boot()
        neighbour = Neighbour(self.cluster)
        neighbour.begin()
        wait_until(lambda: "n4" in neighbour.running(), 60, "bob's job on n4", 0.2)
        net.narrow(Hosts.load(self.cluster.name), "n4", rate="8mbit", queue="400ms")
        self.expect_refusal(self.join(), "n4 and n1: ")
        neighbour.expect_untouched(self)

    @unittest.skipUnless(NIGHTLY, "only nightly: it takes a while")
    def test_a_node_whose_gpu_miscalculates_is_refused_and_drained(self) -> None:
        self.lose_and_boot()
        self.expect_refusal(self.join(gpu="wrong"), "GPU 0000:00:00.0 (Fake): a product of matrices is wrong: it miscalculates")

    def expect_refusal(self, newcomer: subprocess.Popen, why: str) -> None:
        began = time.time()
        try:
            text = self.wait_for("not let in again", 120)
            print(f"n4 refused {time.time() - began:.1f} s after its srun began: {text}")
            _, errors = newcomer.communicate(timeout=60)
        finally:
            print(*self.texts(), sep="\n")
        self.assertIn("two-node check failed", text)
        self.assertIn(why, text)
        self.assertIn("n4 is not let into the group again: two-node check failed", errors)
        self.assertNotEqual(newcomer.returncode, 0)
        wait_until(lambda: "drain" in self.state("n4"), 20, "n4 drained", 0.2)
        shown = self.cluster.run("scontrol", "-o", "show", "node", "n4", user="root", check=True).stdout
        self.assertIn("dlrover: two-node check failed", shown)
        self.assertFalse(any("n4 has joined" in line for line in self.texts()))
        self.assertIsNone(self.step.poll(), "the group goes on")


if __name__ == "__main__":
    unittest.main()
