# SPDX-License-Identifier: Apache-2.0
"""Unmodified Open MPI programs in an elastic step, under our PMIx server."""

import os
import pathlib
import re
import signal
import subprocess
import unittest

from cluster import TOP, Cluster, prefix, wait_until
from event_codes import event_code
from pmix_case import MISSING, MPI_SETTINGS, SEGMENTS, UCX_SETTINGS, build, expect_nothing_left, files_on_nodes, folder, servers

NODES, RANKS_HERE = 4, 2
SIZE = NODES * RANKS_HERE
MPI4PY, PYTHON_PMIX = (subprocess.run(["/usr/bin/python3", "-c", f"import {name}"], capture_output=True, check=False).returncode == 0 for name in ("mpi4py", "pmix"))


def expected() -> "dict[int, dict[str, int]]":
    """What each rank has to find, by arithmetic."""
    found = {}
    for rank in range(SIZE):
        before = (rank - 1) % SIZE
        ring = {words: sum((before * 7 + i) ^ i for i in range(words)) for words in (8, 300000)}
        found[rank] = {"size": SIZE, "ranks here": RANKS_HERE, "allreduce": sum((r + 1) ** 2 for r in range(SIZE)),
                       "alltoall": sum((1000 * r + rank) * (r + 1) for r in range(SIZE)), "short": ring[8], "long": ring[300000],
                       "put": 100 + before, "added": sum(range(SIZE)) if rank == 0 else 0}
    return found


def results(text: str) -> "dict[int, dict[str, int]]":
    found: "dict[int, dict[str, int]]" = {rank: {} for rank in range(SIZE)}
    for rank, name, value in re.findall(r"^rank (\d+): ([a-z ]+) (-?\d+)$", text, re.M):
        found[int(rank)][name] = int(value)
    return found


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class Pmix(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("pmix", nodes=NODES))
        cls.cluster.work.chmod(0o777)
        cls.program = cls.cluster.work / "mpi_program"
        subprocess.run(["mpicc", "-O1", "-o", str(cls.program), str(TOP / "tests" / "system" / "mpi_program.c")], check=True)

    def srun(self, *options: str, job: str = "mpi", settings: "list[str]" = MPI_SETTINGS) -> "list[str]":
        return ["env", *settings, "srun", "--job-name", job, f"-N{NODES}", f"-n{SIZE}",
                f"--ntasks-per-node={RANKS_HERE}", "--overcommit", *options]

    def elastic(self, *arguments: str, job: str = "mpi", settings: "list[str]" = MPI_SETTINGS) -> "list[str]":
        return [*self.srun("--dlrover-elastic", "--dlrover-pmix=yes", job=job, settings=settings), str(self.program), *arguments]

    def expect_generations(self, job: str, count: int) -> str:
        """How many worlds there were; all that the time line says."""
        events = self.cluster.events(self.cluster.job_id(job))
        worlds = {str(e.get("generation")) for e in events if e["kind"] == "world-published"}
        text = "\n".join(f"{e['kind']} {e['text']}" for e in events)
        self.assertEqual(len(worlds), count, text)
        return text

    def test_the_same_results_as_under_slurms_own(self) -> None:
        ours = self.cluster.run(*self.elastic())
        self.assertEqual(ours.returncode, 0, ours.stdout + ours.stderr)
        self.assertEqual(results(ours.stdout), expected())
        for _ in range(3):  # nothing of it is ours: seen once each, Open MPI under Slurm's plugin crashed as it began, and never ended
            slurms = self.cluster.run("timeout", "--kill-after=10", "60", *self.srun("--mpi=pmix", "--dlrover-elastic=off"), str(self.program))
            if slurms.returncode == 0:
                break
            print(f"under Slurm's own plugin: {slurms.returncode}, once more\n{slurms.stdout}{slurms.stderr}")
        self.assertEqual(slurms.returncode, 0, slurms.stdout + slurms.stderr)
        self.assertEqual(results(slurms.stdout), results(ours.stdout))
        expect_nothing_left(self.cluster)

    def test_over_ucx(self) -> None:
        done = self.cluster.run(*self.srun("--dlrover-elastic", "--dlrover-pmix=yes", job="ucx", settings=UCX_SETTINGS), str(self.program))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(results(done.stdout), expected())
        expect_nothing_left(self.cluster)

    def test_a_killed_rank_ends_the_others_and_all_begin_again(self) -> None:
        for way, settings in (("ob1", MPI_SETTINGS), ("ucx", UCX_SETTINGS)):
            with self.subTest(way):
                files = folder(self.cluster, f"die-{way}")
                done = self.cluster.run(*self.elastic("die", str(files), job=f"killed-{way}", settings=settings))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertTrue((files / "died").exists())
                self.assertEqual(results(done.stdout), expected())
                self.expect_generations(f"killed-{way}", 2)
                expect_nothing_left(self.cluster)

    def test_a_rank_that_aborts_ends_the_others_and_all_begin_again(self) -> None:
        done = self.cluster.run(*self.elastic("abort", str(folder(self.cluster, "abort")), job="aborted"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(results(done.stdout), expected())
        self.expect_aborted("aborted", 77, "N/A")  # Open MPI has no other words
        expect_nothing_left(self.cluster)

    def test_the_words_of_a_rank_that_aborts(self) -> None:
        self.expect_words("abort")

    def test_a_rank_that_aborts_and_stays_is_ended_and_the_others_with_it(self) -> None:
        self.expect_words("abort-and-stay")

    def expect_words(self, how: str) -> None:
        program = build(self.cluster, "pmix_program")
        done = self.cluster.run("timeout", "100", *self.srun("--dlrover-elastic", "--dlrover-pmix=yes", job=f"{how}-words"), program, how, str(folder(self.cluster, f"{how}-words")))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(2 * [f"rank {rank}: size {SIZE}" for rank in range(SIZE)]))
        self.expect_aborted(f"{how}-words", 78, "the paper is used up")
        expect_nothing_left(self.cluster)

    def expect_aborted(self, job: str, status: int, words: str) -> None:
        """Rank 1 has, with this status, in the first of two generations; it is said once."""
        self.expect_generations(job, 2)
        events = self.cluster.events(self.cluster.job_id(job))
        first = next(e["generation"] for e in events if e["kind"] == "world-published")
        said = [(e["rank"], e["generation"]) for e in events if e["text"] == f"The program aborted with status {status}: {words}."]
        self.assertEqual(said, [(1, first)], "\n".join(e["text"] for e in events))
        failed = [(e["rank"], e["text"].partition(" on ")[0], e["text"].partition(" exited with ")[2]) for e in events if e["kind"] == "worker-failed"]
        self.assertEqual(failed, [(1, "rank 1", f"code {status}")])

    def expect_published(self, job: str, *command: str) -> str:
        """Each rank of the program finds what all have published, in two generations, and in the second what the first had left."""
        done = self.cluster.run(*self.srun("--dlrover-elastic", "--dlrover-pmix=yes", job=job), *command)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        first, second = (sum(base + rank for rank in range(SIZE)) for base in (100, 1000))
        found = [(int(rank), name, int(value)) for rank, name, value in re.findall(r"^rank (\d+): (left|published) (-?\d+)$", done.stdout, re.M)]
        self.assertEqual(sorted(found), sorted((rank, name, value) for rank in range(SIZE)
                                               for name, value in (("published", first), ("left", first), ("published", second))))
        self.expect_generations(job, 2)
        expect_nothing_left(self.cluster)
        return done.stdout

    def test_what_is_published_outlives_a_generation(self) -> None:
        text = self.expect_published("publish", build(self.cluster, "pmix_program"), "publish", str(folder(self.cluster, "publish")))
        numbers = re.findall(r"^rank \d+: group (\d+)$", text, re.M)
        self.assertEqual(len(numbers), 2 * SIZE)
        self.assertNotIn("0", numbers)
        self.assertLessEqual(len(set(numbers)), 2, "one for each generation")

    def test_a_group_by_invitation(self) -> None:
        done = self.cluster.run(*self.srun("--dlrover-elastic", "--dlrover-pmix=yes", job="invite"), build(self.cluster, "pmix_invite"), str(SIZE))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = sorted((int(rank), name, int(value)) for rank, name, value in re.findall(r"^rank (\d+): (\w+) (-?\d+)$", done.stdout, re.M))
        self.assertEqual(said, sorted([(0, "invite", 0), *((rank, "join", 0) for rank in range(1, SIZE)), *((rank, "complete", 1) for rank in range(SIZE))]))

    @unittest.skipUnless(PYTHON_PMIX, "needs Debian's python3-pmix")
    def test_a_client_in_python(self) -> None:
        files = folder(self.cluster, "python")
        self.expect_published("python", "/usr/bin/python3", str(TOP / "tests" / "system" / "pmix_python.py"), str(files), str(event_code("GENERATION")))
        heard = {path.name: path.read_text() for path in files.glob("heard-*")}
        self.assertEqual(set(heard), {f"heard-{rank}" for rank in range(SIZE) if rank != 1})
        self.assertTrue(all("rank 1" in text for text in heard.values()), heard)

    @unittest.skipUnless(MPI4PY, "needs Debian's python3-mpi4py")
    def test_mpi4py(self) -> None:
        program = TOP / "tests" / "system" / "mpi4py_program.py"
        done = self.cluster.run(*self.srun("--dlrover-elastic", job="mpi4py"), "/usr/bin/python3", str(program))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        expected_lines = {f"rank {rank}: {what}" for rank in range(SIZE) for what in (f"allreduce {4 * SIZE * (SIZE + 1) // 2}", "looked up 1")}
        self.assertEqual({line for line in done.stdout.splitlines() if line.startswith("rank ")}, expected_lines)
        expect_nothing_left(self.cluster)

    @unittest.skipUnless(MPI4PY, "needs Debian's python3-mpi4py")
    def test_mpi4py_goes_on_from_memory(self) -> None:
        files, packages = folder(self.cluster, "mpi4py"), (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        done = self.cluster.run(*self.srun("--dlrover-elastic", "--dlrover-pmix=yes", job="mpi4py-dies"), "/usr/bin/python3",
                                str(TOP / "tests" / "system" / "mpi4py_restart.py"), packages, str(files))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((files / "died").exists())
        found = [re.fullmatch(r"rank (\d+): from step (\d+): (\d+)", line) for line in done.stdout.splitlines() if line.startswith("rank ")]
        self.assertEqual({int(f[1]) for f in found}, set(range(SIZE)))
        begun = {int(f[2]) for f in found}
        self.assertEqual(len(begun), 1, "all from one step")
        self.assertGreaterEqual(min(begun), 20, "the newest step that all have saved is the one before, or the last")
        self.assertEqual({int(f[3]) for f in found}, {1000 * sum(range(30)) * SIZE * (SIZE + 1) // 2})
        self.expect_generations("mpi4py-dies", 2)
        expect_nothing_left(self.cluster)

    def test_a_killed_server_costs_a_generation(self) -> None:
        files = folder(self.cluster, "hold")
        process = self.cluster.start(*self.elastic("hold", str(files), job="server"))
        held = [files / f"held-{rank}" for rank in range(SIZE)]
        wait_until(lambda: all(file.exists() for file in held), 60, "ranks in the midst of the program")
        running = servers(self.cluster)
        self.assertEqual({node for node, _ in running}, set(self.cluster.nodes))
        for _, server in running:
            self.assertNotEqual(server.uid, 0)
            self.assertRegex(pathlib.Path(f"/proc/{server.pid}/status").read_text(), r"NoNewPrivs:\s+1\n")
        os.kill(running[-1][1].pid, signal.SIGKILL)
        for file in held:
            file.unlink()
        wait_until(lambda: all(file.exists() for file in held), 60, "ranks of the next generation")
        (files / "go").touch()
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(results(out), expected())
        self.expect_generations("server", 2)
        # Which files its ranks had registered it alone knew.
        left = files_on_nodes(self.cluster, SEGMENTS)
        self.assertEqual({path.name.split(".")[1] for path in left} - {running[-1][0]}, set(), left)
        for path in left:
            path.unlink()
        expect_nothing_left(self.cluster)


if __name__ == "__main__":
    unittest.main()
