# SPDX-License-Identifier: Apache-2.0
"""From an older build to this one, node by node under a running job: both versions of the daemon and of its helpers are in one group for a while.
DLROVER_PREFIX is the older installation then, DLROVER_NEWER_PREFIX this one's; tests/nightly/upgrade makes both."""

import os
import pathlib
import shutil
import signal
import unittest

from cluster import Cluster, prefix, wait_until
from heat import Run, reference, start_with_copies
from loss_case import FROM_STORAGE, user_processes

STEPS = 20_000
NEWER = os.environ.get("DLROVER_NEWER_PREFIX", "")
HELPERS = ("dlrover-mover", "dlrover-writer")


@unittest.skipUnless(NEWER, "needs an older build: tests/nightly/upgrade")
class Upgrade(unittest.TestCase):
    def install(self) -> None:
        """As a package does it: new files under the old names, which running processes do not notice."""
        for folder in ("sbin", "bin", "libexec/dlrover"):
            for new in (pathlib.Path(NEWER) / folder).iterdir():
                old = prefix() / folder / new.name
                if new.is_file() and old.is_file():
                    shutil.copy2(new, old.with_name(new.name + ".new"))
                    old.with_name(new.name + ".new").rename(old)

    def replace(self, node: str) -> None:
        """Its daemon and helpers end, and are started again from the new files."""
        old = self.cluster.daemon_pid(node)
        helpers = [p for name in HELPERS for p in user_processes(self.cluster, node, name)]
        os.kill(old, signal.SIGTERM)
        wait_until(lambda: self.cluster.daemon_pid(node) not in (None, old), 20, f"the new dlroverd on {node}", 0.1)
        for process in helpers:
            os.kill(process.pid, signal.SIGKILL)
        for name in HELPERS:
            fresh = wait_until(lambda n=name: [p for p in user_processes(self.cluster, node, n) if p.pid not in {h.pid for h in helpers}], 20, f"{name} on {node}", 0.1)
            self.assertNotIn("deleted", os.readlink(f"/proc/{fresh[0].pid}/exe"))

    def expect_safe(self, run: Run, witness: str) -> None:
        """Copies go on between versions."""
        newest = run.safe_step(witness)
        wait_until(lambda: run.safe_step(witness) > newest + 20, 30, "safe steps", 0.05)

    def test_node_by_node(self) -> None:
        self.cluster = self.enterContext(Cluster("upgrade", nodes=6))
        run = start_with_copies(self.cluster, "upgrade", nodes=6, spares=2, copies=2, steps=STEPS,
                                options=(f"--dlrover-ckpt-dir={self.cluster.work / 'stored'}", "--dlrover-ckpt-every=500"))
        self.addCleanup(lambda: run.running() and run.process.kill())
        self.install()
        generation = run.generation()
        for node in ("n1", "n3", "n6"):  # the batch host, one with ranks, a spare: half of the group
            self.replace(node)
            self.expect_safe(run, "n2")
            self.expect_safe(run, "n1")
            self.assertEqual(run.generation(), generation, run.time_line())
        # n2 leads, with an older daemon; its ranks go on elsewhere from what others have, of both versions.
        for lost, witness in (("n2", "n1"), ("n3", "n1")):
            safe = run.safe_step(witness)
            self.cluster.lose(lost)
            run.wait_for_steps(after=generation)
            restored = {page.restored_step for page in run.pages}
            self.assertEqual(len(restored), 1)
            self.assertGreaterEqual(min(restored), safe)
            generation = run.generation()
            self.expect_safe(run, witness)
        for node in ("n4", "n5"):
            self.replace(node)
            self.expect_safe(run, "n4")
        self.assertEqual(run.generation(), generation, run.time_line())
        wait_until(lambda: {page.phase_name for page in run.pages} == {"done"}, 120, "all ranks done")
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, 256, STEPS))
        self.assertNotRegex(run.time_line(), FROM_STORAGE)


if __name__ == "__main__":
    unittest.main()
