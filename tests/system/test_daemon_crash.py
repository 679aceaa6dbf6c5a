# SPDX-License-Identifier: Apache-2.0
"""dlroverd is killed, in mid-save too, and replaced by a new binary: training goes on, saves go on, memory is not lost."""

import os
import random
import shutil
import signal
import time
import unittest

from cluster import Cluster, prefix, stopped, wait_until
from heat import Run, reference

SIZE, STEPS = 256, 3000
LEASE_S = 5  # timing.agent_lease


class DaemonCrash(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("crash", nodes=4))

    def start(self, label: str, step_us: int = 2000, **heat: object) -> Run:
        run = Run(self.cluster, label, size=SIZE, steps=STEPS, save_every=5, step_us=step_us, ballast_mb=8, **heat).start()
        self.addCleanup(lambda: run.running() and run.process.terminate())
        run.wait_for_steps()
        self.assertTrue(run.running(), run.output())
        return run

    def finish(self, run: Run) -> None:
        self.assertEqual(run.finish(120), 0, run.output())
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(self.cluster, SIZE, STEPS), "the field differs from the undisturbed one")
        self.cluster.expect_clean()

    def kill_daemon(self, node: str) -> None:
        old = self.cluster.daemon_pid(node)
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: self.cluster.daemon_pid(node) not in (None, old), 20, f"another dlroverd on {node}", 0.1)

    def expect_undisturbed(self, run: Run, generation: int) -> None:
        """No restart, and all ranks seal one step that is newer than any had sealed."""
        newest = max(page.saved_step for page in run.pages)
        wait_until(lambda: run.common_save() > newest or not run.running(), 20, "a newer save of all ranks", 0.001)
        self.assertTrue(run.running(), run.output())
        self.assertEqual(run.generation(), generation, "a daemon's death must not restart workers")

    def kill_worker(self, run: Run, rank: int) -> None:
        """And expect it back from memory."""
        generation, safe = run.generation(), wait_until(lambda: max(0, run.common_save()), 20, "a save of all ranks", 0.001)
        self.assertIsNotNone(run.pages[rank].kill_now())
        run.wait_for_steps(after=generation)
        self.assertTrue(run.running(), run.output())
        restored = {page.restored_step for page in run.pages}
        if len(restored) != 1 or min(restored) < safe:
            self.fail(f"killed after step {safe}, restored {restored}:\n{run.full_time_line()}\n{run.output()}")
        self.assertGreater(safe, 0)

    def test_each_node_in_turn(self) -> None:
        run = self.start("each")
        generation = run.generation()
        for number, node in enumerate(self.cluster.nodes):
            self.kill_daemon(node)
            self.expect_undisturbed(run, generation)
            self.kill_worker(run, 2 * number)
            generation = run.generation()
        self.finish(run)

    def test_in_mid_save(self) -> None:
        run, chooser = self.start("mid-save"), random.Random(5)
        generation = run.generation()
        for phase in ("copy", "seal", "copy", "seal"):
            number = chooser.randrange(4)
            victim = self.cluster.daemon_pid(self.cluster.nodes[number])
            page = run.pages[2 * number]
            wait_until(lambda p=page, name=phase: p.phase_name == name or not run.running(), 20, f"rank {2 * number} in {phase}", 0)
            os.kill(victim, signal.SIGKILL)
            node = self.cluster.nodes[number]
            wait_until(lambda n=node, v=victim: self.cluster.daemon_pid(n) not in (None, v), 20, f"another dlroverd on {node}", 0.1)
            self.expect_undisturbed(run, generation)
        self.kill_worker(run, 3)
        self.finish(run)

    def test_all_at_once(self) -> None:
        run = self.start("all")
        generation = run.generation()
        old = {node: self.cluster.daemon_pid(node) for node in self.cluster.nodes}
        for pid in old.values():
            os.kill(pid, signal.SIGKILL)
        for node, pid in old.items():
            wait_until(lambda n=node, p=pid: self.cluster.daemon_pid(n) not in (None, p), 20, f"another dlroverd on {node}", 0.1)
        self.expect_undisturbed(run, generation)
        self.kill_worker(run, 0)
        self.finish(run)

    def daemon_pids(self, nodes: "list[str]") -> "list[int | None]":
        """One question for all: without slurmctld the answer takes seconds."""
        pids = {host["host"]: host["dlroverd"] for host in self.cluster.describe()["hosts"]}
        return [pids[node] for node in nodes]

    def test_standstill(self) -> None:
        """Who looks for the cause of a lost node finds it."""
        run = self.start("still", nodes=1, srun=("-w", "n1"))
        generation = run.generation()
        with stopped([self.cluster.daemon_pid("n1")]):
            time.sleep(1.5)
        self.expect_undisturbed(run, generation)
        story = [event["text"] for event in self.cluster.events(run.job_id()) if "stood still" in event["text"]]
        self.assertEqual(len(story), 1, story)
        self.assertRegex(story[0], r"^dlroverd of n1 stood still for [12]\.\d s \(it was stopped, .*\): others may have taken this node for lost\.$")
        self.finish(run)

    def test_while_slurmctld_is_away(self) -> None:
        """Slurm can not say where the other nodes are: the daemon has it on record. All at once, too: then none of them would call."""
        run = self.start("away", step_us=20000)
        generation = run.generation()
        self.cluster.control("stop-slurmctld")
        try:
            for nodes in (self.cluster.nodes[:1], self.cluster.nodes):
                old = self.daemon_pids(nodes)
                for pid in old:
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda n=nodes, o=old: not {None, *o} & set(self.daemon_pids(n)), 20, f"other dlroverds on {nodes}", 0.1)
                time.sleep(LEASE_S + 3)  # time is what would end the ranks
                self.expect_undisturbed(run, generation)
        finally:
            self.cluster.control("start-slurmctld")
        self.finish(run)
        self.assertEqual(run.generation(), generation)

    def test_upgrade(self) -> None:
        """A new file under the daemon's name; the keeper starts it when the old daemon ends."""
        run = self.start("upgrade")
        generation, binary = run.generation(), prefix() / "sbin" / "dlroverd"
        fresh = binary.with_name("dlroverd.new")
        shutil.copy2(binary, fresh)
        fresh.rename(binary)
        for number, node in enumerate(self.cluster.nodes):
            old = self.cluster.daemon_pid(node)
            self.assertIn("deleted", os.readlink(f"/proc/{old}/exe"))
            os.kill(old, signal.SIGTERM if number % 2 else signal.SIGKILL)
            new = wait_until(lambda n=node, o=old: (self.cluster.daemon_pid(n) or o) != o and self.cluster.daemon_pid(n), 20, f"the new dlroverd on {node}", 0.1)
            self.assertEqual(os.readlink(f"/proc/{new}/exe"), str(binary))
            self.expect_undisturbed(run, generation)
        self.kill_worker(run, 5)
        self.finish(run)


if __name__ == "__main__":
    unittest.main()
