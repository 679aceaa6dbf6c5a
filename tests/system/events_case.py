# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a program hear of their group, from outside. The program writes what it hears into FOLDER/heard-RANK, one line each: microseconds
since the epoch, host, generation, event, and what the event carries, with tabs; it takes steps until FOLDER/go names the last one."""

import os
import signal
import statistics
import unittest

from cluster import Cluster, wait_until
from pmix_case import folder

NODES, RANKS_HERE = 4, 2
SIZE = NODES * RANKS_HERE


class Heard:
    """One line of what a rank has heard."""

    def __init__(self, rank: int, line: str) -> None:
        head, *values = line.split("\t")
        time_us, self.host, self.generation, self.event = head.split()
        self.rank, self.time_us = rank, int(time_us)
        self.values = dict(value.split("=", 1) for value in values)


class EventsCase(unittest.TestCase):
    """A subclass says in setUp() what the program is, and calls run_story()."""

    options: "list[str]" = []
    command: "list[str]"

    def create(self, label: str) -> None:
        self.cluster = self.enterContext(Cluster(label, nodes=NODES + 1))
        self.cluster.work.chmod(0o777)
        self.files = folder(self.cluster, "events")

    def start(self) -> None:
        self.process = self.cluster.start(
            "srun", "--job-name", "events", f"-N{NODES + 1}", f"--ntasks-per-node={RANKS_HERE}", "--overcommit", "--mem=400", f"--dlrover-elastic={NODES - 1}:{NODES}",
            "--dlrover-spares=1", *self.options, "--dlrover-redundancy=partner:1", f"--dlrover-ckpt-dir={folder(self.cluster, 'storage')}", "--dlrover-ckpt-every=20",
            *self.command, str(self.files))
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())
        self.job = self.cluster.job_id("events")

    def place_of(self, rank: int, generation: str) -> str:
        return next(line.host for line in self.heard("safe", generation) if line.rank == rank)

    def rank_apart(self, generation: str) -> int:
        """The last rank that is neither on the batch host nor on the node that leads: any node may be the spare."""
        leader = next(event["node"] for event in reversed(self.cluster.events(self.job)) if event["kind"] == "leader-elected")
        return max(rank for rank in range(SIZE) if self.place_of(rank, generation) not in (self.cluster.nodes[0], leader))

    def heard(self, event: str, generation: str = "") -> "list[Heard]":
        found = []
        for rank in range(SIZE):
            file = self.files / f"heard-{rank}"
            lines = [Heard(rank, line) for line in file.read_text().splitlines() if line] if file.exists() else []
            found += [line for line in lines if line.event == event and (not generation or line.generation == generation)]
        return found

    def wait_for(self, event: str, ranks: "set[int]", generation: str = "", seconds: float = 60) -> "list[Heard]":
        """Until each of these ranks has heard it."""
        def there() -> "list[Heard]":
            if self.process.poll() is not None:
                self.fail(f"srun has ended: {self.process.communicate()}")
            found = self.heard(event, generation)
            return found if {line.rank for line in found} >= ranks else []
        return wait_until(there, seconds, f"{event} heard by {sorted(ranks)}")

    def newest_generation(self) -> str:
        return max((line.generation for line in self.heard("safe")), key=lambda text: [int(number) for number in text.split(":")])

    def tell_delays(self, what: str, lines: "list[Heard]", since_us: "dict[str, int] | int") -> None:
        """From the line of the time line to what the ranks heard."""
        delays = sorted((line.time_us - (since_us if isinstance(since_us, int) else since_us[line.values["dlrover.step"]])) / 1000 for line in lines)
        print(f"{what}: heard by {len(lines)} ranks {statistics.median(delays):.1f} ms after its line (median), the last after {delays[-1]:.1f} ms")
        self.assertLess(delays[-1], 2000)

    def line_of(self, kind: str, words: str) -> dict:
        found = [event for event in self.cluster.events(self.job, [n for n in self.cluster.nodes if n != self.lost]) if event["kind"] == kind and words in event["text"]]
        self.assertEqual(len(found), 1, f"{kind}: {words}")
        return found[0]

    def kill_rank(self, rank: int) -> None:
        victim = [p for _, p in self.cluster.processes() if p.command and p.command[:len(self.command)] == self.command and p.environment().get("RANK") == str(rank)]
        self.assertEqual(len(victim), 1)
        os.kill(victim[0].pid, signal.SIGKILL)

    def run_story(self) -> str:
        """A rank dies, a node is lost, the program ends; every rank has heard it. What the program has said."""
        everybody, self.lost = set(range(SIZE)), ""
        self.start()
        self.wait_for("safe", everybody)
        durable = self.wait_for("durable", everybody)
        stored = {str(event["train_step"]): event["time_us"] for event in self.cluster.events(self.job) if event["kind"] == "checkpoint-stored"}
        self.tell_delays("on storage", [line for line in durable if line.values["dlrover.step"] in stored], stored)

        first = self.newest_generation()
        self.wait_for("safe", everybody, first)
        victim = self.rank_apart(first)
        node, others = self.place_of(victim, first), everybody - {victim}
        self.kill_rank(victim)
        lost = self.wait_for("rank-lost", others, first)
        self.assertEqual({(line.values["dlrover.rank"], line.values["dlrover.node"]) for line in lost}, {(str(victim), node)})
        self.assertEqual(len(lost), SIZE - 1, "each once")
        ends = self.wait_for("generation", others, first)
        self.assertEqual({line.values["dlrover.generation"] for line in ends}, {first})
        self.assertEqual({line.values["dlrover.reason"] for line in ends}, {f"rank {victim} on {node} was killed by signal 9 (Killed)"})
        failed = self.line_of("worker-failed", f"rank {victim} on")["time_us"]
        self.tell_delays("rank lost", lost, failed)
        self.tell_delays("generation ends", ends, failed)

        wait_until(lambda: self.newest_generation() != first, 60, "safe steps of the next generation")
        second = self.newest_generation()
        self.wait_for("safe", everybody, second)
        self.lost = self.place_of(self.rank_apart(second), second)
        self.cluster.lose(self.lost)
        left = {rank for rank in everybody if self.place_of(rank, second) != self.lost}
        lost = self.wait_for("node-lost", left, second)
        self.assertEqual({line.values["dlrover.node"] for line in lost}, {self.lost})
        ends = self.wait_for("generation", left, second)
        removed = self.line_of("warning", f"{self.lost} removed")["time_us"]
        self.tell_delays("node lost", lost, removed)
        self.tell_delays("generation ends", ends, removed)

        wait_until(lambda: self.newest_generation() != second, 60, "safe steps of the last generation")
        safe = self.wait_for("safe", everybody, self.newest_generation())
        last = max(int(line.values["dlrover.step"]) for line in safe) + 100
        (self.files / "go.new").write_text(f"{last}\n")
        (self.files / "go.new").rename(self.files / "go")
        out, err = self.process.communicate(timeout=120)
        self.assertEqual(self.process.returncode, 0, out + err)
        self.last = last
        return out
