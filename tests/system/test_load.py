# SPDX-License-Identifier: Apache-2.0
"""Nodes that are busy, that stand still for moments, or whose messages wait behind others, are not taken for lost: nothing but training happens, with every
core taken by others and pauses of 200 ms on random nodes, and with links that are full of copies."""

import contextlib
import os
import random
import statistics
import subprocess
import time
import typing
import unittest

from cluster import NIGHTLY, Cluster, Hosts, wait_until
from heat import Run, start_with_copies
from mcluster import faults as host_faults
from mcluster import net

SECONDS = 600.0 if NIGHTLY else 30.0
PAUSE = 0.2
SEED = 7
#: A link that copies and another program fill, and how long a message waits behind them at most. The kernel has no other way to delay here.
RATE, QUEUE = "100mbit", 0.2
FILL_PORT = 6899
FILL = """
import socket, sys
if len(sys.argv) > 1:
    other = socket.socket()
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # goes on until something is lost, however long it waits
    other.connect((sys.argv[1], int(sys.argv[2])))
    while True:
        other.sendall(bytes(1 << 16))
server = socket.create_server(("", %d))
print("listens", flush=True)
other, _ = server.accept()
while other.recv(1 << 16):
    pass
""" % FILL_PORT


@contextlib.contextmanager
def taken_cores() -> "typing.Iterator[None]":
    """Two busy processes for each core, of the tests' own priority."""
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def filled_links(cluster: Cluster, hosts: Hosts) -> "typing.Iterator[None]":
    """Each node sends as much as it can to the next one, as another program's traffic would."""
    fillers = []
    try:
        for node in cluster.nodes:
            fillers.append(cluster.start("/usr/bin/python3", "-c", FILL, node=node, stderr=subprocess.DEVNULL))
            assert fillers[-1].stdout.readline() == "listens\n"
        for node in cluster.nodes:
            other = cluster.nodes[cluster.nodes.index(node) - 1]
            fillers.append(cluster.start("/usr/bin/python3", "-c", FILL, hosts.address(other), str(FILL_PORT), node=node, stdout=subprocess.DEVNULL))
        yield
        ended = [filler.stderr.read() for filler in fillers[len(cluster.nodes):] if filler.poll() is not None]
        assert not ended, f"a link was not filled: {ended}"
    finally:
        for filler in fillers:
            filler.kill()
            filler.communicate()


class Load(unittest.TestCase):
    def start(self, cluster: Cluster, label: str, **options: object) -> Run:
        run = start_with_copies(cluster, label, steps=1_000_000, **options)
        self.addCleanup(lambda: run.running() and run.process.kill())
        return run

    @contextlib.contextmanager
    def nothing_but_training(self, cluster: Cluster, run: Run) -> "typing.Iterator[None]":
        """What happens meanwhile leads to no verdict."""
        began, before, first = time.time(), run.generation(), min(page.step for page in run.pages)
        yield
        story = [event for event in run.notes() if event["time_us"] / 1e6 >= began]
        told = "\n".join(f"{event['time_us'] / 1e6:.3f} {event['node']} {event['text']}" for event in story)
        verdicts = [event for event in story if event["kind"] in ("world-published", "leader-elected", "leader-lost", "incident-opened") or " gone" in event["text"]]
        print(f"{min(page.step for page in run.pages) - first} steps in {time.time() - began:.0f} s; {len(verdicts)} verdicts")
        self.assertEqual(verdicts, [], told)
        self.assertEqual(run.generation(), before, told)
        self.assertTrue(run.running(), run.output())
        wait_until(lambda step=min(page.step for page in run.pages): min(page.step for page in run.pages) > step, 10, "more steps")
        cluster.run("scancel", str(run.job_id()), user="root")
        run.process.wait(60)

    def test_no_false_verdict(self) -> None:
        chooser = random.Random(SEED)
        with taken_cores(), Cluster("load", nodes=4) as cluster:
            run = self.start(cluster, "busy")
            hosts = Hosts.load(cluster.name)
            with self.nothing_but_training(cluster, run):
                end, pauses, longest = time.monotonic() + SECONDS, 0, 0.0
                while time.monotonic() < end:
                    node = chooser.choice(cluster.nodes)
                    moment = time.monotonic()
                    host_faults.freeze(hosts, node)
                    time.sleep(PAUSE)
                    host_faults.thaw(hosts, node)
                    pauses, longest = pauses + 1, max(longest, time.monotonic() - moment)
                    time.sleep(chooser.uniform(0.1, 1))
                print(f"{pauses} pauses, the longest of {longest:.2f} s")

    def reach(self, hosts: Hosts, cluster: Cluster, node: str) -> float:
        """Milliseconds until slurmd of another node accepts a connection: a message there, and one back."""
        other = cluster.nodes[cluster.nodes.index(node) - 1]
        code = f"import socket, time; t = time.monotonic(); socket.create_connection(({hosts.address(node)!r}, 6818), 10); print((time.monotonic() - t) * 1e3)"
        return float(cluster.run("/usr/bin/python3", "-c", code, node=other, check=True).stdout)

    def test_no_false_verdict_behind_full_links(self) -> None:
        with Cluster("delay", nodes=4) as cluster:
            run = self.start(cluster, "delayed", ballast_mb=16)
            hosts = Hosts.load(cluster.name)
            for node in cluster.nodes:
                net.narrow(hosts, node, rate=RATE, queue=f"{QUEUE * 1e3:g}ms")
            with filled_links(cluster, hosts), self.nothing_but_training(cluster, run):
                end, delays = time.monotonic() + SECONDS, []
                while time.monotonic() < end:
                    for node in cluster.nodes:
                        delays.append(self.reach(hosts, cluster, node))
                print(f"{len(delays)} connections took {statistics.median(delays):.0f} ms in the middle, {max(delays):.0f} at most")
                self.assertGreater(max(delays), QUEUE * 1e3 / 2, "messages wait behind what fills the links")


if __name__ == "__main__":
    unittest.main()
