# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a program hear of their group, from outside. The program writes what it hears into FOLDER/heard-RANK, one line each: microseconds
since the epoch, host, generation, event, and what the event carries, with tabs; it takes steps until FOLDER/go names the last one."""

import os
import pathlib
import signal
import statistics
import subprocess
import unittest

from cluster import PATIENCE, Cluster, Process, wait_until
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


def ask(process: subprocess.Popen, files: pathlib.Path, what: str) -> str:
    """Rank 0 of pmix_events.c asks for it; PMIx's answer."""
    answer = files / "answer"
    (files / "request.new").write_text(what + "\n")
    (files / "request.new").rename(files / "request")
    wait_until(lambda: answer.exists() or process.poll() is not None, 30, f"an answer to {what}", 0.05)
    text = answer.read_text().strip()
    answer.unlink()
    return text


class Listeners:
    """The ranks of a job on the cluster's nodes, one of which is a spare, and what they have heard."""

    def __init__(self, cluster: Cluster, command: "list[str]", options: "list[str]", ranks_here: int = RANKS_HERE) -> None:
        self.cluster, self.command, self.ranks_here = cluster, command, ranks_here
        self.workers = len(cluster.nodes) - 1
        self.size = self.workers * ranks_here
        self.files = folder(cluster, "events")
        self.process = cluster.start(
            "srun", "--job-name", "events", f"-N{self.workers + 1}", f"--ntasks-per-node={ranks_here}", "--overcommit", "--mem=400",
            f"--dlrover-elastic={self.workers - 1}:{self.workers}", "--dlrover-spares=1", *options, "--dlrover-redundancy=partner:1",
            f"--dlrover-ckpt-dir={folder(cluster, 'storage')}", "--dlrover-ckpt-every=20", *command, str(self.files))
        self.job = cluster.job_id("events")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()

    def place_of(self, rank: int, generation: str) -> str:
        return next(line.host for line in self.heard("safe", generation) if line.rank == rank)

    def leader(self) -> str:
        return next(event["node"] for event in reversed(self.cluster.events(self.job)) if event["kind"] == "leader-elected")

    def rank_apart(self, generation: str) -> int:
        """The last rank that is neither on the batch host nor on the node that leads: any node may be the spare."""
        return max(rank for rank in range(self.size) if self.place_of(rank, generation) not in (self.cluster.nodes[0], self.leader()))

    def heard(self, event: str, generation: str = "") -> "list[Heard]":
        found = []
        for rank in range(self.size):
            file = self.files / f"heard-{rank}"
            lines = [Heard(rank, line) for line in file.read_text().splitlines() if line] if file.exists() else []
            found += [line for line in lines if line.event == event and (not generation or line.generation == generation)]
        return found

    def wait_for(self, event: str, ranks: "set[int]", generation: str = "", seconds: float = 60) -> "list[Heard]":
        """Until each of these ranks has heard it."""
        def there() -> "list[Heard]":
            if self.process.poll() is not None:
                raise AssertionError(f"srun has ended: {self.process.communicate()}")
            found = self.heard(event, generation)
            return found if {line.rank for line in found} >= ranks else []
        return wait_until(there, seconds, f"{event} heard by {sorted(ranks)}")

    def newest_generation(self) -> str:
        return max((line.generation for line in self.heard("safe")), key=lambda text: [int(number) for number in text.split(":")])

    def wait_for_next_generation(self, last: str) -> str:
        """All have heard of a safe step of it."""
        wait_until(lambda: self.newest_generation() != last, 60, "safe steps of the next generation")
        newest = self.newest_generation()
        self.wait_for("safe", set(range(self.size)), newest)
        return newest

    def process_of(self, rank: int) -> Process:
        found = [p for _, p in self.cluster.processes() if p.command and p.command[:len(self.command)] == self.command and p.environment().get("RANK") == str(rank)]
        assert len(found) == 1, found
        return found[0]

    def let_end(self) -> "tuple[int, str]":
        """Some steps later. The last step, and what the program has said."""
        last = max(int(line.values["dlrover.step"]) for line in self.heard("safe")) + 100
        (self.files / "go.new").write_text(f"{last}\n")
        (self.files / "go.new").rename(self.files / "go")
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, out + err
        return last, out


class EventsCase(unittest.TestCase):
    """A subclass says in setUp() what the program is, and calls run_story()."""

    options: "list[str]" = []
    command: "list[str]"

    def create(self, label: str) -> None:
        self.cluster = self.enterContext(Cluster(label, nodes=NODES + 1))
        self.cluster.work.chmod(0o777)

    def start(self) -> Listeners:
        ranks = Listeners(self.cluster, self.command, self.options)
        self.addCleanup(ranks.stop)
        return ranks

    def tell_delays(self, what: str, lines: "list[Heard]", since_us: "dict[str, int] | int") -> None:
        """From the line of the time line to what the ranks heard."""
        delays = sorted((line.time_us - (since_us if isinstance(since_us, int) else since_us[line.values["dlrover.step"]])) / 1000 for line in lines)
        print(f"{what}: heard by {len(lines)} ranks {statistics.median(delays):.1f} ms after its line (median), the last after {delays[-1]:.1f} ms")
        self.assertLess(delays[-1], 2000 * PATIENCE)

    def line_of(self, job: int, kind: str, words: str, lost: str = "") -> dict:
        found = [event for event in self.cluster.events(job, [n for n in self.cluster.nodes if n != lost]) if event["kind"] == kind and words in event["text"]]
        self.assertEqual(len(found), 1, f"{kind}: {words}")
        return found[0]

    def expect_lost_rank(self, ranks: Listeners, generation: str) -> None:
        victim = ranks.rank_apart(generation)
        node, others = ranks.place_of(victim, generation), set(range(SIZE)) - {victim}
        os.kill(ranks.process_of(victim).pid, signal.SIGKILL)
        lost = ranks.wait_for("rank-lost", others, generation)
        self.assertEqual({(line.values["dlrover.rank"], line.values["dlrover.node"]) for line in lost}, {(str(victim), node)})
        self.assertEqual(len(lost), SIZE - 1, "each once")
        ends = ranks.wait_for("generation", others, generation)
        self.assertEqual({line.values["dlrover.generation"] for line in ends}, {generation})
        self.assertEqual({line.values["dlrover.reason"] for line in ends}, {f"rank {victim} on {node} was killed by signal 9 (Killed)"})
        failed = self.line_of(ranks.job, "worker-failed", f"rank {victim} on")["time_us"]
        self.tell_delays("rank lost", lost, failed)
        self.tell_delays("generation ends", ends, failed)

    def expect_lost_node(self, ranks: Listeners, generation: str) -> None:
        node = ranks.place_of(ranks.rank_apart(generation), generation)
        self.cluster.lose(node)
        left = {rank for rank in range(SIZE) if ranks.place_of(rank, generation) != node}
        lost = ranks.wait_for("node-lost", left, generation)
        self.assertEqual({line.values["dlrover.node"] for line in lost}, {node})
        changed = ranks.wait_for("allocation", left, generation)
        self.assertEqual({line.values["dlrover.node.count"] for line in changed}, {str(NODES)})
        self.assertEqual(len(changed), len(left), "each once")
        ends = ranks.wait_for("generation", left, generation)
        removed = self.line_of(ranks.job, "warning", f"{node} removed", node)["time_us"]
        self.tell_delays("node lost", lost, removed)
        self.tell_delays("generation ends", ends, removed)

    def run_story(self) -> "tuple[int, str]":
        """A rank dies, a node is lost, the program ends; every rank has heard it. The last step, and what the program has said."""
        everybody = set(range(SIZE))
        ranks = self.start()
        ranks.wait_for("safe", everybody)
        durable = ranks.wait_for("durable", everybody)
        stored = {str(event["train_step"]): event["time_us"] for event in self.cluster.events(ranks.job) if event["kind"] == "checkpoint-stored"}
        self.tell_delays("on storage", [line for line in durable if line.values["dlrover.step"] in stored], stored)

        first = ranks.newest_generation()
        ranks.wait_for("safe", everybody, first)
        self.expect_lost_rank(ranks, first)
        second = ranks.wait_for_next_generation(first)
        self.expect_lost_node(ranks, second)
        ranks.wait_for_next_generation(second)
        return ranks.let_end()
