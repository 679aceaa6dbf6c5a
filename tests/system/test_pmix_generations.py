# SPDX-License-Identifier: Apache-2.0
"""Generation after generation in one step: PMIx server and daemon hold about as much memory and as many descriptors as after the first ones, and no namespace, file or
socket of a former one is left. Nightly 1000, else a sample."""

import collections
import pathlib
import re
import unittest

from cluster import NIGHTLY, Cluster, prefix, wait_until
from event_codes import event_code
from pmix_case import MISSING, build, expect_nothing_left, folder, servers
from test_steady import descriptors, rss_kib

GENERATIONS, STAYED = (1000, 1000) if NIGHTLY else (100, 40)
NODES, RANKS_HERE = 2, 2
GROWTH_KIB = 2048  # of each process, from the first fifth of the generations to the last
STAY_KIB = 512  # of a client that stays, beyond what libpmix takes
SETENV_KIB = 1  # a generation: glibc keeps every value a variable has had, as a pointer to it may be in use (the addresses of PMIx's server are in five)
#: Connections of ranks that are about to begin or to end.
DESCRIPTORS = 8


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixGenerations(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("pmixgenerations", nodes=NODES))
        self.cluster.work.chmod(0o777)
        self.files = folder(self.cluster, "generations")

    def build(self, name: str) -> str:
        lib = prefix() / "lib"
        return build(self.cluster, name, f"-I{prefix() / 'include'}", f"-L{lib}", "-ldlrover", f"-Wl,-rpath,{lib}")

    def generation(self) -> int:
        file = self.files / "generation"
        return int(file.read_text()) if file.exists() else 0

    def wait_for(self, generation: int) -> None:
        def there() -> bool:
            if self.process.poll() is not None and self.generation() < generation:
                self.fail(f"srun has ended: {self.process.communicate()}")
            return self.generation() >= generation
        wait_until(there, 60 + 5 * generation, f"generation {generation}", 0.01)

    def pids(self) -> "dict[str, int]":
        found = {f"dlrover-pmixd of {node}": p.pid for node, p in servers(self.cluster)}
        for host in self.cluster.describe()["hosts"]:
            if host.get("slurmd"):
                found[f"dlroverd of {host['host']}"] = host["dlroverd"]
        return found

    def measure_now(self) -> "dict[str, tuple[int, int]]":
        """(KiB, descriptors)"""
        return {name: (rss_kib(pid), len(descriptors(pid))) for name, pid in self.pids().items()}

    def measure(self, first: int) -> "dict[str, tuple[int, int]]":
        """The most of some generations: a server may just have begun."""
        samples = []
        for generation in range(first, first + 5):
            self.wait_for(generation)
            samples.append(self.measure_now())
        names = set().union(*samples)  # one that is just beginning anew has not its name yet
        there = {name: [sample[name] for sample in samples if name in sample] for name in names}
        return {name: (max(kib for kib, _ in found), max(count for _, count in found)) for name, found in there.items()}

    def grown(self, begun: "dict[str, tuple[int, int]]") -> "list[str]":
        now = self.measure_now()
        return [name for name, (kib, count) in begun.items() if name not in now or now[name][0] - kib >= GROWTH_KIB or now[name][1] - count > DESCRIPTORS]

    def files_of_pmix(self) -> "collections.Counter[str]":
        """In the agents' private folders, without the numbers in their names."""
        roots = [pathlib.Path(f"/proc/{host['slurmd']}/root") for host in self.cluster.describe()["hosts"] if host.get("slurmd")]
        return collections.Counter(f"{number}: {re.sub('[0-9]+', 'N', str(path.relative_to(root)))}"
                                   for number, root in enumerate(roots) for path in (root / "tmp").glob("dlrover-*/**/*"))

    def files_while_waiting(self, generation: int) -> "collections.Counter[str]":
        """Of one whose ranks are all there and do nothing."""
        self.wait_for(generation)
        wait_until((self.files / f"waits.{generation}").exists, 60, "the generation waits")
        return self.files_of_pmix()

    def test_generations_leave_nothing_behind(self) -> None:
        pause = GENERATIONS // 5 + 10
        self.process = self.cluster.start("srun", "--job-name", "generations", f"-N{NODES}", f"--ntasks-per-node={RANKS_HERE}", "--overcommit", "--mem=400", "--dlrover-elastic", "--dlrover-pmix=yes",
                                          self.build("pmix_generations"), str(self.files), str(GENERATIONS), str(pause))
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())
        begun = self.measure(GENERATIONS // 5)
        early = self.files_while_waiting(pause)
        (self.files / f"go.{pause}").touch()
        self.files_while_waiting(GENERATIONS)
        try:
            wait_until(lambda: not self.grown(begun), 10, "nothing has grown", 0.5)
        finally:
            print(*(f"{name}: {begun[name][0]} KiB and {begun[name][1]} descriptors; {GENERATIONS * 4 // 5} generations later {kib} KiB and {count}"
                    for name, (kib, count) in sorted(self.measure_now().items()) if name in begun), sep="\n")
        self.assertGreater(early.total(), 0)
        try:
            wait_until(lambda: self.files_of_pmix() <= early, 10, f"in generation {GENERATIONS} no more files than in generation {pause}", 0.5)
        finally:
            print(f"generation {pause}: {early}", f"generation {GENERATIONS}: {self.files_of_pmix()}", sep="\n")
        (self.files / f"go.{GENERATIONS}").touch()
        out, err = self.process.communicate(timeout=120)
        self.assertEqual(self.process.returncode, 0, out + err)
        self.assertEqual(self.generation(), GENERATIONS)
        expect_nothing_left(self.cluster)

    def run_clients(self, nodes: int, ranks_here: int, options: "list[str]", *mode: str) -> "dict[int, list[int]]":
        """KiB of each rank that stays, again and again."""
        ranks = [rank for rank in range(nodes * ranks_here) if rank != 1]
        done = self.cluster.run("srun", "--job-name", "stay", f"-N{nodes}", f"--ntasks-per-node={ranks_here}", "--overcommit", "--mem=400", *options,
                                self.build("stay_program"), str(event_code("GENERATION")), str(STAYED), *mode, timeout=120 + 5 * STAYED)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)
        for rank in ranks:
            self.assertEqual(len(set(re.findall(rf"^rank {rank}: pid (\d+)$", done.stdout, re.M))), 0 if mode else 1, f"rank {rank} was started again")
        return {rank: [int(kib) for kib in re.findall(rf"^rank {rank}: kib (\d+)$", done.stdout, re.M)] for rank in ranks}

    def test_clients_that_stay_do_not_grow(self) -> None:
        """All ranks but one are in every generation with one process, each time as a client of another namespace. libpmix 4.2.2 does not give back what
        PMIx_Init has taken, whoever serves it, so they are compared with clients that begin and end as often and do nothing else, under our server and Slurm's."""
        first, last = STAYED // 5, STAYED - 1
        ours, slurms = ["--dlrover-elastic", "--dlrover-pmix=yes", f"--dlrover-max-restarts={STAYED}"], ["--mpi=pmix", "--dlrover-elastic=off"]
        most = {}
        for name, nodes, ranks_here, options, mode in (("generations", NODES, RANKS_HERE, ours, ()), ("times PMIx_Init", 1, 1, ours, ("alone",)),
                                                       ("times PMIx_Init under Slurm's own plugin", 1, 1, slurms, ("alone",))):
            sizes = self.run_clients(nodes, ranks_here, options, *mode)
            self.assertEqual({len(kib) for kib in sizes.values()}, {STAYED})
            grown = {rank: kib[last] - kib[first] for rank, kib in sizes.items()}
            print(f"{last - first} {name} later: " + ", ".join(f"rank {rank} +{kib} KiB" for rank, kib in grown.items()))
            most[name] = max(grown.values())
        self.assertLess(most["generations"] - most["times PMIx_Init"], STAY_KIB + SETENV_KIB * (last - first))
        self.assertLess(most["times PMIx_Init"] - most["times PMIx_Init under Slurm's own plugin"], STAY_KIB)
        expect_nothing_left(self.cluster)


if __name__ == "__main__":
    unittest.main()
