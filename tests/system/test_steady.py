# SPDX-License-Identifier: Apache-2.0
"""Thousands of saves cost what one costs: memory and descriptors of trainer, daemon, keeper and writer stay as they are, and processes that the trainer forked
(a data loader's, which live on while it saves) hold nothing of ours. Nightly 10,000 saves, else a sample."""

import json
import os
import pathlib
import time
import unittest

from cluster import NIGHTLY, Cluster, prefix, wait_until

SAVES = 10000 if NIGHTLY else 600
#: Of these, every so many-th goes to storage.
STORED_EVERY = 20
#: After the first fifth of the saves. 10,000 saves that leak 512 bytes each are over it.
GROWTH_KIB = 4096
#: A connection that happens to be open; one for every save would be hundreds.
DESCRIPTORS = 8
PROGRAM = """
import json, os, sys, time
import torch
import dlrover_slurm
folder, saves, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def descriptors():
    names = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            names[fd] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            pass
    return names

def mark(name, **more):
    temporary = os.path.join(folder, name + ".new")
    with open(temporary, "w") as file:
        json.dump(more, file)
    os.rename(temporary, os.path.join(folder, name))
    while not os.path.exists(os.path.join(folder, name + ".seen")):
        time.sleep(0.005)

before = set(descriptors().values())
restored = dlrover_slurm.load()
dlrover_slurm.poll_membership()
state = {"model": {str(i): torch.full((2048,), float(i)) for i in range(64)}, "rng": dlrover_slurm.rng_state()}
tensors = list(state["model"].values())

def save(step, **more):
    if way == "changing":  # names, and how many there are
        state["model"] = {f"{i} of {step}": tensor for i, tensor in enumerate(tensors[: 32 + step % 32])}
    return dlrover_slurm.save(step, state, replicated=way == "alike", **more)

assert save(0)
ours = sorted(set(descriptors().values()) - before)
loader = torch.utils.data.DataLoader(torch.arange(10.0 * saves), batch_size=2, num_workers=2, persistent_workers=True)
batches = iter(loader)
skipped = 0
for step in range(1, saves + 1):
    tensors[0].fill_(next(batches)[0].item())
    # Those at which the test looks are not skipped.
    skipped += not save(step, ledger=step, wait=30 if step in (saves // 5, saves) else 0)
    dlrover_slurm.report_step(step)
    if step == saves // 5:
        mark("begun", ours=ours)
mark("done", skipped=skipped)
"""


def rss_kib(pid: int) -> int:
    """Without the arena, which is shared memory."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:")))


def descriptors(pid: int) -> "list[str]":
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    return sorted(names)


class Steady(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("steady", nodes=1))

    def start(self, way: str) -> None:
        self.folder = self.cluster.work / way
        for folder in (self.folder, self.folder / "storage"):
            folder.mkdir()
            folder.chmod(0o777)
        script = self.folder / "train.py"
        script.write_text(PROGRAM)
        python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        self.job = self.cluster.start("srun", "-N1", "-n1", "--dlrover-elastic", f"--dlrover-ckpt-dir={self.folder / 'storage'}", f"--dlrover-ckpt-every={STORED_EVERY}",
                                      "--dlrover-ckpt-keep=2", "/usr/bin/python3", str(script), str(self.folder), str(SAVES), way,
                                      env={"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"})
        self.addCleanup(lambda: self.job.poll() is None and self.job.kill())

    def reach(self, name: str, seconds: float) -> dict:
        """What the program says at that mark; it waits there."""
        path = self.folder / name
        wait_until(lambda: path.exists() or self.job.poll() is not None, seconds, f"the mark {name}")
        if not path.exists():
            self.fail("the program ended early:\n" + "".join(self.job.communicate()))
        return json.loads(path.read_text())

    def find(self) -> "tuple[int, list[int]]":
        """The trainer, and the processes that it forked."""
        python = {p.pid: p for _, p in self.cluster.processes() if str(self.folder / "train.py") in p.command and p.command[0] == "/usr/bin/python3"}
        trainer = next(pid for pid, p in python.items() if p.parent not in python)
        return trainer, [pid for pid, p in python.items() if p.parent == trainer]

    def writer(self) -> int:
        return next(p.pid for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-writer"))

    def stored(self) -> "list[int]":
        """The steps on storage."""
        return sorted(int(path.name.split(".")[0].removeprefix("step-")) for path in (self.folder / "storage").glob("*/step-*.manifest"))

    def settle(self, least: int) -> None:
        """A checkpoint of this step or a newer one is on storage, and none on its way."""
        wait_until(lambda: (self.stored() or [-1])[-1] >= least, 60, f"step {least} or a newer one on storage")
        def idle() -> bool:
            for _ in range(4):  # the next one may be about to begin
                done = self.cluster.run("dlrover", "status", "--json", user="root", node="n1", check=True)
                if json.loads(done.stdout)["groups"][0]["storage"]["storing_step"] != -1:
                    return False
                time.sleep(0.1)
            return True
        wait_until(idle, 60, "no checkpoint is on its way to storage")

    def measure(self) -> "dict[str, tuple[int, int]]":
        """(KiB, descriptors) of each process that must stay as it is."""
        host = next(host for host in self.cluster.describe()["hosts"] if host["host"] == "n1")
        pids = {"trainer": self.find()[0], "dlroverd": host["dlroverd"], "keeper": host["keeper"], "dlrover-writer": self.writer()}
        return {name: (rss_kib(pid), len(descriptors(pid))) for name, pid in pids.items()}

    def expect_nothing_of_ours(self, children: "list[int]", ours: "list[str]") -> None:
        self.assertEqual(len(children), 2, "the data loader's processes")
        sockets = [name for name in ours if name.startswith("socket:")]
        self.assertTrue(sockets, f"the trainer has no socket to the daemon: {ours}")
        for child in children:
            held = descriptors(child)
            self.assertFalse(set(sockets) & set(held), held)
            self.assertFalse([name for name in held if "memfd:" in name or "timerfd" in name], held)
            self.assertNotIn("memfd:", pathlib.Path(f"/proc/{child}/maps").read_text())

    def test_saves_leave_nothing_behind(self) -> None:
        self.expect_steady("plain")

    def test_of_what_all_ranks_have_alike(self) -> None:
        self.expect_steady("alike")

    def test_of_other_tensors_each_time(self) -> None:
        """What is kept from save to save, since the next one is like it, is not."""
        self.expect_steady("changing")

    def expect_steady(self, way: str) -> None:
        self.start(way)
        said = self.reach("begun", 120)
        trainer, children = self.find()
        self.assertIn("memfd:", pathlib.Path(f"/proc/{trainer}/maps").read_text(), "the trainer has the arena mapped")
        self.expect_nothing_of_ours(children, said["ours"])
        # While storage is busy with one, steps whose turn it is are passed over: not every k-th one gets there.
        self.settle(SAVES // 5 // 2)
        writer = self.writer()
        before = self.measure()
        (self.folder / "begun.seen").touch()
        self.assertLess(self.reach("done", 900)["skipped"], SAVES // 10)
        self.settle(SAVES // 5 * 4)
        after = self.measure()
        self.assertEqual(self.writer(), writer, "one writer has put them all there")
        self.assertLessEqual(len(self.stored()), 3)
        self.expect_nothing_of_ours(self.find()[1], said["ours"])
        (self.folder / "done.seen").touch()
        out, err = self.job.communicate(timeout=60)
        self.assertEqual(self.job.returncode, 0, out + err)
        print(f"{SAVES} saves, (KiB, descriptors) after a fifth of them and after all: {before}, {after}")
        for name in before:
            self.assertLessEqual(after[name][1], before[name][1] + DESCRIPTORS, f"descriptors of {name}: {before} -> {after}")
            self.assertLessEqual(after[name][0], before[name][0] + GROWTH_KIB, f"KiB of {name}: {before} -> {after}")


if __name__ == "__main__":
    unittest.main()
