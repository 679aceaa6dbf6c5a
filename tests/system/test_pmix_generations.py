# SPDX-License-Identifier: Apache-2.0
"""Generation after generation in one step: PMIx server and daemon hold about as much memory and as many descriptors as after the first ones, and no namespace, file or
socket of a former one is left. Nightly 1000, else a sample."""

import pathlib
import unittest

from cluster import NIGHTLY, Cluster, prefix, wait_until
from pmix_case import MISSING, build, expect_nothing_left, folder, servers
from test_steady import descriptors, rss_kib

GENERATIONS = 1000 if NIGHTLY else 100
NODES, RANKS_HERE = 2, 2
GROWTH_KIB = 2048  # of each process, from the first fifth of the generations to the last
#: Connections of ranks that are about to begin or to end.
DESCRIPTORS = 8


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixGenerations(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster("pmixgenerations", nodes=NODES))
        self.cluster.work.chmod(0o777)
        self.files = folder(self.cluster, "generations")
        lib = prefix() / "lib"
        self.program = build(self.cluster, "pmix_generations", f"-I{prefix() / 'include'}", f"-L{lib}", "-ldlrover", f"-Wl,-rpath,{lib}")

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

    def files_of_pmix(self) -> "list[str]":
        """In the agents' private folders."""
        roots = [pathlib.Path(f"/proc/{host['slurmd']}/root") for host in self.cluster.describe()["hosts"] if host.get("slurmd")]
        return [str(path) for root in roots for path in (root / "tmp").glob("dlrover-*/**/*")]

    def test_generations_leave_nothing_behind(self) -> None:
        self.process = self.cluster.start("srun", "--job-name", "generations", f"-N{NODES}", f"--ntasks-per-node={RANKS_HERE}", "--overcommit", "--mem=400", "--dlrover-elastic", "--dlrover-pmix=yes",
                                          self.program, str(self.files), str(GENERATIONS))
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())
        begun = self.measure(GENERATIONS // 5)
        files = len(self.files_of_pmix())
        self.wait_for(GENERATIONS)
        try:
            wait_until(lambda: not self.grown(begun), 10, "nothing has grown", 0.5)
        finally:
            print(*(f"{name}: {begun[name][0]} KiB and {begun[name][1]} descriptors; {GENERATIONS * 4 // 5} generations later {kib} KiB and {count}"
                    for name, (kib, count) in sorted(self.measure_now().items()) if name in begun), sep="\n")
        self.assertLessEqual(len(self.files_of_pmix()), files)
        (self.files / "go").touch()
        out, err = self.process.communicate(timeout=120)
        self.assertEqual(self.process.returncode, 0, out + err)
        self.assertEqual(self.generation(), GENERATIONS)
        expect_nothing_left(self.cluster)


if __name__ == "__main__":
    unittest.main()
