# SPDX-License-Identifier: Apache-2.0
"""PMIx as it is without an option: there for programs that want it, and no failure of those that do not where a node has no server."""

import os
import pathlib
import re
import signal
import subprocess
import unittest

from cluster import Cluster, prefix, wait_until
from pmix_case import MISSING, MPI_SETTINGS, SERVER, expect_nothing_left, folder, servers

HELLO = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("rank %d of %d\n", rank, size);
    return MPI_Finalize();
}
"""


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixDefault(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("pmixd", nodes=2))
        cls.cluster.work.chmod(0o777)
        cls.program = cls.cluster.work / "hello"
        subprocess.run(["mpicc", "-x", "c", "-o", str(cls.program), "-"], input=HELLO, text=True, check=True)

    def srun(self, job: str, *command: str, settings: "list[str]" = MPI_SETTINGS) -> "list[str]":
        return ["env", *settings, "srun", "--job-name", job, "-N2", "-n2", "--dlrover-elastic", *command]

    def told(self, job: str) -> "tuple[int, str]":
        """How many worlds there were, and what the time line says."""
        events = self.cluster.events(self.cluster.job_id(job))
        return sum(e["kind"] == "world-published" for e in events), "\n".join(e["text"] for e in events)

    def node_without(self) -> str:
        """A node on which the program of the server ends at once, until the end of the test."""
        node = self.cluster.nodes[1]
        program = next(str(p) for p in prefix().rglob(SERVER) if os.access(p, os.X_OK) and p.is_file())
        self.cluster.run("mount", "--bind", "/bin/false", program, user="root", node=node, check=True)
        self.addCleanup(self.cluster.run, "umount", program, user="root", node=node, check=True)
        return node

    def waits_for(self, go: pathlib.Path, first: str = "") -> "list[str]":
        return ["sh", "-c", f"{first}for i in $(seq 900); do [ -e {go} ] && exit 0; sleep 0.1; done; exit 1"]

    def test_mpi_needs_no_option(self) -> None:
        for way, settings in (("plain", MPI_SETTINGS), ("bare", [])):  # nor any of Open MPI's own
            with self.subTest(way):
                done = self.cluster.run(*self.srun(way, str(self.program), settings=settings))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(sorted(done.stdout.split("\n")), ["", "rank 0 of 2", "rank 1 of 2"])
                expect_nothing_left(self.cluster)

    def test_it_can_be_switched_off(self) -> None:
        go, files = self.cluster.work / "off", folder(self.cluster, "ranks")
        process = self.cluster.start(*self.srun("off", "--dlrover-pmix=no", *self.waits_for(go, f"echo have $PMIX_NAMESPACE; touch {files}/$RANK; ")))
        self.addCleanup(process.kill)
        wait_until(lambda: len(list(files.iterdir())) == 2, 30, "two ranks")
        self.assertEqual(servers(self.cluster), [])
        go.touch()
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (0, "have\nhave\n"), err)

    def test_a_server_that_nobody_uses_may_be_killed(self) -> None:
        go = self.cluster.work / "go"
        process = self.cluster.start(*self.srun("unused", *self.waits_for(go)))
        self.addCleanup(process.kill)
        wait_until(lambda: len(servers(self.cluster)) == 2, 30, "servers on both nodes")
        job = self.cluster.job_id("unused")
        wait_until(lambda: any(e["kind"] == "world-published" for e in self.cluster.events(job)), 30, "a world")
        node, server = servers(self.cluster)[0]
        os.kill(server.pid, signal.SIGKILL)
        said = f"There is no PMIx on {node}: dlrover-pmixd has ended. The ranks go on without it"
        wait_until(lambda: any(e["text"].startswith(said) for e in self.cluster.events(job)), 30, said)
        go.touch()
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(self.told("unused")[0], 1)
        expect_nothing_left(self.cluster)

    def test_ranks_begin_where_there_is_no_server(self) -> None:
        node = self.node_without()
        done = self.cluster.run(*self.srun("without", "sh", "-c", "echo $SLURMD_NODENAME has $PMIX_NAMESPACE"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, rf"(?m)^{node} has$")
        self.assertEqual(len(re.findall(r"(?m)^\S+ has dlrover\.", done.stdout)), 1, done.stdout)
        worlds, text = self.told("without")
        self.assertEqual(worlds, 1)
        self.assertIn(f"There is no PMIx on {node}: ", text)

    def test_mpi_does_not_hang_where_a_node_has_no_server(self) -> None:
        node = self.node_without()
        done = self.cluster.run(*self.srun("half", str(self.program)), timeout=90)
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("of 1", done.stdout)
        self.assertIn(f"There is no PMIx on {node}: ", self.told("half")[1])


if __name__ == "__main__":
    unittest.main()
