# SPDX-License-Identifier: Apache-2.0
"""Two jobs of one lineage at the same time: neither takes the other's newest checkpoint away, both say so, and everything that was committed is whole."""

import collections
import contextlib
import re
import struct
import sys
import time
import typing
import unittest

from cluster import stopped, wait_until
from stored_walk import RANKS, StoredWalks

STEPS, PAUSE = 400, 0.05


class TwoJobs(StoredWalks):
    LABEL = "two-jobs"

    def start_job(self, name: str):
        # One command: it belongs to the lineage. The names of jobs do not.
        process = self.start("--dlrover-ckpt-every=3", "--dlrover-ckpt-keep=1", f"--job-name={name}", "--mem=400", steps=STEPS, pause=PAUSE)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    @contextlib.contextmanager
    def held_writers(self) -> "typing.Iterator[None]":
        pids = [p.pid for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-writer")]
        with stopped(pids):
            yield

    def complete_of_runs(self) -> "dict[int, list[int]]":
        """Steps of the complete checkpoints of each run, by the high half of its terms."""
        found = collections.defaultdict(list)
        lineage = self.folder.lineage()
        for path in lineage.glob("step-*.manifest") if lineage else ():
            step, high = re.match(r"step-(\d+)\.gen-(\d+)\.", path.name).groups()
            found[int(high)].append(int(step))
        return found

    def expect_both_for(self, seconds: float, runs: "set[int]", processes: list) -> "dict[int, int]":
        """Each run has a complete checkpoint at every moment. How many each has made meanwhile: longer than so many seconds only until each has made some, on a loaded machine."""
        made: "dict[int, set[int]]" = {run: set() for run in runs}
        missing_since = None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or (min(map(len, made.values())) <= 2 and time.monotonic() < deadline + 60):
            self.assertEqual([p.poll() for p in processes], [None, None])
            there = self.complete_of_runs()
            for run in runs:
                made[run].update(there.get(run, ()))
            # What is listed while it changes may miss the old one and the new one, once.
            missing = runs - set(there)
            self.assertFalse(missing and missing_since, f"no complete checkpoint of runs {missing}: {there}")
            missing_since = missing
            time.sleep(0.02)
        return {run: len(steps) for run, steps in made.items()}

    def test_both_keep_theirs(self) -> None:
        first = self.start_job("first")
        wait_until(lambda: self.folder.steps() or first.poll() is not None, 60, "a checkpoint of the first job", 0.05)
        # What a start has found may be removed by the other before it is read (docs/checkpoints.md): here a newer one comes each
        # 150 ms and one is kept, so the first does not store meanwhile.
        with self.held_writers():
            second = self.start_job("second")
            pace = self.cluster.work / f"pace-{self.cluster.job_id('second')}-0"
            def begun() -> bool:
                words = pace.read_bytes() if pace.exists() else b""
                return len(words) == 8 * RANKS and all(struct.unpack(f"<{RANKS}q", words))
            wait_until(lambda: begun() or second.poll() is not None, 60, "the first step of all ranks of the second job", 0.05)
        wait_until(lambda: len(self.complete_of_runs()) == 2 or first.poll() is not None or second.poll() is not None, 60, "checkpoints of both", 0.05)
        self.assertEqual([first.poll(), second.poll()], [None, None], "".join(second.communicate()) if second.poll() is not None else "")
        runs = self.complete_of_runs()
        jobs = {name: self.cluster.job_id(name) for name in ("first", "second")}
        made = self.expect_both_for(5, set(runs), [first, second])
        self.assertGreater(min(made.values()), 2, made)
        for name, other in (("first", "second"), ("second", "first")):
            def told() -> "list[dict]":
                return [e for e in self.cluster.events(jobs[name]) if "checkpoints of the same lineage" in e["text"]]
            wait_until(told, 20, f"{name} says that another run is there", 0.3)
            self.assertEqual(len(told()), 1, "once")
            self.assertIn(f"run {jobs[other]}.0.0", told()[0]["text"])
            self.assertIn(f"goes on from those of {'this run' if name == 'second' else 'run ' + str(jobs['second']) + '.0.0'}", told()[0]["text"])
            self.assertIn("--dlrover-name", told()[0]["text"])
        # The one that came last ends first, in the middle; the other goes on to its end.
        self.cluster.run("scancel", str(jobs["second"]), user="root", check=True)
        second.communicate(timeout=60)
        kept = self.complete_of_runs()[max(runs)]
        out, err = first.communicate(timeout=120)
        self.assertEqual(first.returncode, 0, out + err)
        self.expect_end(out, STEPS)
        self.assertEqual(self.complete_of_runs(), {min(runs): [STEPS - 1], max(runs): kept})
        verified = self.cluster.run("dlrover", "ckpt", "verify", str(self.top), "--all")
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        for step in self.folder.steps():
            self.folder.expect_whole(step, 1000)
        self.cluster.expect_clean()
        # A later start goes on from the job that came last, and then the older ones are nobody's.
        third = self.start_job("third")
        out, err = third.communicate(timeout=120)
        self.assertEqual(third.returncode, 0, out + err)
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} from {max(kept) + 1}\n", out)
        self.expect_end(out, STEPS)
        self.assertEqual(self.folder.steps(), [STEPS - 1])


if __name__ == "__main__":
    sys.exit(unittest.main())
