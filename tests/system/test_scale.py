# SPDX-License-Identifier: Apache-2.0
"""A running job gets fewer nodes and more again (dlrover scale): nothing is lost, what is not wanted goes back to Slurm, and comes back as a job of one node."""

import json
import re
import unittest

from cluster import Cluster, prefix, wait_until
from events_case import ask
from heat import Run, reference, start_with_copies
from pmix_case import MISSING, build, folder

SIZE, STEPS = 256, 24000  # Slurm may look at its queue once a minute only


class Scale(unittest.TestCase):
    def start(self) -> Run:
        """Four nodes of two ranks; n2 leads. With slurmdbd: without it Slurm changes a job's size only once."""
        cluster = Cluster("scale", nodes=4, arguments=("--slurmdbd",))
        self.addCleanup(cluster.__enter__().__exit__, None, None, None)
        run = start_with_copies(cluster, "scale", nodes=4, spares=0, size=SIZE, steps=STEPS, save_every=5, step_us=4000, ballast_mb=0, options=("--dlrover-elastic=2:4",))
        self.addCleanup(lambda: run.running() and run.process.terminate())
        return run

    def scale(self, run: Run, nodes: int, *words: str, user: str = ""):
        options = {"user": user} if user else {}
        return run.cluster.run("dlrover", "scale", str(run.job_id()), str(nodes), *words, node="n1", **options)

    def job_nodes(self, run: Run) -> str:
        return run.cluster.run("squeue", "-h", "-j", str(run.job_id()), "-o", "%D", user="root", check=True).stdout.strip()

    def expect_end(self, run: Run) -> None:
        wait_until(lambda: not run.running(), 180, "the end")
        self.assertEqual(run.finish(1), 0, run.output() + run.time_line())
        self.assertEqual(run.violations(), "")
        self.assertEqual(run.out.read_bytes(), reference(run.cluster, SIZE, STEPS), "the field differs from the undisturbed one")
        wait_until(lambda: not run.cluster.run("squeue", "-h", user="root").stdout.strip(), 30, "an empty queue", 0.2)

    def test_four_nodes_three_and_four_again(self) -> None:
        run = self.start()
        budget = run.status("n1")["restarts_left"]
        for nodes, text in ((1, "it can have 2 to 4 nodes (--dlrover-elastic=2:4), not 1"), (5, "not 5")):
            refused = self.scale(run, nodes)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn(text, refused.stderr)
        self.assertEqual(self.scale(run, 3, user="nobody").returncode, 3)
        self.assertEqual(run.status("n1")["wanted_nodes"], 4)

        done = self.scale(run, 3)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + run.time_line())
        self.assertIn("has 3 nodes now, with 6 ranks.", done.stdout)
        self.assertEqual(run.nodes_with_ranks("n1"), ["n1", "n2", "n3"])
        group = run.status("n1")
        self.assertEqual((group["world_nodes"], group["wanted_nodes"], group["restarts_left"]), (3, 3, budget))
        self.assertIn("3 of 3 wanted", run.cluster.run("dlrover", "status", str(run.job_id()), node="n1").stdout)
        wait_until(lambda: self.job_nodes(run) == "3", 30, "a node given back", 0.2)
        self.assertIn("n4 removed: given back to Slurm", run.time_line())
        wait_until(lambda: "idle" in run.cluster.run("sinfo", "-h", "-n", "n4", "-o", "%T", user="root").stdout, 30, "n4 free", 0.2)

        done = self.scale(run, 4)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + run.time_line())
        self.assertEqual(sorted(run.nodes_with_ranks("n1")), ["n1", "n2", "n3", "n4"])
        self.assertEqual(run.status("n1")["restarts_left"], budget)
        self.expect_end(run)
        self.assertNotIn("two-node check", run.time_line())
        self.assertNotIn("checked in", run.time_line(), "nobody had lost it")

    def test_without_anything_to_go_on_from_it_is_refused(self) -> None:
        cluster = Cluster("scale", nodes=2)
        self.addCleanup(cluster.__enter__().__exit__, None, None, None)
        run = Run(cluster, "alone", srun=("--dlrover-elastic=1:2",), size=SIZE, steps=1500, step_us=4000).start()
        self.addCleanup(lambda: run.running() and run.process.terminate())
        run.wait_for_steps()
        refused = self.scale(run, 1)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn("it has no copies in memory (--dlrover-redundancy) and no folder (--dlrover-ckpt-dir)", refused.stderr)


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class PmixScale(unittest.TestCase):
    """A rank of the program itself says how many nodes it wants."""

    def status(self) -> dict:
        done = self.cluster.run("dlrover", "status", str(self.job), "--json", user="root", node=self.cluster.nodes[0], check=True)
        return json.loads(done.stdout)["groups"][0]

    def ask(self, what: str) -> str:
        return ask(self.process, self.files, what)

    def heard(self, nodes: int, ranks: int) -> bool:
        """Each of the first so many ranks has."""
        return all(f"allocation\tdlrover.node.count={nodes}\n" in (self.files / f"heard-{rank}").read_text() for rank in range(ranks))

    def reasons(self, rank: int) -> "list[str]":
        """Why the generations ended, as this rank has heard it."""
        return re.findall(r" generation\t.*\bdlrover\.reason=(.*)$", (self.files / f"heard-{rank}").read_text(), re.M)

    def expect_reasons(self, *reasons: str) -> None:
        """Of the two ranks that are there all the time."""
        wait_until(lambda: self.reasons(0) == self.reasons(1) == list(reasons), 30, f"ranks 0 and 1 heard {reasons}", 0.2)

    def slurm_nodes(self) -> int:
        """Of the user's jobs, as Slurm counts them: nodes that come are jobs of their own until they are moved."""
        return sum(int(line) for line in self.cluster.run("squeue", "-h", "-t", "running", "-o", "%D", user="root", check=True).stdout.split())

    def expect_slurm_nodes(self, nodes: int) -> None:
        wait_until(lambda: self.slurm_nodes() == nodes, 60, f"{nodes} nodes by Slurm's count", 0.2)

    def wait_for_nodes(self, nodes: int) -> None:
        wait_until(lambda: self.status()["world_nodes"] == nodes and self.status()["state"] == "running", 90, f"{nodes} nodes", 0.2)

    def test_a_rank_releases_a_node_and_asks_for_one(self) -> None:
        self.cluster = self.enterContext(Cluster("pmixscale", nodes=3, arguments=("--slurmdbd",)))
        self.cluster.work.chmod(0o777)
        self.files = folder(self.cluster, "events")
        lib = prefix() / "lib"
        program = build(self.cluster, "pmix_events", f"-I{prefix() / 'include'}", f"-L{lib}", "-ldlrover", f"-Wl,-rpath,{lib}")
        self.process = self.cluster.start("srun", "--job-name", "ask", "-N3", "--ntasks-per-node=1", "--mem=400", "--dlrover-elastic=2:3", "--dlrover-pmix=yes",
                                          "--dlrover-redundancy=partner:1", f"--dlrover-ckpt-dir={folder(self.cluster, 'storage')}", "--dlrover-ckpt-every=20", program, str(self.files))
        self.addCleanup(lambda: self.process.poll() is None and self.process.terminate())
        wait_until(lambda: len(list(self.files.glob("heard-*"))) == 3 or self.process.poll() is not None, 60, "three ranks")
        self.job = self.cluster.job_id("ask")
        self.assertEqual(self.ask("why"), "NOT-FOUND")
        limits = "it can have 2 to 3 nodes (--dlrover-elastic=2:3), not"
        self.assertEqual(self.ask("extend 1"), "OUT-OF-RESOURCE")
        self.assertEqual(self.ask("why"), f"{limits} 4")
        self.assertEqual(self.ask("release 2"), "BAD-PARAM")
        self.assertEqual(self.ask("why"), f"{limits} 1")
        self.expect_slurm_nodes(3)
        self.assertEqual(self.ask("release 1"), "SUCCESS")
        self.wait_for_nodes(2)
        self.expect_slurm_nodes(2)
        wait_until(lambda: self.heard(2, ranks=2), 30, "ranks that hear of two nodes", 0.2)
        fewer = "1 node fewer wanted (dlrover scale)"
        self.expect_reasons(fewer)
        self.assertEqual(self.ask("extend 1"), "SUCCESS")
        self.wait_for_nodes(3)
        self.expect_slurm_nodes(3)
        wait_until(lambda: self.heard(3, ranks=2), 30, "ranks that hear of three nodes", 0.2)  # the third rank came with the third node
        self.expect_reasons(fewer, "1 node has joined")
        last = self.status()["copies"]["safe_step"] + 200  # no rank is there yet
        (self.files / "go.new").write_text(f"{last}\n")
        (self.files / "go.new").rename(self.files / "go")
        out, err = self.process.communicate(timeout=60)
        self.assertEqual(self.process.returncode, 0, out + err)
        texts = [event["text"] for event in self.cluster.events(self.job)]
        self.assertTrue(any("request for 1 node more is refused: it can have 2 to 3 nodes" in text for text in texts), texts)


if __name__ == "__main__":
    unittest.main()
