# SPDX-License-Identifier: Apache-2.0
"""What a site sets for the copies to other nodes: by UCX, and how fast."""

import pathlib
import tempfile
import time
import unittest

from cluster import NIGHTLY, Cluster, stopped, wait_until
from heat import Run, reference, start_with_copies
from loss_case import user_processes

MIB = 1 << 20


class Transfer(unittest.TestCase):
    def make_cluster(self, name: str, settings: str) -> None:
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "dlrover.toml")
        path.write_text("[transfer]\n" + settings)
        path.chmod(0o644)
        self.cluster = self.enterContext(Cluster(name, nodes=3, arguments=("--dlrover-conf", str(path))))

    def test_by_ucx(self) -> None:
        """Over TCP here, as there is no RDMA: each rank's state comes by it when its node is lost."""
        self.make_cluster("by-ucx", 'ucx = "always"\n')
        steps = 1500
        run = start_with_copies(self.cluster, "ucx", nodes=3, spares=1, steps=steps)
        text = self.cluster.run("dlrover", "status", str(run.job_id()), user="root", node="n1", check=True).stdout
        self.assertRegex(text, r"by UCX", text)
        mover = user_processes(self.cluster, "n1", "dlrover-mover")[0].pid
        self.assertIn("/libucp.so", pathlib.Path(f"/proc/{mover}/maps").read_text())
        generation, safe = run.generation(), run.safe_step("n1")
        self.cluster.lose("n2")
        run.wait_for_steps(after=generation)
        self.assertGreaterEqual(min(page.restored_step for page in run.pages), safe)
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 60, "all ranks done")
        self.assertIn("fetched from", run.time_line())
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, 256, steps))

    @unittest.skipUnless(NIGHTLY, "only nightly: half a minute has to pass")
    def test_a_mover_that_stands_still(self) -> None:
        self.expect_fetched_past_a_stop("still", 'ucx = "never"\n')

    @unittest.skipUnless(NIGHTLY, "only nightly: half a minute has to pass")
    def test_a_mover_that_stands_still_by_ucx(self) -> None:
        self.expect_fetched_past_a_stop("still-ucx", 'ucx = "always"\n')

    def expect_fetched_past_a_stop(self, name: str, settings: str) -> None:
        """The only node that has the state to be fetched has a mover that stands still: it is ended after 30 s without an answer, and its successor sends."""
        self.make_cluster(name, settings)
        steps = 1500
        run = start_with_copies(self.cluster, name, nodes=3, spares=1, steps=steps)
        mover = user_processes(self.cluster, "n1", "dlrover-mover")[0].pid
        generation, safe = run.generation(), run.safe_step("n1")
        with stopped([mover]):
            began = self.cluster.lose("n2")
            run.wait_for_steps(after=generation, seconds=60)
            took = time.time() - began
            print(f"{name}: all ranks stepping {took:.1f} s after the loss")
            self.assertLess(took, 38, "the object's own time, 30 s and 10 s more, is not waited for")
        self.assertGreaterEqual(min(page.restored_step for page in run.pages), safe)
        self.assertIn("dlrover-mover that did not answer", run.time_line())
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 60, "all ranks done")
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, 256, steps))

    def test_rate(self) -> None:
        """Two ranks of half a MiB on each node save far more often than 4 MiB a second can carry: what comes keeps to that, and does come."""
        self.make_cluster("rate", 'rate = "4MiB"\n')
        run = start_with_copies(self.cluster, "rate", nodes=3, spares=1, steps=100_000, size=512)
        self.addCleanup(run.process.kill)
        first, before = time.time(), self.sent(run)
        begun = time.time()
        time.sleep(6)
        took, came = time.time() - begun, self.sent(run) - before
        longest = time.time() - first  # asking takes its time, too
        print(f"{came / MIB / took:.1f} MiB/s came to the two nodes together")
        # Counted by whole objects: a checkpoint may have been on its way at either end.
        self.assertLessEqual(came, 2 * (4 * longest + 2) * MIB)
        self.assertGreaterEqual(came, 0.5 * 2 * 4 * took * MIB)
        self.cluster.run("scancel", str(run.job_id()), user="root")

    @staticmethod
    def sent(run: Run) -> int:
        """Bytes that came to both nodes, each from the other one, but for what was there already: heat's ballast."""
        copies = run.status("n1")["copies"]
        return copies["arrived_bytes"] - copies["spared_bytes"]


if __name__ == "__main__":
    unittest.main()
