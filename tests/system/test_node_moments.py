# SPDX-License-Identifier: Apache-2.0
"""A node is lost at the moment that could cost most: in the midst of a save, of copying from or to it, of writing to storage, and as it takes a lost
one's place. What was safe is restored from memory, or something newer, and the end has the undisturbed bits."""

import contextlib
import os
import signal
import typing
import unittest

from cluster import stopped, wait_until
from loss_case import Case, NodeLosses, user_processes


class NodeMoments(NodeLosses):
    LABEL = "moments"

    @contextlib.contextmanager
    def hold(self, program: str, *nodes: str) -> "typing.Iterator[None]":
        """These programs of these nodes stand still."""
        pids = [p.pid for node in nodes for p in user_processes(self.cluster, node, program)]
        self.assertEqual(len(pids), len(nodes), program)
        with stopped(pids):
            yield

    def wait_for_copies_that_wait(self, case: Case, node: str) -> None:
        def copying() -> bool:
            copies = case.run.status(node)["copies"]
            return copies["safe_step"] < copies["target_step"] and copies["copied"] < copies["to_copy"]
        wait_until(copying, 10, f"copies that wait for {node}")

    def stop_in(self, case: Case, rank: int, phase: str) -> None:
        """This rank's process stands still in the midst of it."""
        page = case.run.pages[rank]
        pid = page.find_process().pid

        def caught() -> bool:
            if page.phase_name != phase:
                return False
            os.kill(pid, signal.SIGSTOP)
            if page.phase_name == phase:
                return True
            os.kill(pid, signal.SIGCONT)
            return False
        wait_until(caught, 20, f"rank {rank} in {phase}", 0)

    def test_in_the_midst_of_a_save(self) -> None:
        """One of its ranks has copied half, the others have sealed or wait."""
        case = Case(self, "save", ballast_mb=12, steps=2500)
        node = "n3"
        rank = case.ranks_of(node)[0]
        self.stop_in(case, rank, "copy")
        page = case.run.pages[rank]
        saved = page.saved_step
        case.lose(node)
        self.assertEqual(page.phase_name, "copy")
        self.assertEqual(page.saved_step, saved)
        case.expect_steps()
        case.expect_result()

    def test_while_it_sends_copies(self) -> None:
        """The partner's mover stands still: nothing newer than what was safe before is there."""
        case = Case(self, "sends", steps=2500)
        node = "n3"
        with self.hold("dlrover-mover", *case.partners(node)):
            self.wait_for_copies_that_wait(case, node)
            case.lose(node)
        case.expect_steps()
        case.expect_result()

    def test_while_copies_come_to_it(self) -> None:
        case = Case(self, "comes", steps=2500)
        node = "n3"
        with self.hold("dlrover-mover", node):
            sender = next(other for other in ("n1", "n2", "n4") if node in case.partners(other))
            self.wait_for_copies_that_wait(case, sender)
            case.lose(node)
        case.expect_steps()
        case.expect_result()

    def test_while_a_checkpoint_goes_to_storage(self) -> None:
        """Its part of it never gets there. That checkpoint, or a newer one, comes to storage whole, from the copies."""
        folder = self.cluster.work / "kept"
        folder.mkdir()
        folder.chmod(0o777)
        case = Case(self, "stored", options=(f"--dlrover-ckpt-dir={folder}", "--dlrover-ckpt-every=2s"), steps=1500)
        node = "n3"
        with self.hold("dlrover-writer", node):
            status = wait_until(lambda: (case.status().get("storage") or {}).get("storing_step", -1) >= 0 and case.status(), 20, "a checkpoint on its way to storage")
            storing = status["storage"]["storing_step"]
            case.lose(node)
        case.expect_steps()
        wait_until(lambda: case.status()["storage"]["stored_step"] >= storing, 30, f"step {storing} or a newer one on storage", 0.1)
        case.expect_result(storage=True)
        verified = self.cluster.run("dlrover", "ckpt", "verify", str(folder), "--all")
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        self.assertIn(": whole, 6 ranks", verified.stdout)

    def test_the_spare_that_takes_its_place(self) -> None:
        """It is lost while it waits for the lost one's state: the other spare takes over, from what was safe before the first loss."""
        case = Case(self, "place", nodes=6, spares=2, copies=2, steps=2000)
        node = "n3"
        with self.hold("dlrover-mover", *(other for other in self.cluster.nodes if other != node)):
            case.lose(node)
            wait_until(lambda: case.run.generation() > case.generation, 20, "the world without it", 0.002)
            safe, generation = case.safe, case.run.generation()
            moved = next(rank["node"] for rank in case.status()["ranks"] if rank["node"] in ("n5", "n6"))
            case.lose(moved)
            case.safe = safe
            self.assertFalse(case.run.all_stepping())
        case.expect_steps()
        self.assertGreater(case.generation, generation)
        self.assertNotIn(moved, case.run.nodes_with_ranks("n1"))
        case.expect_result()


if __name__ == "__main__":
    unittest.main()
