# SPDX-License-Identifier: Apache-2.0
"""What `dlrover node check` says, with sites that allow much and little."""

import json
import os
import signal
import unittest

from cluster import Cluster, wait_until

SCHEDULER = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0"


class NodeCheck(unittest.TestCase):
    def cluster(self, name: str, *arguments: str) -> Cluster:
        cluster = Cluster(name, nodes=2, arguments=arguments)
        self.addCleanup(cluster.__enter__().__exit__, None, None, None)
        return cluster

    def check(self, cluster: Cluster, node: str = "n1", user: str = "alice", code: int = 0) -> dict:
        done = cluster.run("dlrover", "node", "check", "--json", user=user, node=node)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def rungs(self, checked: dict) -> "dict[str, bool]":
        return {rung["name"]: rung["open"] for rung in checked["ladder"]}

    def facts(self, checked: dict) -> "dict[str, str]":
        return {fact["name"]: fact["state"] for fact in checked["node_facts"]}

    def test_a_site_that_allows_much(self) -> None:
        cluster = self.cluster("generous", "--slurmdbd", "--conf", SCHEDULER + ",permit_job_expansion")
        checked = self.check(cluster)
        self.assertTrue(checked["sound"])
        self.assertTrue(all(self.rungs(checked).values()), checked["ladder"])
        site = checked["site"]
        self.assertTrue(site["database"] and site["job_expansion"] and site["job_shrink"] and site["node_changes"])
        self.assertEqual((site["slurmd_timeout_s"], site["kill_wait_s"], site["cred_expire_s"]), (10, 5, 5))
        self.assertEqual(self.facts(checked), {name: "ok" for name in ("slurmctld", "munge", "network", "keeper", "memory")})
        network = next(fact["text"] for fact in checked["node_facts"] if fact["name"] == "network")
        self.assertIn("eth0", network)
        text = cluster.run("dlrover", "node", "check", user="alice", node="n2", check=True).stdout
        self.assertRegex(text, r"job expansion +open ")
        self.assertEqual(self.facts(self.check(cluster, node="ctl"))["network"], "limited", "no node of the cluster")

        cluster.control("stop-slurmctld")
        checked = self.check(cluster, code=1)
        self.assertIsNone(checked["site"])
        self.assertEqual(self.facts(checked)["slurmctld"], "bad")

    def test_a_site_that_allows_little(self) -> None:
        """Closed rungs are no fault of the node. Another configuration is seen as soon as slurmctld has it."""
        cluster = self.cluster("strict", "--conf", SCHEDULER + ",disable_job_shrink", "--conf", "PrologFlags=Alloc,Contain", "--conf", "JobRequeue=0")
        checked = self.check(cluster, user="root")
        self.assertTrue(checked["sound"])
        self.assertEqual(self.rungs(checked), {"spare": True, "job expansion": False, "companion job": True, "fewer nodes": True, "requeue": True})
        site = checked["site"]
        self.assertEqual((site["database"], site["contain"], site["job_shrink"], site["requeue"]), (False, True, False, False))
        change = next(rung["change"] for rung in checked["ladder"] if rung["name"] == "job expansion")
        self.assertIn("permit_job_expansion", change)

        conf = cluster.folder / "etc" / "slurm.conf"
        conf.write_text(conf.read_text().replace(",disable_job_shrink", ""))
        cluster.run("scontrol", "reconfigure", user="root", check=True)
        wait_until(lambda: self.check(cluster)["site"]["job_shrink"], 20, "shrink allowed", 0.5)

    def test_no_munge(self) -> None:
        cluster = self.cluster("mute")
        munged = next(p for node, p in cluster.processes(user_only=False) if node == "n2" and p.command and p.command[0].endswith("munged"))
        os.kill(munged.pid, signal.SIGKILL)
        self.assertEqual(self.facts(self.check(cluster, node="n2", code=1))["munge"], "bad")
        self.assertEqual(self.facts(self.check(cluster, node="n1"))["munge"], "ok")


if __name__ == "__main__":
    unittest.main()
