# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on storage: they go there behind the training, a later job goes on from them, and nothing that storage does disturbs the training."""

import json
import os
import pathlib
import random
import re
import shlex
import signal
import struct
import subprocess
import sys
import unittest

import h5py

from cluster import NIGHTLY, wait_until
from stored_walk import RANKS, StoredWalks


def flip_bit(path: "str | os.PathLike[str]", at: int = 4001) -> None:
    """In a slot in memory the default is in the middle of x."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


TUNE = """
import dlrover_slurm
checkpoint = dlrover_slurm.load(adopt=True)
print(f"{dlrover_slurm.world().rank} from {checkpoint.step}: {checkpoint.state['layer.weight'].tolist()}")
"""

DISK = """
import glob, os, time, torch
from dlrover_slurm.compat import DdpCheckpointer, StorageType
checkpointer, rank = DdpCheckpointer("unused"), int(os.environ["RANK"])
time.sleep(2 * (rank == 3))
for step in range(6):  # the others have no slot left before that one has begun
    assert checkpointer.save_checkpoint(step, {"x": torch.full((1 << 20,), float(rank))})
time.sleep(rank)
assert checkpointer.save_checkpoint(7, {"x": torch.full((1 << 20,), float(rank))})
assert checkpointer.wait_latest_checkpoint(60)
print(f"rank {rank}:", *(os.path.basename(path) for path in glob.glob(os.environ["DLROVER_CKPT_DIR"] + "/*/step-7.*.manifest")), flush=True)
assert checkpointer.save_checkpoint(8, {"x": torch.ones(3)}, storage_type=StorageType.MEMORY)
"""


class Storage(StoredWalks):
    LABEL = "storage"

    def test_a_later_job_goes_on(self) -> None:
        # The command belongs to the lineage: one that is killed and one that goes on have the same.
        arguments = {"steps": 150, "pause": 0.05}
        first = self.start("--dlrover-ckpt-every=10", "--dlrover-ckpt-keep=2", **arguments)
        wait_until(lambda: len(self.folder.steps()) >= 2 or first.poll() is not None, 60, "two checkpoints on storage", 0.05)
        self.assertIsNone(first.poll(), "".join(first.communicate()) if first.poll() is not None else "")
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        out, err = first.communicate(timeout=60)
        newest = self.folder.steps()[-1]
        self.folder.expect_whole(newest, 1000)
        self.assertLessEqual(len(self.folder.steps()), 3)  # Slurm may have killed the writer before it tidied up
        self.cluster.expect_clean()
        second = self.train("--dlrover-ckpt-every=10", "--dlrover-ckpt-keep=2", **arguments)
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} from {newest + 1}\n", second.stdout)
        self.expect_end(second.stdout, 150)
        self.assertEqual(self.folder.steps()[-1], 149, "the last checkpoint is there at the end")
        self.assertLessEqual(len(self.folder.steps()), 2)
        self.folder.expect_whole(149, 1000)
        self.assertEqual(os.readlink(self.folder.lineage() / "latest"), self.folder.manifest(149).with_suffix("").name)
        self.cluster.expect_clean()

    def test_a_job_starts_from_imported_weights(self) -> None:
        weights = self.cluster.work / "weights.safetensors"
        header = json.dumps({"layer.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        weights.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<6f", *range(6)))
        script = self.cluster.work / "tune.py"
        script.write_text(TUNE)
        command = ["python3", "-u", str(script)]
        into = ["dlrover", "ckpt", "import", str(weights), "--to", str(self.top), "--step", "0", "--name", "tuned", "--"]
        done = self.cluster.run(*into, *command, node=self.cluster.nodes[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--dlrover-name=tuned", done.stdout)
        srun = ["srun", "-N2", "--ntasks-per-node=2", "--dlrover-elastic", f"--dlrover-ckpt-dir={self.top}", "--dlrover-name=tuned"]
        tuned = self.cluster.run(*srun, *command, env=self.environment())
        self.assertEqual(tuned.returncode, 0, tuned.stdout + tuned.stderr)
        self.assertEqual(sorted(tuned.stdout.splitlines()), [f"{rank} from 0: [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]" for rank in range(RANKS)])
        again = self.cluster.run(*into, *command, node=self.cluster.nodes[0])
        self.assertEqual(again.returncode, 1)
        self.assertIn("has checkpoints already", again.stderr)

    def test_whatever_is_damaged_an_older_checkpoint_is_taken(self) -> None:
        """A bit of a rank's data, of the manifest, of the index; a rank's file that is gone: each in a checkpoint of its own, above one that is whole."""
        options = ("--dlrover-ckpt-every=off", "--dlrover-ckpt-keep=8")
        done = self.train(*options, env={"ASK_AT": "5 10 15 20 25"}, steps=26, pause=0.15)  # as below: of one lineage
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.folder.steps(), [5, 10, 15, 20, 25])
        data = self.folder.manifest(25).with_suffix("") / "rank-3.h5"
        with h5py.File(data) as f:
            flip_bit(data, next(d for d in f["chunks"].values() if d.shape == (1000,)).id.get_offset() + 4000)
        gone = self.folder.manifest(20).with_suffix("") / "rank-2.h5"
        gone.unlink()
        flip_bit(self.folder.manifest(15).with_suffix("") / "index.h5", 700)
        flip_bit(self.folder.manifest(10), 100)
        again = self.start(*options, steps=26, pause=0.15)
        job = int(wait_until(lambda: self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split(), 30, "the job")[0])
        out, err = again.communicate(timeout=120)
        self.assertEqual(again.returncode, 0, out + err)
        texts = [event["text"] for event in self.cluster.events(job)]
        for words in (("passed over", "step-20", "rank-2.h5"), ("passed over", "step-15", "index.h5"), ("passed over", "step-10")):
            self.assertTrue(any(all(word in text for word in words) for text in texts), [words, *texts])
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} from 6\n", out)
            for damaged in (10, 15, 20):
                self.assertNotIn(f"rank {rank} from {damaged + 1}\n", out)
        self.assertNotIn("rank 3 from 26\n", out, "whose bytes are damaged")
        self.expect_end(out, 26)

    def test_nothing_whole_is_no_beginning(self) -> None:
        done = self.train("--dlrover-ckpt-every=off", steps=6)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.folder.steps(), [5], "the newest, at the end")
        os.unlink(self.folder.manifest(5).with_suffix("") / "rank-2.h5")
        again = self.train("--dlrover-ckpt-every=off", steps=6)
        self.assertNotEqual(again.returncode, 0)
        self.assertNotIn("from 0", again.stdout)
        self.assertIn("rank-2.h5", again.stderr)

    def damage_memory_of(self, rank: int, copied: bool, copies_too: bool) -> None:
        """One bit in each slot of that rank, which dies then."""
        home, worker = next((node, p) for node, p in self.workers() if p.environment().get("RANK") == str(rank))
        os.kill(worker.pid, signal.SIGSTOP)  # the others wait for it: nothing newer comes
        if copied:  # or what is copied then would be the damaged bytes
            wait_until(lambda: -1 < self.complete_step() == self.safe_step(), 60, "copies of the newest step", 0.1)
        slots = self.mapped_segments(worker.pid)
        self.assertGreaterEqual(len(slots), 2)
        for path in slots.values():
            flip_bit(path)
        if copies_too:
            self.damage_copies(next(node for node in self.cluster.nodes if node != home))
        os.kill(worker.pid, signal.SIGKILL)

    def workers(self) -> list:
        """With their nodes. A node's mover maps segments, too."""
        return [(node, p) for node, p in self.cluster.processes() if p.command and p.command[-3:-2] and p.command[0].endswith("python3")]

    def mapped_segments(self, pid: int) -> "dict[int, str]":
        """By inode: where it can be written."""
        maps = (line.split() for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:dlrover-segment" in line)
        return {int(fields[4]): f"/proc/{pid}/map_files/{fields[0]}" for fields in maps}

    def damage_copies(self, node: str) -> None:
        """One bit in each segment of that node that is no rank's of its own."""
        own = {inode for home, p in self.workers() if home == node for inode in self.mapped_segments(p.pid)}
        daemon = pathlib.Path(f"/proc/{self.cluster.daemon_pid(node)}/fd")
        paths = {fd.stat().st_ino: str(fd) for fd in daemon.iterdir() if "memfd:dlrover-segment" in os.readlink(fd)}
        copies = {inode: path for inode, path in paths.items() if inode not in own}
        self.assertGreaterEqual(len(copies), 2)
        for path in copies.values():
            flip_bit(path)

    def go_on_from_damage(self, process: subprocess.Popen, *words: str, copied: bool = False, copies_too: bool = False) -> int:
        """Events of rank 3 with each of these words come, and the training ends right. Returns the step that rank 3 began with last."""
        job = int(self.cluster.run("squeue", "-h", "-o", "%i", user="root").stdout.split()[0])
        self.damage_memory_of(3, copied, copies_too)
        def told() -> bool:
            texts = [e["text"] for e in self.cluster.events(job) if e["rank"] == 3]
            return all(any(word in text for text in texts) for word in words)
        try:
            wait_until(told, 60, f"an event with {words}", 0.1)
        except AssertionError:
            print(*(f"{e['time_us'] / 1e6:.3f} {e['node']} {e['rank']} {e['text']}" for e in self.cluster.events(job)), sep="\n")
            raise
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        begun = [int(step) for step in re.findall(r"rank 3 from (\d+)\n", out)]
        self.assertEqual(begun[0], 0)
        self.expect_end(out, 250)
        return begun[-1]

    def test_a_flipped_bit_in_memory_falls_through_to_storage(self) -> None:
        process = self.start("--dlrover-ckpt-every=10", steps=250, pause=0.03)
        stored = wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "a checkpoint", 0.05)
        begun = self.go_on_from_damage(process, "damaged in the memory of")
        self.assertGreater(begun, stored[0])

    def test_a_flipped_bit_in_memory_falls_through_to_the_copy(self) -> None:
        process = self.start("--dlrover-ckpt-every=off", "--dlrover-redundancy=partner:1", steps=250, pause=0.03)
        wait_until(lambda: self.reached(restart=0) > 20 or process.poll() is not None, 60, "twenty steps", 0.05)
        self.assertGreater(self.go_on_from_damage(process, "fetched from", copied=True), 15)

    def test_a_flipped_bit_in_the_copy_too_falls_through_to_storage(self) -> None:
        process = self.start("--dlrover-ckpt-every=10", "--dlrover-redundancy=partner:1", "--dlrover-max-restarts=10", steps=250, pause=0.03)
        stored = wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "a checkpoint", 0.05)
        begun = self.go_on_from_damage(process, "damaged in the memory of n1", "damaged in the memory of n2", "State restored from storage", copied=True, copies_too=True)
        self.assertGreater(begun, stored[0])

    def test_a_flipped_bit_in_the_only_checkpoint_ends_the_step(self) -> None:
        command = [word for word in self.command(steps=250, pause=0.03) if not word.startswith("--dlrover-ckpt-dir=")]
        process = self.cluster.start(*command, env=self.environment())
        self.addCleanup(self.stop, process)
        wait_until(lambda: self.reached(restart=0) > 20 or process.poll() is not None, 60, "twenty steps", 0.05)
        self.damage_memory_of(3, copied=False, copies_too=False)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertRegex(err, r"what rank 3 has saved of step \d+ is damaged in the memory of n\d, and no other whole checkpoint is left in memory: see")
        # The agent finds it while the program starts, and the rank is not given the memory; or the rank was there first, and finds it as it reads.
        self.assertRegex(err, r"what rank 3 has saved of step \d+ is damaged in this node's memory \(chunk |the checksum of chunk")
        self.assertEqual(len(re.findall(r"rank \d from 0\n", out)), RANKS, "nobody begins anew")
        self.cluster.expect_clean()

    def test_after_a_failure_and_at_the_end(self) -> None:
        process = self.start("--dlrover-ckpt-every=off", steps=400, pause=0.03, env={"DIE_AT": "12"})
        stored = wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "a checkpoint after the failure", 0.05)
        self.assertIsInstance(stored, list)
        self.assertIn(stored[0], range(5, 13))
        wait_until(lambda: self.reached(restart=1) > stored[0] + 10 or process.poll() is not None, 60, "ten steps after the restart", 0.05)
        self.assertIsNotNone(self.event("State restored from the node's memory"), self.events())
        # While the programs started, or by the ranks where those were faster, on a loaded machine.
        verified = self.status()[0]["verified"]
        self.assertGreaterEqual(verified["agent_objects"] + verified["rank_objects"], 4, verified)
        newest = wait_until(lambda: max(self.complete_step(), stored[0]) - stored[0], 60, "a newer step in memory", 0.05) + stored[0]
        self.assertIsNone(process.poll())
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        out, err = process.communicate(timeout=60)
        # SIGTERM is the end too: what was newest in memory is on storage.
        self.assertGreaterEqual(self.folder.steps()[-1], newest, out + err)
        # The failure had one step put there, however slow storage is, and the end another.
        self.assertEqual(len(self.folder.steps()), 2, out + err)
        self.folder.expect_whole(self.folder.steps()[-1], 1000)
        self.cluster.expect_clean()

    def test_a_command_that_a_script_starts_again_goes_on(self) -> None:
        """In the same job, without a name of its own."""
        srun = [word for word in self.command("--dlrover-ckpt-every=5", "--dlrover-max-restarts=0", steps=60, pause=0.03) if word != "--dlrover-name=walk"]
        again = f"DIE_AT=30 {shlex.join(srun)} || {{ rm {self.cluster.work}/pace-$SLURM_JOB_ID-0; {shlex.join(srun)}; }}"
        done = self.cluster.run("salloc", "-N2", "--ntasks-per-node=2", "sh", "-c", again, env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        begun = {int(step) for step in re.findall(r"^rank \d from (\d+)$", done.stdout, re.M)}
        self.assertEqual(len(begun), 2, done.stdout + done.stderr)
        self.assertIn(max(begun), range(25, 32))
        self.expect_end(done.stdout, 60)
        self.assertEqual(len([path for path in self.top.glob("*") if path.is_dir()]), 1, "one lineage")

    def test_steps_that_are_asked_for(self) -> None:
        done = self.train("--dlrover-ckpt-every=off", steps=30, env={"ASK_AT": "7 18"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.folder.steps(), [7, 18, 29])
        for step in self.folder.steps():
            self.folder.expect_whole(step, 1000)
        self.expect_end(done.stdout, 30)

    def test_a_step_that_is_asked_for_outlives_the_daemons(self) -> None:
        process = self.start("--dlrover-ckpt-every=off", steps=45, pause=0.2, env={"ASK_AT": "2 40"})
        wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "the first step asked for", 0.05)
        self.folder.lineage().chmod(0o555)
        def trouble() -> "dict | None":
            return next((e for e in self.events() if e["kind"] == "warning" and "is not on storage" in e["text"]), None)
        self.assertEqual(wait_until(trouble, 60, "a word about the trouble", 0.3)["train_step"], 40)
        for node in self.cluster.nodes:
            os.kill(self.cluster.daemon_pid(node), signal.SIGKILL)
        self.folder.lineage().chmod(0o755)
        wait_until(lambda: self.folder.steps() != [2] or process.poll() is not None, 40, "the second step asked for", 0.05)
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(self.folder.steps(), [2, 40, 44])
        self.expect_end(out, 45)

    def test_dlrovers_checkpointer_waits_until_it_is_on_storage(self) -> None:
        (self.top / "disk.py").write_text(DISK)
        command = ["srun", "-N2", "--ntasks-per-node=2", "--dlrover-elastic", f"--dlrover-ckpt-dir={self.top}", "--dlrover-ckpt-every=off"]
        done = self.cluster.run(*command, "/usr/bin/python3", str(self.top / "disk.py"), env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        manifest = self.folder.manifest(7).name
        self.assertEqual(sorted(line for line in done.stdout.splitlines() if line.startswith("rank")), [f"rank {rank}: {manifest}" for rank in range(RANKS)])

    def test_without_a_folder_nothing_can_be_asked_for(self) -> None:
        (self.top / "ask.py").write_text("""
import numpy
import dlrover_slurm as dlrover
try:
    dlrover.save(1, {"x": numpy.zeros(3)}, storage=True)
except dlrover.UnsupportedError as error:
    print("refused:", error)
print("saved:", dlrover.save(1, {"x": numpy.zeros(3)}))
""")
        done = self.cluster.run("srun", "-N1", "--dlrover-elastic", "/usr/bin/python3", str(self.top / "ask.py"), env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "refused: .*--dlrover-ckpt-dir")
        self.assertIn("saved: True", done.stdout)

    def test_a_folder_that_can_not_be_written_ends_the_step_before_it_begins(self) -> None:
        self.top.chmod(0o555)
        done = self.train(steps=5)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("rank", done.stdout)
        self.assertIn(str(self.top), done.stderr)
        self.assertIn("ermission", done.stderr)
        self.cluster.expect_clean()

    def test_storage_that_goes_away_does_not_disturb(self) -> None:
        process = self.start("--dlrover-ckpt-every=5", steps=250, pause=0.04)
        wait_until(lambda: self.folder.steps(), 60, "a checkpoint", 0.05)
        self.folder.lineage().chmod(0o555)
        def trouble() -> "dict | None":
            return next((e for e in self.events() if e["kind"] == "warning" and "is not on storage" in e["text"]), None)
        self.assertIn("ermission", wait_until(trouble, 20, "a word about the trouble", 0.3)["text"])
        before = self.folder.steps()[-1]
        self.folder.lineage().chmod(0o755)
        wait_until(lambda: self.folder.steps()[-1] > before or process.poll() is not None, 40, "a checkpoint after the trouble", 0.05)
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, out + err)
        self.expect_end(out, 250)
        self.assertEqual(self.folder.steps()[-1], 249)
        self.assertNotIn("restart", re.sub(r"0 restarts", "", err))

    def test_killed_writers_and_daemons_leave_nothing_half_done(self) -> None:
        rounds, size, chooser = 200 if NIGHTLY else 8, 200000, random.Random(7)
        process = self.start("--dlrover-ckpt-every=1", "--dlrover-ckpt-keep=4", steps=100000, pause=0.02, size=size)
        wait_until(lambda: self.folder.steps(), 60, "a checkpoint", 0.05)
        for number in range(rounds):
            before = self.folder.steps()[-1]
            wait_until(lambda: (self.folder.lineage() / "latest").exists() and self.folder.steps()[-1] > before or process.poll() is not None, 60, "another checkpoint", 0.01)
            self.assertIsNone(process.poll(), "the training has ended")
            if number % 4 == 3:
                os.kill(self.cluster.daemon_pid(chooser.choice(self.cluster.nodes)), signal.SIGKILL)
                continue
            writers = [p for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-writer")]
            if writers:
                os.kill(chooser.choice(writers).pid, signal.SIGKILL)
        newest = self.folder.steps()[-1]
        wait_until(lambda: self.folder.steps()[-1] > newest or process.poll() is not None, 60, "a checkpoint after the last kill", 0.05)
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        out, err = process.communicate(timeout=60)
        self.assertEqual(len(re.findall(r"rank \d from", out)), RANKS, "no worker was restarted: " + out + err)
        for step in self.folder.steps():
            self.folder.expect_whole(step, size)
        self.cluster.expect_clean()


if __name__ == "__main__":
    sys.exit(unittest.main())
