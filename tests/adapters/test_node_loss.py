# SPDX-License-Identifier: Apache-2.0
"""An FSDP2 model loses a node under Slurm (contrib/minicluster), and ends with the weights of the undisturbed run. There are checkpoints on storage, and
nobody reads them. Where there is no other node, fewer ranks have the same state in other shards."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "system"))
if not os.environ.get("DLROVER_PREFIX") or os.geteuid() != 0:
    pytest.skip("needs root and an installation in DLROVER_PREFIX", allow_module_level=True)
from cluster import NIGHTLY, TOP, Cluster, prefix, wait_until
from loss_case import FROM_STORAGE

STEPS, SECONDS = 40, 0.1


class Training:
    def __init__(self, cluster: Cluster, label: str, *options: str) -> None:
        self.cluster, self.folder = cluster, cluster.work / label
        self.folder.mkdir()
        self.folder.chmod(0o777)
        path = f"{(prefix() / 'share/dlrover-slurm/pythonpath').read_text().strip()}:{TOP / 'tests/adapters'}"
        with open(self.folder / "output", "w") as out:
            self.srun = cluster.start("srun", "--job-name", label, "--ntasks-per-node=1", "--mem=1500", f"--export=ALL,PYTHONPATH={path},OMP_NUM_THREADS=1",
 "--dlrover-redundancy=partner:1", *options, sys.executable,
                                      str(TOP / "tests/adapters/sharded_training.py"), str(STEPS), str(SECONDS), str(self.folder / "digest"), stdout=out, stderr=subprocess.STDOUT)
        self.job = cluster.job_id(label)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def status(self) -> dict:
        done = self.cluster.run("dlrover", "status", str(self.job), "--json", user="root", node="n1")
        groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
        return groups[0] if groups else {}

    def safe_step(self) -> int:
        return (self.status().get("copies") or {}).get("safe_step", -1)

    def stored_step(self) -> int:
        return (self.status().get("storage") or {}).get("stored_step", -1)

    def told(self) -> "list[tuple[str, int, int, str]]":
        """(saves or resumed, step, ranks, digest of the whole state)"""
        found = re.findall(r"^(saves|resumed) step (\d+) with (\d+) ranks: (\w+)$", self.output(), re.MULTILINE)
        return [(what, int(step), int(ranks), text) for what, step, ranks, text in found]

    def digest(self) -> str:
        assert self.srun.wait(180) == 0, self.output()
        return (self.folder / "digest").read_text()


@pytest.fixture(scope="module")
def cluster():
    with Cluster("sharded", nodes=4, arguments=("--slurmdbd", "--conf", "CPUs=32")) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(cluster):
    return Training(cluster, "undisturbed", "-w", "n[1-3]", "--dlrover-elastic").digest()


@pytest.mark.parametrize("number", range(10 if NIGHTLY else 1))
def test_fsdp2_loses_a_node(cluster, undisturbed, number):
    training = Training(cluster, f"disturbed-{number}", "-N4", "--dlrover-elastic=2:3", "--dlrover-spares=1",
                        f"--dlrover-ckpt-dir={cluster.work / f'disturbed-{number}' / 'stored'}", "--dlrover-ckpt-every=3")
    wait_until(lambda: training.safe_step() >= 5, 120, "safe steps", 0.05)
    wait_until(lambda: training.stored_step() >= 1, 60, "a step on storage", 0.05)
    victim = training.status()["ranks"][-1]["node"]
    assert victim != "n1"
    safe = training.safe_step()
    cluster.lose(victim, power=number % 2 == 0)
    try:
        assert training.digest() == undisturbed
    finally:
        cluster.control("kill-node", victim, check=False)  # which was only cut off, it may be
        cluster.start_node(victim)
        print(training.output()[-2000:])
    resumed = {step for what, step, _, _ in training.told() if what == "resumed"}
    assert len(resumed) == 1 and min(resumed) >= safe, f"resumed after {resumed}, step {safe} was safe"
    story = story_of(cluster, training)
    assert "fetched from" in story and not re.search(FROM_STORAGE, story)
    cluster.expect_clean(30)


def story_of(cluster, training):
    return "\n".join(event["text"] for event in cluster.events(training.job))


def test_fsdp2_goes_on_in_other_shards(cluster):
    """Three ranks, of which one's node is lost; two have all that the three have saved. A node that joins later gets its shard of what the two save."""
    training = Training(cluster, "fewer", "-w", "n[1-3]", "--dlrover-elastic=2:3")
    wait_until(lambda: training.safe_step() >= 5, 120, "safe steps", 0.05)
    safe = training.safe_step()
    cluster.lose("n3")
    try:
        training.digest()
    finally:
        cluster.start_node("n3")
        print(training.output()[-2000:])
    saved, worlds = {}, []
    for what, step, ranks, text in training.told():
        if what == "saves":
            saved[step] = text
            continue
        worlds.append((ranks, step))
        assert text == saved[step], f"{ranks} ranks have something else of step {step} than was saved"
    assert worlds[0][0] == 2 and worlds[0][1] >= safe, worlds
    assert not re.search(FROM_STORAGE, story_of(cluster, training))
    cluster.expect_clean(30)
