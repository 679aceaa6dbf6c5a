# SPDX-License-Identifier: Apache-2.0
"""Nodes that are busy, and stand still for moments, are not taken for lost: with every core taken by others and pauses of 200 ms on random nodes
nothing but training happens."""

import os
import random
import subprocess
import time
import unittest

from cluster import NIGHTLY, Cluster, Hosts, wait_until
from heat import start_with_copies
from mcluster import faults as host_faults

SECONDS = 600.0 if NIGHTLY else 30.0
PAUSE = 0.2
SEED = 7


class Load(unittest.TestCase):
    def setUp(self) -> None:
        # Two for each core, of the tests' own priority.
        busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(2 * (os.cpu_count() or 1))]
        for process in busy:
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)

    def test_no_false_verdict(self) -> None:
        chooser = random.Random(SEED)
        with Cluster("load", nodes=4) as cluster:
            run = start_with_copies(cluster, "busy", steps=1_000_000)
            self.addCleanup(lambda: run.running() and run.process.kill())
            hosts = Hosts.load(cluster.name)
            began, before, first = time.time(), run.generation(), min(page.step for page in run.pages)
            pauses, longest = 0, 0.0
            while time.time() - began < SECONDS:
                node = chooser.choice(cluster.nodes)
                moment = time.monotonic()
                host_faults.freeze(hosts, node)
                time.sleep(PAUSE)
                host_faults.thaw(hosts, node)
                pauses, longest = pauses + 1, max(longest, time.monotonic() - moment)
                time.sleep(chooser.uniform(0.1, 1))
            story = [event for event in run.notes() if event["time_us"] / 1e6 >= began]
            told = "\n".join(f"{event['time_us'] / 1e6:.3f} {event['node']} {event['text']}" for event in story)
            verdicts = [event for event in story if event["kind"] in ("world-published", "leader-elected", "leader-lost", "incident-opened") or " gone" in event["text"]]
            print(f"{pauses} pauses, the longest of {longest:.2f} s, in {time.time() - began:.0f} s; {min(page.step for page in run.pages) - first} steps; {len(verdicts)} verdicts")
            self.assertEqual(verdicts, [], told)
            self.assertEqual(run.generation(), before, told)
            self.assertTrue(run.running(), run.output())
            wait_until(lambda step=min(page.step for page in run.pages): min(page.step for page in run.pages) > step, 10, "more steps")
            cluster.run("scancel", str(run.job_id()), user="root")
            run.process.wait(60)


if __name__ == "__main__":
    unittest.main()
