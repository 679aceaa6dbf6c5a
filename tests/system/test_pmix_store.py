# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a node find what others have put: files that they and the node's PMIx server share, or that server."""

import os
import signal
import subprocess
import time
import unittest

from cluster import Cluster, wait_until
from pmix_case import MISSING, build, expect_nothing_left, files_on_nodes, folder

NODES, RANKS_HERE = 2, 4
SIZE = NODES * RANKS_HERE
KILLS = 5
LIMIT = 5  # seconds from a rank's death until all read again; a server that waits for its lock would take twice as long
SHARED = "tmp/dlrover-*/pmix/pmix_dstor_ds21_*"
# A container as Apptainer makes it: the same user, another /tmp.
CONTAINER = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             'uid=$1; shift; mount -t tmpfs none /tmp && exec unshare --user --map-user=$uid "$@"', "container"]


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixStore(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("pmixstore", nodes=NODES))
        self.cluster.work.chmod(0o777)
        self.files = folder(self.cluster, "files")
        self.process: "subprocess.Popen | None" = None
        self.program = build(self.cluster, "pmix_reader")

    def start(self, *before: str, options: "tuple[str, ...]" = ()) -> None:
        self.process = self.cluster.start("srun", "--job-name", "store", f"-N{NODES}", f"--ntasks-per-node={RANKS_HERE}", "--overcommit", "--mem=400", "--dlrover-elastic", "--dlrover-pmix=yes",
                                          *options, *before, self.program, str(self.files))
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())

    def reading(self) -> "dict[int, tuple[int, int]]":
        """Rank -> its process's id on its node, and how often it has read."""
        found = {}
        for rank in range(SIZE):
            path = self.files / f"rank.{rank}"
            words = path.read_text().split() if path.exists() else []
            if len(words) >= 2:
                found[rank] = (int(words[0]), int(words[1]))
        return found

    def wait_for_readers(self, seconds: float, before: "dict[int, tuple[int, int]] | None" = None) -> None:
        """All of them, in other processes than before."""
        def all_read() -> bool:
            now, old = self.reading(), before or {}
            return len(now) == SIZE and all(times > 3 and pid != old.get(rank, (0, 0))[0] for rank, (pid, times) in now.items())
        assert self.process is not None
        wait_until(lambda: all_read() or self.process.poll() is not None, seconds, "all ranks reading", 0.02)
        self.assertIsNone(self.process.poll(), "the job is over")

    def end(self) -> None:
        (self.files / "go").touch()
        out, err = self.process.communicate(timeout=60)
        self.assertEqual(self.process.returncode, 0, out + err)
        expect_nothing_left(self.cluster)

    def expect_shared(self, *nodes: int) -> None:
        """How many nodes have such files."""
        self.assertEqual(len(files_on_nodes(self.cluster, SHARED)), *nodes)

    def test_a_rank_that_is_killed_with_all_locks(self) -> None:
        """libpmix's readers hold one for a moment; whoever is killed then leaves it locked."""
        self.start(options=(f"--dlrover-max-restarts={KILLS + 2}",))
        self.wait_for_readers(60)
        self.expect_shared(NODES)
        took = []
        for rank in range(KILLS):
            before = self.reading()
            hold = self.files / f"hold.{rank}"
            hold.touch()
            wait_until(lambda order=hold: not order.exists(), 10, "a rank that has the locks", 0.02)
            inner = before[rank][0]
            node = self.cluster.nodes[rank // RANKS_HERE]
            victim, = (p.pid for name, p in self.cluster.processes() if name == node and p.inner_pid == inner and p.command[:1] == [self.program])
            began = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            self.wait_for_readers(60, before)
            took.append(time.monotonic() - began)
        print(f"{KILLS} kills, seconds until all read again: " + ", ".join(f"{seconds:.2f}" for seconds in took))
        self.assertLess(sorted(took)[KILLS // 2], LIMIT)  # a server that hangs on its lock would show each time
        self.end()

    def test_ranks_in_a_container_with_a_tmp_of_its_own(self) -> None:
        """They ask the server, since they do not see the files."""
        uid = self.cluster.run("id", "-u").stdout.strip()
        tried = self.cluster.run(*CONTAINER, uid, "id", "-u")
        if tried.returncode != 0:
            self.skipTest(f"no user namespaces here: {tried.stderr.strip()}")
        self.assertEqual(tried.stdout.strip(), uid)
        self.start(*CONTAINER, uid)
        self.wait_for_readers(60)
        self.expect_shared(NODES)
        self.end()

    def test_a_node_whose_tmp_has_little_room(self) -> None:
        """Its ranks ask the server, the other's look into the files."""
        small = self.cluster.nodes[1]
        self.cluster.run("mount", "-t", "tmpfs", "-o", "size=64m,mode=1777", "none", "/tmp", node=small, user="root", check=True)
        self.start()
        self.wait_for_readers(60)
        self.expect_shared(NODES - 1)
        self.end()
        self.cluster.run("umount", "/tmp", node=small, user="root", check=True)


if __name__ == "__main__":
    unittest.main()
