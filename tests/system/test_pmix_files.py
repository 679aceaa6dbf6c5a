# SPDX-License-Identifier: Apache-2.0
"""Files of Open MPI's ranks: segments of shared memory, session folders. The ranks have registered them with the PMIx server (PMIX_REGISTER_CLEANUP), which deletes them
where a rank is killed."""

import subprocess
import unittest

from cluster import TOP, Cluster, wait_until
from heat import Run, program
from pmix_case import MISSING as MISSING_PMIX, MPI_SETTINGS, SEGMENTS, expect_nothing_left, files_on_nodes, folder

NODES, GENERATIONS = 4, 5
MISSING = [*MISSING_PMIX, *([] if program("heat-mpi").exists() else ["a build with the MPI example"])]
SESSIONS = "tmp/ompi.*/jf.*"


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixFiles(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("pmixfiles", nodes=NODES))
        self.cluster.work.chmod(0o777)

    def files(self, pattern: str) -> "list[str]":
        return sorted(path.name for path in files_on_nodes(self.cluster, pattern))

    def expect_files(self, segments: int, sessions: int) -> None:
        try:
            wait_until(lambda: (len(self.files(SEGMENTS)), len(self.files(SESSIONS))) == (segments, sessions), 5, f"{segments} segments and {sessions} session folders", 0.1)
        finally:
            print(*self.files(SEGMENTS), *self.files(SESSIONS), sep="\n")

    def test_killed_ranks_leave_none(self) -> None:
        run = Run(self.cluster, "files", srun=("--dlrover-pmix=yes", "--dlrover-redundancy=partner:1", "--overcommit", "--mem=400"), size=256, steps=100000, save_every=5, step_us=4000)
        run.command = ["env", *MPI_SETTINGS, str(program("heat-mpi")), *run.command[1:]]
        self.addCleanup(lambda: run.running() and run.process.terminate())
        run.start()
        run.wait_for_steps()
        for _ in range(GENERATIONS - 1):
            generation, safe = run.generation(), run.safe_step("n1")
            wait_until(lambda: run.running() and run.safe_step("n1") > safe + 20, 30, "safe steps", 0.1)
            self.assertIsNotNone(run.pages[3].kill_now())
            run.wait_for_steps(after=generation)
        self.assertTrue(run.running(), run.output())
        self.expect_files(run.ranks, 0)  # session folders are in the servers' own
        self.cluster.run("scancel", str(run.job_id()))
        run.finish(60)
        expect_nothing_left(self.cluster)
        self.expect_files(0, 0)

    def test_nor_do_they_under_slurms_own(self) -> None:
        built = self.cluster.work / "mpi_program"
        subprocess.run(["mpicc", "-O1", "-o", str(built), str(TOP / "tests" / "system" / "mpi_program.c")], check=True)
        files = folder(self.cluster, "die")
        for _ in range(3):  # Open MPI crashes now and then as it begins under that one
            done = self.cluster.run("env", *MPI_SETTINGS, "srun", f"-N{NODES}", "--ntasks-per-node=2", "--overcommit", "--mpi=pmix", "--dlrover-elastic=off", "--kill-on-bad-exit=1", str(built), "die", str(files))
            if (files / "died").exists():
                break
        self.assertTrue((files / "died").exists(), done.stdout + done.stderr)
        self.expect_files(0, 0)


if __name__ == "__main__":
    unittest.main()
