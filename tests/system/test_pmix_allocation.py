# SPDX-License-Identifier: Apache-2.0
"""A rank of an elastic step asks for nodes beside the group's own (PMIX_ALLOC_NEW): a job of its user's, within the site's limits."""

import re
import subprocess
import time
import unittest

from cluster import PATIENCE, Cluster, prefix, stopped, wait_until
from events_case import ask
from pmix_case import MISSING, build, folder

CLOSED = "PartitionName=closed Nodes=n1,n2,n3,n4 RootOnly=YES"
OTHERS = "PartitionName=others Nodes=n1,n2,n3,n4 AllowGroups=slurm"
LONG = "PartitionName=long Nodes=n1,n2,n3,n4 MaxTime=60"
PLUGIN = """
function slurm_job_submit(job, partitions, uid)
    job.admin_comment = "asked by " .. uid
    if string.find(job.comment or "", "never") then return slurm.ESLURM_INVALID_LICENSES end
    if string.find(job.comment or "", "slow") then os.execute("sleep 12") end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
"""
SUCCESS, NO_PERMISSIONS, TIMEOUT, BAD_PARAM, BUSY, OUT_OF_RESOURCE, NOT_FOUND, REFUSED = 0, -23, -24, -27, -28, -29, -46, -188


@unittest.skipIf(MISSING, "needs " + " and ".join(MISSING))
class NewAllocation(unittest.TestCase):
    def setUp(self) -> None:
        settings = [word for text in (CLOSED, OTHERS, LONG, "EnforcePartLimits=ALL") for word in ("--conf", text)]
        self.cluster = self.enterContext(Cluster("pmixalloc", nodes=4, arguments=tuple(settings)))
        self.cluster.work.chmod(0o777)
        self.files = folder(self.cluster, "allocate")
        self.process = self.start(self.files, "asks")
        self.job = self.cluster.job_id("asks")

    def start(self, files, name: str) -> subprocess.Popen:
        """Two nodes of two ranks each, as whole nodes, for an hour."""
        program = self.cluster.work / "pmix_allocate"
        if not program.exists():
            build(self.cluster, "pmix_allocate")
        process = self.cluster.start("srun", "--job-name", name, "-N2", "-wn1,n2", "--ntasks-per-node=2", "--exclusive", "--time=60",
                                     "--dlrover-elastic", "--dlrover-pmix=yes", str(program), str(files))
        self.addCleanup(lambda: process.poll() is None and process.terminate())
        wait_until(lambda: (files / "fences").exists() or process.poll() is not None, 60, "ranks that meet")
        return process

    def ask(self, what: str) -> "tuple[int, dict[str, str]]":
        code, *lines = ask(self.process, self.files, what).splitlines()
        return int(code), dict(line.split("=", 1) for line in lines)

    def expect(self, what: str, code: int = SUCCESS) -> "dict[str, str]":
        got, values = self.ask(what)
        if got != code:
            self.fail(f"{what}: {got} {values}, {self.ask('why')}")
        return values

    def why(self) -> str:
        return self.expect("why")["dlrover.refusal"]

    def state(self, job: str) -> str:
        return self.expect(f"status id={job}")["pmix.query.alloc"]

    def field(self, job: str, form: str) -> str:
        return self.cluster.run("squeue", "-h", "-j", job, "-o", form, user="root").stdout.strip()

    def fences(self) -> int:
        return int((self.files / "fences").read_text())

    def let_end(self) -> None:
        (self.files / "last").write_text(f"{self.fences() + 200}\n")
        out, err = self.process.communicate(timeout=120)
        self.assertEqual(self.process.returncode, 0, out + err)

    def release(self, job: str) -> None:
        self.expect(f"release id={job}")
        self.assertEqual(self.state(job), "ended")
        self.expect(f"release id={job}")  # once more is no failure

    def test_a_node_beside_the_groups_own(self) -> None:
        given = self.expect("new nodes=1 label=the-tests")
        job = given["pmix.alloc.id"]
        self.assertEqual(set(given), {"pmix.alloc.id", "pmix.alloc.reqid", "pmix.alloc.nlist"})
        self.assertEqual(given["pmix.alloc.reqid"], "the-tests")
        node = given["pmix.alloc.nlist"]
        self.assertIn(node, {"n3", "n4"})
        self.assertEqual(self.state(job), f"running: {node}")
        self.assertEqual(self.field(job, "%u %P %j %N %k"), f"alice main dlrover-{self.job}-new {node} dlrover-new:{self.job} the-tests")
        self.assertRegex(self.field(job, "%l"), r"^(59|1:00):00$", "as long as the job that asks has")
        there = self.cluster.run("srun", f"--jobid={job}", "--ntasks=1", "hostname")
        self.assertEqual((there.returncode, there.stdout.strip()), (0, node), there.stderr)
        self.assertIn(" NumTasks=2 ", self.cluster.run("scontrol", "-o", "show", "job", job).stdout, "as many as the step has on a node")
        self.release(job)

        timed = self.expect("new nodes=2 time=90 queue=long")
        job = timed["pmix.alloc.id"]
        self.assertEqual(timed["pmix.alloc.nlist"], "n3,n4")
        self.assertEqual(self.field(job, "%P %l %D"), "long 2:00 2")
        # More than are free: it waits, is told why, and is released unseen.
        waits = self.expect("new nodes=1")
        self.assertEqual(set(waits), {"pmix.alloc.id"})
        wait_until(lambda: self.state(waits["pmix.alloc.id"]) in ("waiting: Resources", "waiting: Priority"), 30, "Slurm's reason", 0.2)
        self.release(waits["pmix.alloc.id"])
        # It is the user's own, whatever becomes of the job that has asked.
        self.let_end()
        self.assertEqual(self.field(job, "%T"), "RUNNING")
        self.assertEqual(self.cluster.run("scancel", job).returncode, 0)
        wait_until(lambda: not self.cluster.run("squeue", "-h", user="root").stdout.strip(), 30, "an empty queue", 0.2)
        self.cluster.expect_clean()

    def test_what_slurm_does_not_grant_its_user(self) -> None:
        for what, reason in (("new nodes=5", "Node count specification invalid"), ("new nodes=1 queue=nowhere", "nvalid partition name")):
            self.expect(what, REFUSED)
            self.assertIn(reason, self.why())
        # Root could have them.
        self.expect("new nodes=1 queue=closed", NO_PERMISSIONS)
        self.assertIn("Access/permission denied", self.why())
        code, _ = self.ask("new nodes=1 queue=others")
        self.assertIn(code, (REFUSED, NO_PERMISSIONS))
        self.assertIn("group not permitted", self.why())
        for words in ("new nodes=1 queue=closed", "new nodes=1 queue=others"):
            queue = words.rpartition("=")[2]
            root = self.cluster.run("salloc", "--no-shell", "-N1", f"--partition={queue}", user="root")
            self.assertEqual(root.returncode, 0, root.stderr)
        self.cluster.run("scancel", "--user=root", user="root")

        own = self.cluster.run("salloc", "--no-shell", "-N1", "--mem=100")
        foreign = re.search(r"job allocation (\d+)", own.stderr)[1]
        for what in (f"status id={foreign}", f"release id={foreign}", f"release id={self.job}", f"status id={self.job}"):
            self.expect(what, NO_PERMISSIONS)
            self.assertIn(f"is not one that ranks of job {self.job} have asked for", self.why())
        self.assertEqual(self.field(foreign, "%T"), "RUNNING")
        self.cluster.run("scancel", foreign)
        self.expect("status id=9999", NOT_FOUND)
        for what in ("status", "status id=x", "release id=9999 nodes=1", "new", "new nodes=1 time=0"):
            self.expect(what, BAD_PARAM)

    def test_as_many_as_a_job_may_have(self) -> None:
        jobs = [self.expect("new nodes=2")["pmix.alloc.id"] for _ in range(16)]
        self.assertEqual(len(set(jobs)), 16)
        self.expect("new nodes=1", OUT_OF_RESOURCE)
        self.assertEqual(self.why(), f"16 allocations that job {self.job} has asked for wait or run")
        self.release(jobs[-1])
        self.release(self.expect("new nodes=2")["pmix.alloc.id"])
        self.let_end()

    def test_the_program_by_hand(self) -> None:
        program = next(prefix().rglob("dlrover-allocate"))
        words = [str(program), "new", str(self.job), "0", "1"]
        other = self.cluster.run(*words, user="bob")
        self.assertEqual((other.returncode, other.stdout), (1, f"answer refused permission job {self.job} is another user's\n"))
        self.assertEqual(self.cluster.run(*words, "nice=-5").returncode, 2)
        made = self.cluster.run(*words, "label=by hand")
        job = re.fullmatch(r"answer running (\d+) n[34]\n", made.stdout)[1]
        self.assertEqual(self.field(job, "%k"), f"dlrover-new:{self.job} by hand")
        for what, answer in (("status", "refused permission"), ("release", "refused permission")):
            self.assertIn(answer, self.cluster.run(str(program), what, str(self.job), job, user="bob").stdout)
        self.assertEqual(self.cluster.run(str(program), "release", str(self.job), job).stdout, f"answer ended {job} \n")
        # A job of which nobody hears is cancelled.
        self.cluster.run("sh", "-c", " ".join(words) + " | true")
        last = self.cluster.run("squeue", "-h", "-t", "all", "-n", f"dlrover-{self.job}-new", "-S", "-i", "-o", "%i %T", user="root").stdout.splitlines()
        self.assertEqual(len(last), 2, last)
        wait_until(lambda: self.field(last[0].split()[0], "%T") in ("CANCELLED", ""), 10, "a job taken back")
        self.let_end()

    def test_the_sites_plugin_has_its_say(self) -> None:
        self.cluster.control("stop-slurmctld")
        with (self.cluster.folder / "etc" / "slurm.conf").open("a") as conf:
            conf.write("JobSubmitPlugins=lua\n")
        (self.cluster.folder / "etc" / "job_submit.lua").write_text(PLUGIN)
        self.cluster.control("start-slurmctld")
        wait_until(lambda: self.cluster.run("squeue", "-h", user="root").returncode == 0, 30, "slurmctld", 0.2)
        job = self.expect("new nodes=1")["pmix.alloc.id"]
        uid = self.cluster.run("id", "-u").stdout.strip()
        self.assertIn(f"AdminComment=asked by {uid} ", self.cluster.run("scontrol", "-o", "show", "job", job, user="root").stdout)
        self.release(job)
        self.expect("new nodes=1 label=never", REFUSED)
        self.assertIn("license", self.why())
        # Slurm has it in hand for longer than is waited for, and then cancels a job of which it can not tell.
        self.expect_no_answer_of_slurm("label=slow")
        wait_until(lambda: f"dlrover-new:{self.job} slow CANCELLED" in self.jobs("%k %T", "-t", "all"), 30, "a job that was made unseen, and cancelled", 0.5)
        self.let_end()

    def test_while_slurm_is_away_ranks_go_on(self) -> None:
        before = self.jobs()
        with stopped([next(host["slurmctld"] for host in self.cluster.describe()["hosts"] if host["host"] == "ctl")]):
            self.expect_no_answer_of_slurm()
        self.assertEqual(self.jobs(), before, "nothing was made unseen")
        self.cluster.control("stop-slurmctld")
        self.expect_no_answer_of_slurm()
        self.cluster.control("start-slurmctld")
        wait_until(lambda: self.cluster.run("squeue", "-h", user="root").returncode == 0, 30, "slurmctld", 0.2)
        self.assertEqual(self.jobs(), before)
        self.release(self.expect("new nodes=1")["pmix.alloc.id"])
        self.let_end()

    def jobs(self, form: str = "%i", *words: str) -> str:
        return self.cluster.run("squeue", "-h", "-o", form, *words, user="root").stdout

    def expect_no_answer_of_slurm(self, words: str = "") -> None:
        """In time, with words, and the other ranks go on meanwhile."""
        before, began = self.fences(), time.monotonic()
        code, _ = self.ask(f"new nodes=1 {words}")
        took, fences = time.monotonic() - began, self.fences() - before
        print(f"answer {code} after {took:.1f} s and {fences} fences: {self.why()}")
        self.assertIn(code, (TIMEOUT, BUSY))
        self.assertLess(took, 12 * PATIENCE)
        self.assertGreater(fences, 5 * took, "fences by the second")


if __name__ == "__main__":
    unittest.main()
