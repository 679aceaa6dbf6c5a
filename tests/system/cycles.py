#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills workers, agents, writers and daemons at every named point of save, seal, flush and commit, cycle after cycle, and checks after each
that all ranks go on from one whole step, none older than what was complete, and that what is on storage is whole.

As root, with DLROVER_PREFIX and DLROVER_BUILD set: cycles.py --cycles 1000 --seed 1, cycles.py --points writer,daemon:commit. The build folder has
the programs with the points in them (tests/system/faults). Exit status 0 only when nothing was found."""

import argparse
import collections
import fnmatch
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cycles_worker  # noqa: E402
import fault_twins  # noqa: E402
from cluster import Cluster, Process, prefix, wait_until  # noqa: E402

RANKS = 4
#: Generous: a loaded machine is no fault.
LIMIT_S = 150.0
WORKER_POINTS = ("mid_copy", "before_seal", "after_seal")
WRITER_POINTS = ("writer_before_file", "writer_mid_file", "writer_before_rename", "writer_before_index", "writer_before_manifest", "writer_after_manifest")
#: Of a rank without a daemon, whose checkpoints are files.
ALONE_POINTS = ("mid_copy", "before_rename", "after_seal")
#: What the writer of rank 0's node alone does.
COMMIT_POINTS = ("writer_before_index", "writer_before_manifest", "writer_after_manifest")
#: Daemons and agents die also at a moment of what they serve, wherever they are then.
MOMENTS = ("save", "flush", "commit", "any")
POINTS = tuple([f"worker:{name}" for name in (*WORKER_POINTS, "any", "restart")] + [f"writer:{name}" for name in (*WRITER_POINTS, "any")]
               + [f"daemon:{name}" for name in MOMENTS] + ["daemons:any", "several:flush", "agent:save", "agent:flush", "agent:any", "guard:any"]
               + [f"alone:{name}" for name in ALONE_POINTS]
               + [f"{program}:{name}" for program, names in fault_twins.POINTS.items() for name in names])

SETTINGS = """
[timing]
agent_lease = "60s"  # load must not look like loss
[storage]
end_limit = "10s"  # where the agent has died that the node's writer belongs to, the end waits in vain
"""

WRITER = """#!/bin/sh
order={folder}/order-writer-$SLURMD_NODENAME
DLROVER_FAULT=
if mv "$order" "$order.taken" 2>/dev/null; then DLROVER_FAULT=$(cat "$order.taken"); fi
export DLROVER_FAULT
echo "$$ $DLROVER_FAULT" >>{folder}/writers-$SLURMD_NODENAME
exec {program}
"""

WORKER_FILES = ("cycles_worker.py", "walk.py")


class Found(Exception):
    """A fault of what is tested."""


def build() -> pathlib.Path:
    found = os.environ.get("DLROVER_BUILD")
    if not found:
        raise SystemExit("set DLROVER_BUILD to the build folder: its tests/system/faults has the points of failure")
    return pathlib.Path(found)


def faults() -> pathlib.Path:
    return build() / "tests/system/faults"


def fault_library() -> pathlib.Path:
    return faults() / ".libs/libdlrover.so"


def worker_environment(**more: str) -> "dict[str, str]":
    python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
    return {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "DLROVER_LIBRARY": str(fault_library()), **more}


def worker_argv(folder: pathlib.Path, rows: int, steps: int, pause: float, alike: int = 0) -> "list[str]":
    return ["/usr/bin/python3", str(folder / "cycles_worker.py"), str(folder), str(rows), str(steps), str(pause), str(alike)]


def read_restored(folder: pathlib.Path, rank: int) -> "list[dict]":
    """What a rank's processes have found when they started, oldest first."""
    path = folder / f"restored-{rank}"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Checkpoint:
    """A complete checkpoint on storage, by its manifest. They are ordered as readers order them."""

    def __init__(self, manifest: pathlib.Path) -> None:
        self.manifest = manifest
        step, *generation = map(int, re.fullmatch(r"step-(\d+)\.gen-(\d+)\.(\d+)\.(\d+)\.manifest", manifest.name).groups())
        self.step, self.key = step, (*generation, step)

    def verify(self, rows: int, alike: int) -> None:
        """Every rank's file is there, as long as the manifest says, and plain h5py reads the state of this one step."""
        told = json.loads(self.manifest.read_text())
        if (told["train_step"], told["world_size"], len(told["ranks"])) != (self.step, RANKS, RANKS):
            raise Found(f"{self.manifest.name} says {told}")
        folder = self.manifest.with_suffix("")
        if told["index"]["bytes"] != (folder / told["index"]["file"]).stat().st_size:
            raise Found(f"the index of {self.manifest.name} has another length than {told['index']['bytes']}")
        with h5py.File(folder / told["index"]["file"]) as index:
            if int(index.attrs["train_step"]) != self.step or len(index["ranks"]) != RANKS:
                raise Found(f"the index of {self.manifest.name} is of step {index.attrs['train_step']} and {len(index['ranks'])} ranks")
        for rank, entry in enumerate(told["ranks"]):
            self.verify_rank(folder / entry["file"], entry["bytes"], rank, rows)
        if alike:
            self.verify_alike([folder / entry["file"] for entry in told["ranks"]], alike)

    def verify_alike(self, paths: "list[pathlib.Path]", rows: int) -> None:
        """One rank has written it for all."""
        found = []
        for path in paths:
            with h5py.File(path) as file:
                found += [data[...].view("<u8") for data in file["chunks"].values() if data.shape == (rows * cycles_worker.COLUMNS,)]
        wrong = cycles_worker.differs(found[0], self.step + 1, cycles_worker.NOBODY) if len(found) == 1 else f"it is there {len(found)} times"
        if wrong:
            raise Found(f"what all ranks of {self.manifest.name} hold alike: {wrong}")

    def verify_rank(self, path: pathlib.Path, size: int, rank: int, rows: int) -> None:
        if path.stat().st_size != size:
            raise Found(f"{path} has {path.stat().st_size} bytes, its manifest says {size}")
        with h5py.File(path) as file:
            if (int(file.attrs["train_step"]), int(file.attrs["rank"])) != (self.step, rank):
                raise Found(f"{path} is of step {file.attrs['train_step']}, rank {file.attrs['rank']}")
            x = next(data for data in file["chunks"].values() if data.shape == (rows * cycles_worker.COLUMNS,))[...]
        wrong = cycles_worker.differs(x, self.step + 1, rank)
        if wrong:
            raise Found(f"{path}: {wrong}")


class Folder:
    """The lineage's folder on storage."""

    def __init__(self, top: pathlib.Path, rows: int, alike: int) -> None:
        self.top, self.rows, self.alike = top, rows, alike
        self.verified: "set[str]" = set()
        self.highest: "tuple[int, ...]" = ()

    def lineage(self) -> "pathlib.Path | None":
        return next((path for path in self.top.glob("*") if path.is_dir()), None)

    def names(self) -> "list[str]":
        lineage = self.lineage()
        return os.listdir(lineage) if lineage else []

    def checkpoints(self) -> "list[Checkpoint]":
        return sorted((Checkpoint(self.lineage() / name) for name in self.names() if re.fullmatch(r"step-.*\.manifest", name)), key=lambda c: c.key)

    def newest(self) -> "tuple[int, ...]":
        """The key of the newest complete one. It is never removed before a newer one is there, so a listing can not miss it."""
        found = self.checkpoints()
        key = found[-1].key if found else ()
        if key < self.highest:
            raise Found(f"checkpoint {self.highest} was complete on storage, now the newest is {key}")
        self.highest = key
        return key

    def unfinished(self) -> "list[pathlib.Path]":
        """Being written, or left by somebody who died."""
        names = set(self.names())
        return [self.lineage() / name for name in names if re.fullmatch(r"step-[\d.gen-]+", name) and f"{name}.manifest" not in names]

    def check(self) -> int:
        """All complete checkpoints are whole. Returns how many were new."""
        before = len(self.verified)
        suspect = [name for name in self.names() if name.endswith(".suspect")]
        if suspect:
            raise Found(f"set aside as damaged: {suspect}")
        for checkpoint in self.checkpoints():
            if checkpoint.manifest.name in self.verified:
                continue
            try:
                checkpoint.verify(self.rows, self.alike)
            except (OSError, KeyError) as error:
                if checkpoint.manifest.exists():  # else it was not to be kept, and the writer has removed it meanwhile
                    raise Found(f"{checkpoint.manifest}: {error}") from error
                continue
            self.verified.add(checkpoint.manifest.name)
        return len(self.verified) - before


class Training:
    """One job of the lineage."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path, storage: Folder, orders: fault_twins.Orders, options: argparse.Namespace, number: int) -> None:
        self.cluster, self.folder, self.storage, self.label = cluster, folder, storage, f"cycles-{number}"
        self.log = folder / f"output-{number}"
        argv = ["srun", "--job-name", self.label, "-N2", "--ntasks-per-node=2", "--dlrover-elastic", "--dlrover-max-restarts=1000", "--dlrover-name=walk",
                f"--dlrover-ckpt-dir={folder / 'ckpt'}", f"--dlrover-ckpt-every={options.every}", "--dlrover-ckpt-keep=3",
                *worker_argv(folder, options.rows, 1_000_000_000, options.pause, options.alike)]
        with open(self.log, "w") as log:
            # The guard looks for the writer there first.
            environment = worker_environment(DLROVER_SBINDIR=str(folder / "programs"), DLROVER_FAULT_ORDER=str(orders.path("agent")))
            self.process = cluster.start(*argv, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.job = cluster.job_id(self.label, LIMIT_S)

    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, condition, what: str, interval: float = 0.01):
        """The first true result; Found when the job has ended, nothing comes, or what was on storage is gone meanwhile."""
        def look():
            self.storage.newest()
            result = condition()
            if not result and not self.running():
                raise Found(f"{self.label} has ended with {self.process.returncode} instead of: {what}\n{self.log.read_text()[-3000:]}")
            return result

        try:
            return wait_until(look, LIMIT_S, what, interval)
        except AssertionError as error:
            raise Found(f"{self.label}: {error}\n{self.picture()}\n{self.log.read_text()[-3000:]}") from None

    def picture(self) -> str:
        done = self.cluster.run("dlrover", "status", str(self.job), user="root", node=self.cluster.nodes[0])
        return done.stdout + done.stderr + "\n".join(map(str, (p for _, p in self.cluster.processes())))

    def worlds(self) -> "dict[tuple[int, int], dict[int, dict]]":
        """Generation -> rank -> what it restored, of this job."""
        found: "dict[tuple[int, int], dict[int, dict]]" = collections.defaultdict(dict)
        for rank in range(RANKS):
            for entry in read_restored(self.folder, rank):
                if entry["job"] == str(self.job):
                    found[tuple(entry["generation"])][rank] = entry
        return found

    def world(self) -> "World | None":
        """The newest, once every rank of it is there."""
        worlds = self.worlds()
        newest = max(worlds, default=None)
        return World(self, newest, worlds[newest]) if newest and len(worlds[newest]) == RANKS else None

    def status(self) -> "dict | None":
        """The daemon of one node may be dead just now, or not have heard of anything yet."""
        for node in self.cluster.nodes:
            done = self.cluster.run("dlrover", "status", str(self.job), "--json", user="root", node=node)
            groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
            if groups and groups[0]["checkpoints"]:
                return groups[0]
        return None

    def complete_step(self) -> int:
        """The newest step that is complete in memory, as dlrover status tells; -1 where it tells of none."""
        status = self.status()
        return max((c["train_step"] for c in status["checkpoints"] if c["complete"] and not c["suspect"]), default=-1) if status else -1

    def cancel(self) -> None:
        self.send_cancel()
        self.wait_end()

    def send_cancel(self) -> None:
        self.cluster.run("scancel", str(self.job), user="root")

    def wait_end(self) -> None:
        try:
            wait_until(lambda: not self.running(), LIMIT_S, f"the end of {self.label}")
            self.cluster.expect_clean(LIMIT_S)
        except AssertionError as error:
            raise Found(f"{error}\n{self.picture()}\n{self.log.read_text()[-3000:]}") from None


class World:
    """All ranks of one generation, and what they have restored."""

    def __init__(self, training: Training, generation: "tuple[int, int]", entries: "dict[int, dict]") -> None:
        self.generation, self.entries = generation, entries
        self.step = entries[0]["step"]
        path = training.folder / f"page-{training.job}-{generation[0]}:{generation[1]}"
        self.page = cycles_worker.Page(path, RANKS)

    def node_of(self, rank: int) -> str:
        return self.entries[rank]["node"]

    def sealed_by_all(self) -> int:
        """The newest step that each rank has sealed as its last or the one before; -1 where there is none."""
        last = [{a, b} - {0} for a, b in zip(self.page.all("saved"), self.page.all("saved_before"))]
        return max(set.intersection(*last), default=0) - 1


class Programs:
    """The processes on the nodes, to be killed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def all(self, program: str) -> "list[tuple[str, Process]]":
        """(node, process) of those that live and run that file, whatever they call themselves."""
        return [(node, p) for node, p in self.cluster.processes(user_only=False) if p.state != "Z" and self.file(p).startswith(program)]

    @staticmethod
    def file(process: Process) -> str:
        try:
            return os.readlink(f"/proc/{process.pid}/exe").rpartition("/")[2]
        except OSError:
            return ""

    def of_node(self, node: str, program: str) -> "Process | None":
        return next((p for where, p in self.all(program) if where == node), None)

    def places(self, program: str) -> "set[tuple[str, int]]":
        """(node, pid there) of each."""
        return {(node, p.inner_pid) for node, p in self.all(program)}

    def workers(self) -> "list[tuple[str, Process]]":
        return [(node, p) for node, p in self.all("python3") if any(word.endswith("cycles_worker.py") for word in p.command)]

    def worker(self, world: World, rank: int) -> "Process | None":
        entry = world.entries[rank]
        return next((p for node, p in self.workers() if (node, p.inner_pid) == (entry["node"], entry["pid"])), None)

    def agents(self, guards: bool) -> "list[Process]":
        """Guard and agent are one program; the guard is the other one's parent."""
        found = [p for _, p in self.all("dlrover-agent")]
        pids = {p.pid for p in found}
        return [p for p in found if (p.parent not in pids) == guards]


def kill(process: "Process | None") -> bool:
    try:
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
        return process is not None
    except ProcessLookupError:
        return False


class Campaign:
    def __init__(self, cluster: Cluster, orders: fault_twins.Orders, options: argparse.Namespace) -> None:
        self.cluster, self.orders, self.options = cluster, orders, options
        self.random = random.Random(options.seed)
        self.programs = Programs(cluster)
        self.deaths: "collections.Counter[str]" = collections.Counter()
        self.cycles = self.jobs = self.checkpoints = self.restores = 0
        self.training: "Training | None" = None
        self.folder = cluster.work / "cycles"
        self.storage = Folder(self.folder / "ckpt", options.rows, options.alike)
        self.seen = 0
        self.prepare()

    def prepare(self) -> None:
        for path in (self.folder, self.folder / "ckpt", self.folder / "programs"):
            path.mkdir()
            path.chmod(0o777)
        for program in WORKER_FILES:
            (self.folder / program).write_text((pathlib.Path(__file__).parent / program).read_text())
        writer = self.folder / "programs" / "dlrover-writer"
        writer.write_text(WRITER.format(folder=self.folder, program=faults() / "dlrover-writer"))
        writer.chmod(0o755)

    def execute(self) -> None:
        while self.cycles < self.options.cycles:
            bag = list(self.options.points)
            self.random.shuffle(bag)
            for point in bag[:self.options.cycles - self.cycles]:
                self.one_cycle(point)
        if self.training:
            self.end_training()

    def one_cycle(self, point: str) -> None:
        begun = time.monotonic()
        program, name = point.split(":")
        try:
            if program == "alone":
                self.die_alone(name)
            else:
                self.one_cycle_of_training(program, name)
        except Found as error:
            self.tell_last_minute()
            raise Found(f"cycle {self.cycles + 1} ({point}): {error}") from error
        self.cycles += 1
        print(f"{self.cycles} {point}: {time.monotonic() - begun:.1f} s", flush=True)

    def tell_last_minute(self) -> None:
        if not self.training:
            return
        print(self.training.log.read_text(errors="replace")[-4000:], flush=True)
        since = (time.time() - 60) * 1e6
        for event in self.cluster.events(self.training.job):
            if event["time_us"] > since and not event["kind"].startswith("checkpoint-"):
                print(f"    {event['time_us'] / 1e6:.3f} {event['node']} {event['generation']['number']} {event['text']}", flush=True)
        for node in self.cluster.nodes:
            done = self.cluster.run("dlrover", "status", str(self.training.job), user="root", node=node)
            print(node, done.stdout, done.stderr, flush=True)

    def one_cycle_of_training(self, program: str, name: str) -> None:
        world = self.healthy_world()
        complete = self.training.complete_step()
        restart = {"worker": self.kill_worker, "writer": self.kill_writer, "daemon": self.kill_daemon, "daemons": self.kill_daemons,
                   "several": self.kill_several, "agent": self.kill_agent, "guard": self.kill_agent}[program](world, name, program)
        if program in ("agent", "guard"):
            return self.check_next_job()
        self.check(world, complete, restart)

    # ---- what holds between and after the deaths ----

    def healthy_world(self) -> World:
        """Every rank has restored, and a step newer than that is complete: else the next death would come back from the same step again."""
        if not self.training:
            self.jobs += 1
            self.training = Training(self.cluster, self.folder, self.storage, self.orders, self.options, self.jobs)
        training = self.training

        def stepping() -> "World | None":
            world = training.world()
            return world if world and world.sealed_by_all() > world.step else None

        def complete() -> "World | None":
            world = stepping()
            return world if world and training.complete_step() > world.step else None

        training.wait(stepping, "all ranks in one generation, and a step sealed by each")
        return training.wait(complete, "a complete step newer than the restored one", 0.1)

    def check(self, before: World, complete: int, restart: bool) -> None:
        training, newest = self.training, self.storage.newest()
        if restart:
            training.wait(lambda: (training.world() or before).generation > before.generation, "all ranks in a newer generation")
        begun = max(self.healthy_world().page.all("begun"))

        def newer_steps() -> "World | None":
            world = training.world()
            return world if world and min(world.page.all("saved")) > begun else None

        world = training.wait(newer_steps, "every rank seals newer steps")
        training.wait(lambda: self.storage.newest() > newest, "a newer checkpoint on storage")
        if not restart and world.generation != before.generation:
            raise Found(f"workers were restarted (generation {before.generation}, now {world.generation}) though none had died")
        safe = max(complete, before.sealed_by_all(), before.step)
        for generation, entries in training.worlds().items():
            if generation > before.generation and any(entry["step"] < safe for entry in entries.values()):
                raise Found(f"step {safe} was complete, but in generation {generation} the ranks went on from {list(entries.values())}")
        self.check_stored()
        self.check_restores()

    def check_stored(self) -> None:
        self.storage.newest()
        self.checkpoints += self.storage.check()

    def check_restores(self) -> None:
        """In every generation, however short its life, all ranks have restored one step, and its state."""
        worlds = self.training.worlds()
        for generation, entries in worlds.items():
            wrong = [entry for entry in entries.values() if entry["wrong"]]
            if wrong or len({entry["step"] for entry in entries.values()}) != 1:
                raise Found(f"generation {generation}: {list(entries.values())}")
        self.restores += sum(map(len, worlds.values())) - self.seen
        self.seen = sum(map(len, worlds.values()))

    def check_next_job(self) -> None:
        """Its ranks go on from the newest checkpoint on storage."""
        self.check_stored()
        self.check_restores()
        newest = self.storage.newest()
        self.training, self.seen = None, 0
        world = self.healthy_world()
        first = min(self.training.worlds().items())[1]
        if {entry["step"] for entry in first.values()} != {newest[-1]}:
            raise Found(f"the newest checkpoint on storage is {newest}, but the next job's ranks began with {list(first.values())}")
        self.training.wait(lambda: self.storage.newest() > newest, f"a newer checkpoint on storage after step {world.step}")
        self.check_stored()
        self.check_restores()

    def end_training(self) -> None:
        """Nothing that was complete at the end is lost, and nothing is left over."""
        self.healthy_world()
        complete = self.training.complete_step()
        self.training.cancel()
        self.check_stored()
        self.check_restores()
        self.check_last(complete)

    def check_last(self, complete: int) -> None:
        if self.storage.newest()[-1] < complete and not self.told_late():
            raise Found(f"step {complete} was complete when the job was cancelled, but the newest checkpoint on storage is {self.storage.newest()}")

    def told_late(self) -> bool:
        """A machine too slow for end_limit: then the end is without the last checkpoint, and says so."""
        return any("not on storage in time" in event["text"] for event in self.cluster.events(self.training.job))

    # ---- the deaths ----

    def wait_for_moment(self, name: str) -> None:
        """Something is just being saved, brought to storage, or made complete there; then a little later."""
        training = self.training
        if name == "save":
            training.wait(lambda: cycles_worker.SAVING in training.world().page.all("phase"), "a rank that saves", 0)
        elif name == "flush":
            training.wait(self.storage.unfinished, "a checkpoint on its way to storage", 0.001)
        elif name == "commit":
            training.wait(lambda: any(self.all_files(path) for path in self.storage.unfinished()), "a checkpoint with all its files", 0)
        time.sleep(self.random.random() * {"save": 0.004, "flush": 0.04, "commit": 0.004, "any": 0.3}[name])

    @staticmethod
    def all_files(path: pathlib.Path) -> bool:
        try:
            return sum(name.startswith("rank-") for name in os.listdir(path)) == RANKS
        except OSError:
            return False

    def kill_worker(self, world: World, name: str, _program: str) -> bool:
        rank = self.random.randrange(RANKS)
        if name in WORKER_POINTS:
            self.order_worker(rank, name)
            self.await_worker(world, rank, name)
            return True
        if name == "any":
            self.wait_for_moment("any")
        running = {p.pid for _, p in self.programs.workers()}
        if not kill(self.programs.worker(world, rank)):
            raise Found(f"rank {rank} of {world.generation} has no process: {world.entries[rank]}")
        self.deaths[f"worker:{'any' if name == 'any' else 'one of two'}"] += 1
        if name == "restart":
            self.kill_restarting(running, rank)
        return True

    def kill_restarting(self, running: "set[int]", first: int) -> None:
        """Another rank dies while the group comes back."""
        def fresh() -> "list[Process]":
            found = [p for _, p in self.programs.workers() if p.pid not in running]
            return [p for p in found if p.environment().get("RANK") not in (None, str(first))]

        victim = self.random.choice(self.training.wait(fresh, "processes of the next generation"))
        time.sleep(self.random.random() * 0.5)
        self.deaths["worker:restart"] += kill(victim)

    def order_worker(self, rank: int, name: str) -> None:
        taken = self.folder / f"taken-rank-{rank}"
        taken.unlink(missing_ok=True)
        nth = self.random.randint(1, 8 if name == "mid_copy" else 3)  # a save copies blocks of 1 MiB
        fault_twins.place(self.folder / f"order-rank-{rank}", f"{name}:{nth}")

    def await_worker(self, world: World, rank: int, name: str) -> None:
        self.training.wait((self.folder / f"taken-rank-{rank}").exists, f"rank {rank} takes its order")
        self.training.wait(lambda: self.programs.worker(world, rank) is None, f"rank {rank} dies at {name}")
        self.deaths[f"worker:{name}"] += 1

    def kill_writer(self, world: World, name: str, _program: str) -> bool:
        node = world.node_of(0) if name in COMMIT_POINTS else self.random.choice(self.cluster.nodes)
        if name == "any":
            self.wait_for_moment(self.random.choice(("flush", "commit", "any")))
            self.deaths["writer:any"] += kill(self.programs.of_node(node, "dlrover-writer"))
            return False
        self.await_writer(node, name, self.order_writer(node, name))
        return False

    def writer_starts(self, node: str) -> int:
        path = self.folder / f"writers-{node}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def order_writer(self, node: str, name: str) -> int:
        """The writer that runs now dies too: the next one takes the order along. Returns how many had started."""
        nth = self.random.randint(1, {"writer_mid_file": 8, "writer_before_file": 4, "writer_before_rename": 4}.get(name, 2))
        self.training.wait(lambda: self.programs.of_node(node, "dlrover-writer"), f"a writer on {node}")
        fault_twins.place(self.folder / f"order-writer-{node}", f"{name}:{nth}")
        starts = self.writer_starts(node)
        self.deaths["writer:any"] += kill(self.programs.of_node(node, "dlrover-writer"))
        return starts

    def await_writer(self, node: str, name: str, starts: int) -> None:
        self.training.wait(lambda: self.writer_starts(node) > starts, f"the next writer on {node}")
        if self.folder.joinpath(f"order-writer-{node}").exists():
            raise Found(f"the writer on {node} was started without taking its order")
        self.training.wait(lambda: self.writer_starts(node) > starts + 1, f"the writer on {node} dies at {name}, and another starts")
        self.deaths[f"writer:{name}"] += 1

    def kill_daemons_of(self, nodes: "list[str]", name: str) -> None:
        old = {node: self.training.wait(lambda n=node: self.programs.of_node(n, "dlroverd"), f"a daemon on {node}") for node in nodes}
        self.wait_for_moment(name)
        for process in old.values():
            kill(process)
        for node, process in old.items():
            self.await_daemon(node, process.inner_pid)

    def await_daemon(self, node: str, former: int) -> None:
        def another() -> bool:
            return any(where == node and pid != former for where, pid in self.programs.places("dlroverd"))

        self.training.wait(another, f"another daemon on {node}")

    def die_at(self, world: World, program: str, name: str) -> "tuple[str, int]":
        """Somebody dies of an order at that point. Returns his node, and what his pid was there."""
        node = "" if name in fault_twins.ONE_NODE_POINTS else self.random.choice(self.cluster.nodes)
        file = fault_twins.PROGRAMS[program]
        living = self.programs.places(file)
        self.orders.give(program, name, node)
        self.lead_to(world, name, node)
        victim = self.training.wait(lambda: self.orders.taken(program), f"{program} dies at {name} on {node or 'any node'}")
        if victim not in living:
            raise Found(f"process {victim} took the order to die at {name}, and is none of {living}")
        wait_until(lambda: victim not in self.programs.places(file), LIMIT_S, f"the death of {victim} at {name}")
        self.deaths[f"{program}:{name}"] += 1
        return victim

    def lead_to(self, world: World, name: str, node: str) -> None:
        """To a point that a training does not pass by itself."""
        if name in fault_twins.RESTART_POINTS:
            self.kill_any_worker(world)
        elif name in fault_twins.END_POINTS:
            self.training.send_cancel()
        elif name in fault_twins.HELPER_POINTS:
            self.deaths["writer:any"] += kill(self.training.wait(lambda: self.programs.of_node(node, "dlrover-writer"), f"a writer on {node}"))

    def kill_any_worker(self, world: World) -> None:
        rank = self.random.randrange(RANKS)
        if not kill(self.programs.worker(world, rank)):
            raise Found(f"rank {rank} of {world.generation} has no process: {world.entries[rank]}")
        self.deaths["worker:one of two"] += 1

    def kill_daemon(self, world: World, name: str, program: str) -> bool:
        if name in fault_twins.POINTS[program]:
            return self.kill_daemon_at(world, name)
        self.kill_daemons_of([self.random.choice(self.cluster.nodes)], name)
        self.deaths[f"daemon:{name}"] += 1
        return False

    def kill_daemon_at(self, world: World, name: str) -> bool:
        """Every other time a worker dies with it: then the group goes on from what is on record."""
        victim = self.die_at(world, "daemon", name)
        restart = name in fault_twins.RESTART_POINTS
        if not restart and self.random.random() < 0.5:
            self.kill_any_worker(world)
            restart = True
        self.await_daemon(*victim)
        return restart

    def kill_daemons(self, _world: World, name: str, _program: str) -> bool:
        """All at once."""
        self.kill_daemons_of(self.cluster.nodes, name)
        self.deaths["daemons:any"] += len(self.cluster.nodes)
        return False

    def kill_several(self, world: World, name: str, _program: str) -> bool:
        """A worker, a writer and a daemon."""
        rank, point, node = self.random.randrange(RANKS), self.random.choice(WORKER_POINTS), self.random.choice(self.cluster.nodes)
        writer_point = self.random.choice(WRITER_POINTS[:3])
        starts = self.order_writer(node, writer_point)
        self.kill_daemons_of([self.random.choice(self.cluster.nodes)], name)
        self.deaths["several:daemon"] += 1
        self.order_worker(rank, point)
        self.await_worker(world, rank, point)
        self.await_writer(node, writer_point, starts)
        return True

    def kill_agent(self, world: World, name: str, program: str) -> bool:
        """Its task is over, and this job with it."""
        if name in fault_twins.POINTS[program]:
            return self.kill_agent_at(world, name, program)
        victim = self.random.choice(self.programs.agents(guards=program == "guard"))
        self.wait_for_moment(name)
        self.deaths[f"{program}:{name}"] += kill(victim)
        self.training.cancel()
        return False

    def kill_agent_at(self, world: World, name: str, program: str) -> bool:
        complete = self.training.complete_step()
        self.die_at(world, program, name)
        if name not in fault_twins.END_POINTS:
            self.training.send_cancel()
        self.training.wait_end()
        if name in fault_twins.LAST_STORED_POINTS:
            self.check_last(complete)
        return False

    def die_alone(self, name: str) -> None:
        """Without a daemon the library keeps checkpoints in files."""
        folder = self.folder / f"alone-{self.cycles}"
        folder.mkdir()
        for program in WORKER_FILES:
            (folder / program).symlink_to(self.folder / program)
        sealed = -1
        for fault in (f"{name}:{self.random.randint(1, 12)}", f"{name}:{self.random.randint(1, 12)}", ""):
            done = subprocess.run(worker_argv(folder, self.options.rows, sealed + 20, 0.0), capture_output=True, text=True, timeout=LIMIT_S, check=False,
                                  env={"PATH": os.environ["PATH"], "DLROVER_LOCAL_DIR": str(folder / "files"), **worker_environment(DLROVER_FAULT=fault)})
            if done.returncode != (-signal.SIGKILL if fault else 0):
                raise Found(f"alone with {fault or 'no fault'}: exit code {done.returncode}\n{done.stderr}")
            self.deaths[f"alone:{name}"] += bool(fault)
            found = read_restored(folder, 0)[-1]
            if found["wrong"] or found["step"] < sealed:
                raise Found(f"step {sealed} was in a file, but {found} was restored")
            sealed = cycles_worker.Page(folder / "page--0:0", 1).get(0, "saved") - 1
        self.restores += 3


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--points", default="*", help=f"patterns with commas between them, of {', '.join(POINTS)}")
    parser.add_argument("--rows", type=int, default=600, help="a rank's state, each of 8000 bytes")
    parser.add_argument("--alike", type=int, default=0, help="rows that all ranks hold alike besides, not as many as --rows (needs Debian's python3-torch)")
    parser.add_argument("--every", type=int, default=3, help="of the complete steps goes to storage")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds that a step takes besides the save")
    options = parser.parse_args()
    patterns = options.points.split(",")
    known = [p for p in POINTS if any(fnmatch.fnmatch(p, q) or p.split(":")[0] == q for q in patterns)]
    if not known or any(not any(fnmatch.fnmatch(p, q) or p.split(":")[0] == q for p in POINTS) for q in patterns):
        parser.error(f"--points: take some of {', '.join(POINTS)}")
    options.points = known
    return options


def run_campaign(options: argparse.Namespace, settings: pathlib.Path) -> "tuple[Campaign, str]":
    with tempfile.TemporaryDirectory(prefix="dlrover-cycles-") as folder:
        installation = fault_twins.Installation(pathlib.Path(folder), prefix(), faults())
        arguments = ("--prefix", str(installation.prefix), "--share", folder, "--share", str(prefix()), "--share", str(build()),
                     "--conf", "KillWait=120", "--dlrover-conf", str(settings))
        with Cluster("cycles", nodes=2, arguments=arguments) as cluster:
            return run_on(cluster, installation, options)


def run_on(cluster: Cluster, installation: fault_twins.Installation, options: argparse.Namespace) -> "tuple[Campaign, str]":
    campaign = Campaign(cluster, installation.orders, options)
    try:
        campaign.execute()
    except (Found, AssertionError) as error:
        return campaign, str(error)
    return campaign, ""


def main() -> int:
    options = parse_options()
    for file in (fault_library(), *(faults() / name for name in ("dlroverd", "dlrover-agent", "dlrover-writer"))):
        if not file.exists():
            raise SystemExit(f"{file} is not there: make it (make fault-programs)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM: nothing is left running, nothing was shown"))
    print(f"installation {prefix()}, seed {options.seed}", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(SETTINGS)
        settings.flush()
        campaign, found = run_campaign(options, pathlib.Path(settings.name))
    for point, count in sorted(campaign.deaths.items()):
        print(f"{count:6} {point}")
    print(f"{campaign.cycles} cycles, {sum(campaign.deaths.values())} deaths, {campaign.jobs} jobs, {campaign.restores} states restored, "
          f"{campaign.checkpoints} checkpoints on storage read")
    print(f"FOUND (seed {options.seed}): {found}" if found else "always a common step, whole, and none lost")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
