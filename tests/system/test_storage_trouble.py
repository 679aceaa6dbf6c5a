# SPDX-License-Identifier: Apache-2.0
"""Storage that never answers, is full, can not be written or is gone: training goes on, somebody says so in plain words, and the next checkpoint after it is stored."""

import contextlib
import errno
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import typing
import unittest

from cluster import NIGHTLY, prefix, stopped, wait_until
from stored_walk import RANKS, Folder, StoredWalks

#: After how long storage is called silent here, and how long the end waits for it.
SILENT_AFTER, END_SILENCE = 3, 6
#: Of the disk that the test fills.
DISK_BYTES = 16 << 20


class TroubleCase(StoredWalks):
    SETTINGS = ""

    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        settings = pathlib.Path(folder, "dlrover.toml")
        settings.write_text(f'[storage]\nsilent_after = "{SILENT_AFTER}s"\nend_silence = "{END_SILENCE}s"\n{cls.SETTINGS}')
        cls.ARGUMENTS = ("--conf", "KillWait=30", "--dlrover-conf", str(settings))
        # Before the hosts are made, which take the mounts of this moment along, but have a /tmp of their own.
        cls.disk = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(dir="/var/tmp")))
        cls.mount_disk()
        cls.addClassCleanup(subprocess.run, ["umount", "--lazy", str(cls.disk)], check=True)
        super().setUpClass()

    @classmethod
    def mount_disk(cls) -> None:
        cls.mount("-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs")

    @classmethod
    def mount(cls, *arguments: str) -> None:
        subprocess.run(["mount", *arguments, str(cls.disk)], check=True)

    def setUp(self) -> None:
        self.top = self.disk / self.id().rsplit(".", 1)[-1]
        self.top.mkdir()
        self.top.chmod(0o777)
        self.folder = Folder(self.top)

    def job(self) -> str:
        return self.cluster.run("squeue", "-h", "-o", "%i", user="root", check=True).stdout.split()[0]

    def status(self, node: str = "n1") -> dict:
        done = self.cluster.run("dlrover", "status", self.job(), "--json", user="root", node=node, check=True)
        return json.loads(done.stdout)["groups"][0]["storage"]

    def start_asking(self, *options: str, steps: int = 100000, pause: float = 0.03, **more: str) -> subprocess.Popen:
        """Every rank asks for every step on storage. Returns when the first is there."""
        process = self.start("--dlrover-ckpt-every=off", "--dlrover-ckpt-keep=2", *options, env={"ASK_ALL": "1", **more}, steps=steps, pause=pause)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        wait_until(lambda: self.folder.steps() or process.poll() is not None, 60, "a checkpoint on storage", 0.05)
        self.assertIsNone(process.poll(), "".join(process.communicate()) if process.poll() is not None else "")
        return process

    def expect_progress(self, process: subprocess.Popen, steps: int = 50) -> None:
        before = self.reached(restart=0)
        wait_until(lambda: self.reached(restart=0) > before + steps or process.poll() is not None, 60, f"{steps} steps more", 0.05)
        self.assertIsNone(process.poll())

    def expect_newer(self, process: subprocess.Popen, than: int, seconds: float = 40) -> None:
        wait_until(lambda: (self.folder.steps() or [-1])[-1] > than or process.poll() is not None, seconds, f"a checkpoint newer than of step {than}", 0.05)
        self.assertIsNone(process.poll(), "the training goes on")

    def finish_by_cancel(self, process: subprocess.Popen) -> None:
        """What is newest goes to storage before; no rank has died meanwhile."""
        newest = self.folder.steps()[-1]
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        out, err = process.communicate(timeout=60)
        self.assertEqual(len(re.findall(r"rank \d from", out)), 4, out + err)
        self.assertGreater(self.folder.steps()[-1], newest)
        self.folder.expect_whole(self.folder.steps()[-1], 1000)
        self.cluster.expect_clean()

    def expect_short_saves(self, out: str) -> float:
        """Saves that ask for storage have waited for none. Returns the longest one's time."""
        longest = [float(seconds) for seconds in re.findall(r"longest save ([\d.]+)", out)]
        self.assertEqual(len(longest), RANKS, out)
        self.assertLess(max(longest), 2.5, longest)  # one that waited for storage would take SILENT_AFTER and more
        return max(longest)

    def skipped_saves(self) -> int:
        return StoredWalks.status(self)[0]["goodput"]["checkpoints_skipped"]

    def silences(self) -> "list[dict]":
        return [event for event in self.events() if "Storage has been silent" in event["text"]]

    @contextlib.contextmanager
    def stopped_writers(self, nodes: "tuple[str, ...]") -> "typing.Iterator[None]":
        """As if a call into storage did not return."""
        pids = [p.pid for node, p in self.cluster.processes() if node in nodes and p.command and p.command[0].endswith("dlrover-writer")]
        self.assertEqual(len(pids), len(nodes))
        with stopped(pids):
            yield


class Trouble(TroubleCase):
    LABEL = "trouble"

    # ---- storage that never answers ----

    def test_storage_that_never_answers(self) -> None:
        for nodes in (("n1", "n2"), ("n1",), ("n2",)):
            with self.subTest(nodes):
                process = self.start_asking()
                with self.stopped_writers(nodes):
                    for node in ("n1", "n2"):  # who is asked asks the others
                        status = wait_until(lambda: self.status(node) if self.status(node)["silent_us"] > 0 else None, 30, f"{node} calls storage silent", 0.2)
                        self.assertGreaterEqual(status["silent_us"], SILENT_AFTER * 1e6)
                        self.assertRegex(status["trouble"], f"storage has been silent for .* s: {self.top} does not answer dlrover-writer on n[12]")
                    # Of two, one may have stored its part of the step just before: its writer owes nothing then.
                    wait_until(lambda: {event["node"] for event in self.silences()} & set(nodes), 30, "a node's own word of it", 0.2)
                    said = self.cluster.run("dlrover", "status", self.job(), user="alice", node="n1", check=True).stdout
                    self.assertIn("storage has been silent for", said)
                    self.assertIn("training goes on", said)
                    stored = self.folder.steps()[-1]
                    self.expect_progress(process, 100)
                    self.assertLessEqual(self.folder.steps()[-1], stored)
                self.expect_newer(process, stored)
                wait_until(lambda: self.event("Storage answers again"), 10, "a word that storage answers", 0.2)
                self.assertEqual(self.status()["silent_us"], 0)
                said_by = [event["node"] for event in self.silences() if event["node"] in nodes]  # a slow machine may have made the other one silent
                self.assertEqual(len(said_by), len(set(said_by)), "said once")
                self.finish_by_cancel(process)
                for path in self.top.iterdir():
                    subprocess.run(["rm", "-r", str(path)], check=True)

    def test_slow_storage_shows_how_far_it_is(self) -> None:
        """The writers run for a moment, then rest: as if each call took long."""
        self.top = self.cluster.work / "slow"
        self.top.mkdir()
        self.top.chmod(0o777)
        self.folder = Folder(self.top)
        size = 8 << 20  # values of 8 bytes, a rank
        process = self.start("--dlrover-ckpt-every=1", "--dlrover-ckpt-keep=1", steps=100000, pause=0.3, size=size)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        wait_until(lambda: self.folder.steps() or process.poll() is not None, 90, "a checkpoint on storage", 0.05)
        self.assertIsNone(process.poll())
        seen: "dict[int, list[int]]" = {}
        end = time.monotonic() + 60
        while time.monotonic() < end and not any(len(set(bytes_)) >= 2 for bytes_ in seen.values()):
            with self.stopped_writers(("n1", "n2")):
                time.sleep(0.3)
                storage = self.status()
            storing = storage["storing"]
            if storage["storing_step"] >= 0 and len(storing["nodes"]) == 2:
                self.assertEqual(storing["bytes"], sum(node["bytes"] for node in storing["nodes"]))
                self.assertGreaterEqual(storing["bytes"], RANKS * size * 8)
                self.assertLessEqual(storing["written_bytes"], storing["bytes"])
                seen.setdefault(storage["storing_step"], []).append(storing["written_bytes"])
            time.sleep(0.02)
        rising = next((bytes_ for bytes_ in seen.values() if len(set(bytes_)) >= 2), None)
        self.assertIsNotNone(rising, seen)
        self.assertEqual(rising, sorted(rising), "it never goes back")
        print(f"data bytes on storage, as dlrover status said: {rising}")
        self.assertIsNone(process.poll(), "the training goes on")
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        process.communicate(timeout=60)

    def test_the_end_does_not_wait_for_storage_that_never_answers(self) -> None:
        process = self.start_asking(steps=400)
        with self.stopped_writers(("n1", "n2")):
            wait_until(lambda: self.reached(restart=0) == 399 or process.poll() is not None, 60, "the last step", 0.02)
            began = time.monotonic()
            out, err = process.communicate(timeout=END_SILENCE + 30)
            took = time.monotonic() - began
        self.assertEqual(process.returncode, 0, out + err)
        self.expect_end(out, 400)
        longest = self.expect_short_saves(out)
        self.assertLess(took, END_SILENCE + 10)
        print(f"the job ended {took:.1f} s after its last step began; the longest save took {longest:.3f} s")
        self.cluster.expect_clean()
        for step in self.folder.steps():
            self.folder.expect_whole(step, 1000)

    # ---- storage that refuses ----

    def expect_trouble(self, process: subprocess.Popen, *words: str) -> None:
        """It is told once, in words; steps are asked for on storage all the while."""
        event = wait_until(lambda: self.event("is not on storage", words[0]), 30, "a word about the trouble", 0.3)
        for word in words:
            self.assertIn(word, event["text"])
        self.assertIn(words[0], self.status()["trouble"])
        self.expect_progress(process)
        told = [words[0] in e["text"] for e in self.events() if "is not on storage" in e["text"]]
        self.assertEqual(told.count(True), 1)
        # What was being written just then may have met it in another way.
        self.assertLessEqual(told.count(False), 1)

    def test_a_full_disk(self) -> None:
        process = self.start_asking()
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self.expect_trouble(process, "No space left on device", str(self.top))
        stored = self.folder.steps()
        filler.unlink()
        self.expect_newer(process, stored[-1] if stored else -1)
        self.finish_by_cancel(process)

    def test_a_full_quota(self) -> None:
        """Not every kernel has quotas: the writer's calls fail as if one were full, where the build folder has a writer that can."""
        writer = pathlib.Path(os.environ.get("DLROVER_BUILD", "."), "tests/system/faults/dlrover-writer").resolve()
        if not writer.exists():
            self.skipTest("make fault-programs has not been run, or DLROVER_BUILD is not set")
        programs, full = self.cluster.work / "programs", self.cluster.work / "quota-is-full"
        programs.mkdir()
        programs.chmod(0o755)
        wrapper = programs / "dlrover-writer"
        wrapper.write_text(f"#!/bin/sh\nDLROVER_FAULT_ERROR=storage_write:{errno.EDQUOT}:{full} exec {writer}\n")
        wrapper.chmod(0o755)
        process = self.start_asking(DLROVER_SBINDIR=str(programs))  # the guard looks for the writer there first
        full.touch()
        self.expect_trouble(process, "Disk quota exceeded", str(self.top), "raise the quota")
        stored = self.folder.steps()
        self.folder.expect_whole(stored[-1], 1000)
        full.unlink()
        self.expect_newer(process, stored[-1])
        self.finish_by_cancel(process)

    def test_a_read_only_file_system(self) -> None:
        process = self.start_asking()
        # A file that is being written would keep it from that.
        def remount() -> bool:
            return subprocess.run(["mount", "-o", "remount,ro", str(self.disk)], check=False, capture_output=True).returncode == 0
        wait_until(remount, 20, "the disk is read-only", 0.001)
        try:
            self.expect_trouble(process, "Read-only file system", str(self.top))
            stored = self.folder.steps()[-1]
        finally:
            self.mount("-o", "remount,rw")
        self.expect_newer(process, stored)
        self.finish_by_cancel(process)

    def test_a_folder_that_is_gone(self) -> None:
        process = self.start_asking()
        away = self.top.with_name("away")
        self.top.rename(away)
        self.expect_trouble(process, "ermission denied", str(self.top))  # to make it anew
        away.rename(self.top)
        self.expect_newer(process, self.folder.steps()[-1])
        self.finish_by_cancel(process)


class FrozenCase(TroubleCase):
    """A file system that is frozen: a process that writes there sleeps, and no signal ends it (D state), as where a network file system hangs."""

    @classmethod
    def mount_disk(cls) -> None:
        image = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(dir="/var/tmp")), "image")
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
            cls.mount("-o", "loop", str(image))
            for way in ("--freeze", "--unfreeze"):
                subprocess.run(["fsfreeze", way, str(cls.disk)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            subprocess.run(["umount", "--lazy", str(cls.disk)], stderr=subprocess.DEVNULL)
            raise unittest.SkipTest(f"no file system on a loop device can be had, or frozen, here: {error}") from None

    @contextlib.contextmanager
    def frozen(self) -> "typing.Iterator[None]":
        subprocess.run(["fsfreeze", "--freeze", str(self.disk)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.disk)], check=True)

    def asleep(self) -> "list[int]":
        """The writers of which a thread is in D state."""
        pids = [p.pid for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-writer")]
        return [pid for pid in pids if "D" in self.thread_states(pid)]

    @staticmethod
    def children(pid: int) -> "list[int]":
        return [int(child) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]

    @staticmethod
    def thread_states(pid: int) -> "set[str]":
        found = set()
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                found.add(path.read_text().rpartition(")")[2].split()[0])
        return found


class Frozen(FrozenCase):
    LABEL = "frozen"

    def test_training_goes_on_and_storage_comes_back(self) -> None:
        process = self.start_asking()
        with self.frozen():
            wait_until(self.asleep, 30, "a writer in D state", 0.1)
            status = wait_until(lambda: self.status() if self.status()["silent_us"] > 0 else None, 30, "storage is called silent", 0.2)
            self.assertIn("storage has been silent for", status["trouble"])
            self.expect_progress(process, 100)
            stored = status["stored_step"]
        self.expect_newer(process, stored)
        wait_until(lambda: self.event("Storage answers again"), 10, "a word that storage answers", 0.2)
        self.finish_by_cancel(process)
        self.cluster.expect_clean()

    @unittest.skipUnless(NIGHTLY, "only nightly: Slurm waits for a process that no signal ends, and drains its node")
    def test_the_end_is_slurms_to_wait_for(self) -> None:
        """All is told in time, and the ranks have ended well. What sleeps is Slurm's to wait for: UnkillableStepTimeout, and the node is drained for a person to look at."""
        process = self.start_asking(steps=400)
        with self.frozen():
            wait_until(self.asleep, 30, "a writer in D state", 0.1)
            wait_until(lambda: self.reached(restart=0) == 399 or process.poll() is not None, 60, "the last step", 0.02)
            began = time.monotonic()
            out, err = process.communicate(timeout=200)
            print(f"srun ended with {process.returncode} {time.monotonic() - began:.1f} s after the last step began")
            print(self.cluster.run("sinfo", "-h", "-N", "-o", "%N %T %E", user="root").stdout, out[-500:], err[-1500:])
            self.assertEqual(process.returncode, 0, out + err)
            self.expect_end(out, 400)
            self.expect_short_saves(out)
        wait_until(lambda: not self.asleep(), 20, "no writer asleep", 0.2)
        wait_until(lambda: not self.cluster.run("squeue", "-h", user="root").stdout.strip(), 60, "no job is left", 0.2)
        self.cluster.expect_clean()
        self.assertIn("Kill task failed", self.cluster.run("sinfo", "-h", "-R", user="root").stdout)
        self.cluster.run("scontrol", "update", "NodeName=n1,n2", "State=RESUME", user="root", check=True)
        idle = lambda: set(self.cluster.run("sinfo", "-h", "-N", "-o", "%T", user="root").stdout.split()) == {"idle"}
        wait_until(idle, 30, "all nodes idle", 0.5)


class TwoSlots(TroubleCase):
    """As where memory is short: the writer reads one slot, the other has the newest complete step."""

    LABEL = "two-slots"
    SETTINGS = "[memory]\nslots = 2\n"

    @contextlib.contextmanager
    def writers_stopped_as_they_read(self) -> "typing.Iterator[None]":
        """One that has read its slot and is at fsync holds none, and no save is skipped for it."""
        for _ in range(20):
            with self.stopped_writers(("n1", "n2")):
                enough = self.skipped_saves() + 20
                try:
                    wait_until(lambda: self.skipped_saves() >= enough, 3, "saves are skipped", 0.1)
                except AssertionError:
                    continue
                yield
                return
        self.fail("no writer was stopped while it read a slot")

    def test_no_save_waits_for_storage_that_never_answers(self) -> None:
        process = self.start_asking(steps=1000)
        with self.writers_stopped_as_they_read():
            wait_until(lambda: self.status()["silent_us"] > 0 or process.poll() is not None, 30, "storage is called silent", 0.2)
            before = self.skipped_saves()
            self.expect_progress(process)
            skipped = self.skipped_saves()
            self.assertGreater(skipped, before)
            stored = self.folder.steps()[-1]
        self.expect_newer(process, stored)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + err)
        self.expect_end(out, 1000)
        print(f"{skipped} saves were skipped while storage did not answer; the longest save took {self.expect_short_saves(out):.3f} s")
        self.folder.expect_whole(999, 1000)
        self.cluster.expect_clean()


class FrozenOutput(FrozenCase):
    LABEL = "frozenoutput"

    def test_ranks_whose_output_hangs_end_with_their_lease(self) -> None:
        """What their node's agent writes for them hangs in the kernel, a log of its own and srun's file, and nobody hears that node any more: its ranks end all the same, and the job when the file system is back."""
        files = [f"--output={self.top}/out-%t", "dlrover-run", "--no-python", "--tee=3", f"--log-dir={self.top}/logs"]
        process = self.cluster.start("srun", "-N2", "--ntasks-per-node=1", "--dlrover-elastic=1:2", *files, "/bin/sh", "-c", "while :; do echo $RANK ticks; sleep 0.002; done")
        self.addCleanup(self.stop, process)
        ranks = lambda node: [p.pid for where, p in self.cluster.processes() if where == node and p.state != "Z" and p.command[:1] == ["/bin/sh"] and "ticks" in p.command[-1]]
        agents = lambda: [p.pid for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-run") and "D" in self.thread_states(p.pid)]
        wait_until(lambda: ranks("n1") and ranks("n2"), 30, "ranks on both nodes", 0.05)
        with self.frozen():
            wait_until(lambda: len(agents()) == 2, 30, "agents of which a thread is in D state", 0.05)
            self.cluster.lose("n2", power=False)
            began = time.monotonic()
            wait_until(lambda: not ranks("n2"), 10, "the ranks of the node that was cut off end", 0.02)
            print(f"ranks ended {time.monotonic() - began:.1f} s after the cut, with their output in D state")
        self.cluster.control("heal-link", "n2")
        wait_until(lambda: ranks("n1") or ranks("n2"), 60, "one of the two goes on", 0.1)  # who asks Slurm first
        self.cluster.run("scancel", "-u", "alice", user="root", check=True)
        process.communicate(timeout=60)
        self.cluster.expect_clean(30)

    @unittest.skipUnless(NIGHTLY, "only nightly: Slurm waits for a process that no signal ends, and drains its node")
    def test_z_a_job_ends_whose_logs_sleep_in_the_kernel(self) -> None:
        """The ranks' exit code is srun's; the agents' threads are Slurm's to wait for, and the nodes are drained."""
        go = self.cluster.work / "go-on"
        program = f"while [ ! -e {go} ]; do echo tick; sleep 0.002; done; exit 0"
        process = self.cluster.start("srun", "-N2", "--ntasks-per-node=1", "--dlrover-elastic=1:2", "dlrover-run", "--no-python", "--tee=3", f"--log-dir={self.top}/logs", "/bin/sh", "-c", program)
        self.addCleanup(self.stop, process)
        agents = lambda: [p.pid for _, p in self.cluster.processes() if p.command and p.command[0].endswith("dlrover-run") and "D" in self.thread_states(p.pid)]
        wait_until(lambda: len(list((self.top / "logs").rglob("stdout.log"))) == 2, 30, "both logs", 0.05)
        with self.frozen():
            wait_until(lambda: len(agents()) == 2, 30, "agents of which a thread is in D state", 0.05)
            began = time.monotonic()
            go.touch()
            _, err = process.communicate(timeout=200)
            print(f"srun ended with {process.returncode} {time.monotonic() - began:.1f} s after its program: {err}")
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("its file system hangs", err)
            self.assertRegex(err, r"process \d+ hangs in the kernel")

    def test_a_run_ends_whose_log_sleeps_in_the_kernel(self) -> None:
        """A run of this machine alone: nothing of it waits for a thread that no signal ends, and its exit code is told."""
        logs, go = self.top / "logs", self.cluster.work / "go"
        program = f"while [ ! -e {go} ]; do echo tick; sleep 0.002; done; exit 7"
        command = [str(prefix() / "bin" / "dlrover-run"), "--standalone", "--max-restarts=0", "--no-python", "--tee=3", f"--log-dir={logs}", "/bin/sh", "-c", program]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        wait_until(lambda: any(log.stat().st_size for log in logs.rglob("stdout.log")), 30, "the first tick")
        with self.frozen():
            wait_until(lambda: any("D" in self.thread_states(pid) for pid in self.children(process.pid)), 30, "an agent of which a thread is in D state")
            began = time.monotonic()
            go.touch()
            self.assertEqual(process.wait(60), 7)
            took = time.monotonic() - began
        err = process.stderr.read()
        print(f"ended after {took:.1f} s: {err}")
        self.assertIn("its file system hangs", err)
        self.assertRegex(err, r"process \d+ hangs in the kernel")
        self.assertLess(took, 40)


if __name__ == "__main__":
    sys.exit(unittest.main())
