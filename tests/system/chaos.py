# SPDX-License-Identifier: Apache-2.0
"""Random faults on a real cluster of virtual nodes, from a seed: a schedule is drawn (pure: the same seed, the same schedule), carried out, and what
the group did is judged by what it promises."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
import typing

from cluster import Cluster, Hosts, wait_until
from heat import Run, reference
from mcluster import faults as host_faults
from mcluster import net

SIZE, STEPS, STEP_US = 256, 1500, 4000
CLUSTER_NODES = 7
#: slurmstepd that does not reach slurmctld with the end of its step tries again after a minute, and can not be killed until then: its node would be drained.
#: SlurmdTimeout: longer than any cut or freeze takes, on a busy machine too: Slurm kills what ran on a node that it has given up.
SETTINGS = ("CPUs=32", "UnkillableStepTimeout=90", "SlurmdTimeout=15")
#: What ends a node for its group, and what does not. Seconds: how long it lasts, where it passes.
LOSSES = {"power-off": (0, 0), "power-off of two": (0, 0), "long cut": (6, 9), "long freeze": (6, 9)}
#: In place of a long cut: the node reaches slurmctld, but none of the others.
SPLIT = "long split"
NUISANCES = {"worker": (0, 0), "workers": (0, 0), "daemon": (0, 0), "mover": (0, 0), "writer": (0, 0), "short freeze": (0.05, 0.4),
             "short cut": (0.05, 0.4), "no slurmctld": (0.5, 3)}
PLACES = ("leader", "batch host", "with ranks", "spare", "any")


@dataclasses.dataclass(frozen=True)
class Fault:
    after: float  # seconds after the one before
    kind: str
    place: str
    lasts: float

    def __str__(self) -> str:
        return f"+{self.after:.2f} s {self.kind} ({self.place}{f', {self.lasts:.2f} s' if self.lasts else ''})"

    @property
    def nodes(self) -> int:
        """That are lost to the group."""
        return 0 if self.kind in NUISANCES else 2 if self.kind.endswith("two") else 1


@dataclasses.dataclass(frozen=True)
class Schedule:
    seed: int
    workers: int
    least: int  # workers that it goes on with
    spares: int
    copies: int  # so many nodes may be lost at once
    redundancy: str
    storage: bool
    companions: bool
    faults: "tuple[Fault, ...]"

    @property
    def requeues(self) -> bool:
        """More nodes are lost than spares stand by and it can do without."""
        return sum(fault.nodes for fault in self.faults) > self.spares + self.workers - self.least

    @property
    def needs_lost_nodes(self) -> bool:
        """A job that is requeued needs as many nodes as before, spares too."""
        return self.requeues and sum(fault.nodes for fault in self.faults) > CLUSTER_NODES - self.workers - self.spares

    def __str__(self) -> str:
        head = f"{self.least}:{self.workers} nodes and {self.spares} spares, {self.redundancy}, {'storage' if self.storage else 'no storage'}{', companions' if self.companions else ''}"
        return f"{head}: {', '.join(map(str, self.faults))}"


def draw_redundancy(chooser: random.Random, workers: int, copies: int) -> "tuple[int, str]":
    """Parities where there are nodes enough, of a third of those."""
    codes = [(k, m) for k, m in ((2, 1), (3, 1), (2, 2)) if k + m <= workers]
    if not codes or chooser.random() >= 1 / 3:
        return copies, f"partner:{copies}"
    k, m = chooser.choice(codes)
    return m, f"rs:{k}+{m}"


def draw_least(chooser: random.Random, workers: int, redundancy: str) -> int:
    """Half of those whose redundancy allows it go on with a node less, or two."""
    kind, _, numbers = redundancy.partition(":")
    needed = sum(map(int, numbers.split("+"))) + (kind == "partner")
    return chooser.randint(max(needed, workers - 2), workers - 1) if needed < workers and chooser.random() < 0.5 else workers


def draw_shrinking(chooser: random.Random, workers: int, least: int, spares: int, faults: "list[Fault]") -> "list[Fault]":
    """Then nodes more are lost than stand by."""
    lost = sum(fault.nodes for fault in faults)
    room = min(spares + workers - least, CLUSTER_NODES - workers) - lost
    return [Fault(chooser.uniform(0, 3), "power-off", chooser.choice(PLACES), 0) for _ in range(min(room, workers - least, 5 - len(faults)))] if least < workers else []


def draw_splits(chooser: random.Random, nodes: int, faults: "tuple[Fault, ...]") -> "tuple[Fault, ...]":
    """Half of the long cuts, where who loses is known: the one that is alone."""
    return tuple(dataclasses.replace(f, kind=SPLIT) if f.kind == "long cut" and nodes > 2 and chooser.random() < 0.5 else f for f in faults)


def draw(seed: int) -> Schedule:
    chooser = random.Random(seed)
    workers = chooser.randint(2, 4)
    spares = chooser.randint(0, 2)
    copies = chooser.randint(1, min(2, workers - 1))
    bearable = min(spares + (chooser.random() < 0.3), CLUSTER_NODES - workers)
    found: "list[Fault]" = []
    for _ in range(chooser.randint(1, 5)):
        losses = [kind for kind in LOSSES if Fault(0, kind, "", 0).nodes <= bearable - sum(fault.nodes for fault in found)]
        kinds = losses if losses and chooser.random() < 0.5 else list(NUISANCES)
        kind = chooser.choice(kinds)
        lasts = chooser.uniform(*{**LOSSES, **NUISANCES}[kind])
        # Often in the midst of what the one before has begun.
        after = chooser.choice((chooser.uniform(0, 0.3), chooser.uniform(0, 3), chooser.uniform(1.5, 2.5)))
        found.append(Fault(after, kind, chooser.choice(PLACES), lasts))
    # By generators of their own: what a seed does besides is what it was before there were these.
    copies, redundancy = draw_redundancy(random.Random(f"redundancy of {seed}"), workers, copies)
    least = draw_least(random.Random(f"least of {seed}"), workers, redundancy)
    found += draw_shrinking(random.Random(f"losses of {seed}"), workers, least, spares, found)
    found = list(draw_splits(random.Random(f"splits of {seed}"), workers + spares, tuple(found)))
    schedule = Schedule(seed, workers, least, spares, copies, redundancy, chooser.random() < 0.5, chooser.random() < 0.5, tuple(found))
    if schedule.requeues:  # a node that comes back with ranks of the job's run before is not told from one of this run by heat
        plain = tuple(dataclasses.replace(f, kind="power-off", lasts=0) if f.kind.startswith("long") else f for f in found)
        schedule = dataclasses.replace(schedule, faults=plain)
    return schedule


class ChaosRun(Run):
    """A batch job that may be requeued, all of whose places are needed."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.schedule = schedule
        label = f"chaos-{schedule.seed}"
        srun = [f"--dlrover-redundancy={schedule.redundancy}", "--dlrover-max-restarts=1000", "--mem=400",
                f"--dlrover-companion={'yes' if schedule.companions else 'no'}"]
        if schedule.storage:
            srun += [f"--dlrover-ckpt-dir={cluster.work / label / 'stored'}", "--dlrover-ckpt-every=10"]
        super().__init__(cluster, label, srun=tuple(srun), spares=schedule.spares, nodes=schedule.workers + schedule.spares, size=SIZE, steps=STEPS,
                         save_every=5, step_us=STEP_US, ballast_mb=2 if schedule.least == schedule.workers else 0, older_may_live=True)  # ballast is a rank's own

    def elastic(self, spares: int) -> "list[str]":
        return [f"--dlrover-elastic={self.schedule.least}:{self.schedule.workers}", f"--dlrover-spares={spares}"]

    def submit(self) -> "ChaosRun":
        script = self.folder / "job.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH {' '.join(self.options)} --requeue --open-mode=append\nsrun {' '.join(self.command)}\n")
        self.begun = time.time()
        done = self.cluster.run("sbatch", "--parsable", "-o", str(self.folder / "stdout"), str(script), check=True)
        self.job = int(done.stdout)
        return self

    def show(self) -> str:
        """As Slurm knows it; empty while nobody answers."""
        return self.cluster.run("scontrol", "-o", "show", "job", str(self.job), user="root").stdout


@dataclasses.dataclass
class Start:
    """A rank's process that has begun to step."""
    rank: int
    started: float
    generation: int
    restored: int


class Watcher:
    """Notes each process of each rank, from which step it went on, as long as it is entered."""

    def __init__(self, run: Run) -> None:
        self.run, self.starts = run, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self) -> "Watcher":
        self.thread.start()
        return self

    def __exit__(self, *_rest) -> None:
        self.over.set()
        self.thread.join()

    def watch(self) -> None:
        seen: "dict[int, int]" = {}
        while not self.over.wait(0.002):
            for rank, page in enumerate(self.run.pages):
                started = page.started_us
                if page.first_step_us > 0 and seen.get(rank) != started:
                    start = Start(rank, started / 1e6, page.generation, page.restored_step)
                    if started == page.started_us:  # else its successor is just beginning
                        seen[rank] = started
                        self.starts.append(start)


@dataclasses.dataclass
class Promise:
    """From `since` on no rank may go on from a step before `step`."""
    since: float
    step: int
    why: str


class Trial:
    """One schedule, carried out."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.cluster, self.schedule = cluster, schedule
        self.hosts = Hosts.load(cluster.name)
        self.chooser = random.Random(schedule.seed + 1)
        self.run = ChaosRun(cluster, schedule)
        self.lost: "list[str]" = []
        self.touched: "set[str]" = set()
        self.promises: "list[Promise]" = []
        self.given_up = -1  # the generation in which all copies may have gone: a step is called safe until the group knows
        self.known_safe: "list[tuple[float, int]]" = []  # what was, when nodes were lost
        self.since_safe = 0  # nodes lost since a newer step was safe
        self.faults: "list[str]" = []
        self.story: "list[str]" = []
        self.corrected = False
        self.slurmctld_down = False
        self.passing: "list[threading.Thread]" = []
        self.known_nodes: "list[str]" = []

    def execute(self) -> "list[str]":
        try:
            with Watcher(self.run) as watcher:
                self.run.submit()
                self.begin()
                for fault in self.schedule.faults:
                    time.sleep(fault.after)
                    self.inflict(fault)
                for thread in self.passing:
                    thread.join()
                self.expect_end()
            self.judge(watcher.starts)
        except AssertionError as error:
            self.fault(str(error))
        finally:
            self.tidy()
        return self.faults

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def say(self, text: str) -> None:
        self.story.append(f"{time.time():.3f} {text}")

    def begin(self) -> None:
        self.run.wait_for_steps()
        wait_until(lambda: self.safe() > 20, 40, "safe steps", 0.05)

    # ---- what is known ----

    def status(self) -> dict:
        """As a node says that is still in it; empty where none does now."""
        for node in self.cluster.nodes:
            if node in self.lost:
                continue
            with contextlib.suppress(AssertionError, ValueError, IndexError, OSError):
                found = self.run.status(node)
                if found["state"] in ("running", "recovering") or found.get("ranks"):
                    return found
        return {}

    def safe(self) -> int:
        return (self.status().get("copies") or {}).get("safe_step", -1)

    def alive(self) -> "list[str]":
        return [node for node in self.group_nodes() if node not in self.lost]

    def field(self, name: str) -> str:
        return next((word[len(name) + 1:] for word in self.run.show().split() if word.startswith(name + "=")), "")

    def group_nodes(self) -> "list[str]":
        """As Slurm has said last."""
        named = self.field("NodeList")
        if named and named != "(null)":
            done = self.cluster.run("scontrol", "show", "hostnames", named, user="root")
            self.known_nodes = done.stdout.split() or self.known_nodes
        return self.known_nodes

    def batch_host(self) -> str:
        return self.field("BatchHost")

    def choose(self, place: str, count: int) -> "list[str]":
        """Nodes of the group at such a place; others where there are not enough."""
        status = self.status()
        alive = self.alive()
        with_ranks = {rank["node"] for rank in status.get("ranks", [])}
        liked = {"leader": [status.get("leader", "")], "batch host": [self.batch_host()], "with ranks": [n for n in alive if n in with_ranks],
                 "spare": [n for n in alive if n not in with_ranks], "any": alive}[place]
        first = [node for node in liked if node in alive]
        self.chooser.shuffle(first)
        rest = [node for node in alive if node not in first]
        self.chooser.shuffle(rest)
        return (first + rest)[:count]

    # ---- faults ----

    def too_late(self, fault: Fault) -> bool:
        # Ranks of a node that has not been replaced are in an older generation for good.
        newest = max(self.run.pages, key=lambda page: page.started_us).generation
        late = {page.phase_name for page in self.run.pages if page.generation == newest} == {"done"}
        if late:
            self.say(f"{fault}: too late, all ranks are done")
        return late

    def inflict(self, fault: Fault) -> None:
        if self.too_late(fault):
            return
        if fault.kind == "no slurmctld":
            return self.stop_slurmctld(fault.lasts)
        if not fault.nodes:
            self.promise([])
        if fault.kind in ("worker", "workers"):
            return self.kill_workers(1 if fault.kind == "worker" else self.chooser.randint(2, len(self.run.pages)))
        nodes = self.choose(fault.place, max(fault.nodes, 1))  # asks slurmctld, which may be away for seconds
        if self.too_late(fault):
            return
        self.say(f"{fault.kind}: {', '.join(nodes)}")
        if fault.nodes:
            return self.lose(fault, nodes)
        for node in nodes:
            self.disturb(fault, node)

    def stop_slurmctld(self, seconds: float) -> None:
        if self.slurmctld_down:
            return self.say("slurmctld is down already")
        self.say(f"slurmctld is down for {seconds:.2f} s")
        self.slurmctld_down = True
        self.cluster.control("stop-slurmctld")
        self.later(seconds, self.start_slurmctld)

    def start_slurmctld(self) -> None:
        self.cluster.control("start-slurmctld")
        self.slurmctld_down = False

    def kill_workers(self, count: int) -> None:
        killed = [rank for rank, page in self.chooser.sample(list(enumerate(self.run.pages)), count) if page.kill_now()]
        self.say(f"ranks {killed} were killed")

    def disturb(self, fault: Fault, node: str) -> None:
        if fault.kind == "daemon":
            pid = self.cluster.daemon_pid(node)
            if pid:
                os.kill(pid, signal.SIGKILL)
        elif fault.kind in ("mover", "writer"):
            for where, process in self.cluster.processes():
                if where == node and process.command and process.command[0].endswith("/dlrover-" + fault.kind):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
        elif fault.kind == "short freeze":
            self.pause(lambda: host_faults.freeze(self.hosts, node), lambda: host_faults.thaw(self.hosts, node), fault.lasts)
        else:
            self.pause(lambda: self.cluster.lose(node, power=False), lambda: self.cluster.control("heal-link", node), fault.lasts)

    def pause(self, begin: "typing.Callable[[], object]", end: "typing.Callable[[], object]", seconds: float) -> None:
        begin()
        time.sleep(seconds)
        end()

    def later(self, seconds: float, what: "typing.Callable[[], object]") -> None:
        def wait() -> None:
            time.sleep(seconds)
            what()
            self.say("and it is back")
        thread = threading.Thread(target=wait)
        self.passing.append(thread)
        thread.start()

    def lose(self, fault: Fault, nodes: "list[str]") -> None:
        self.promise(nodes)
        self.lost += nodes
        self.touched.update(nodes)
        if fault.kind == "long freeze":
            host_faults.freeze(self.hosts, nodes[0])
            self.later(fault.lasts, lambda: host_faults.thaw(self.hosts, nodes[0]))
        elif fault.kind == SPLIT:
            net.separate(self.hosts, nodes, [node for node in self.cluster.nodes if node != nodes[0] and self.hosts.pid(node) is not None])
            self.later(fault.lasts, lambda: self.cluster.control("rejoin"))
        else:
            self.cluster.lose(*nodes, power=fault.kind != "long cut")
        if fault.kind == "long cut":
            self.later(fault.lasts, lambda: self.cluster.control("heal-link", nodes[0]))

    def promise(self, nodes: "list[str]") -> None:
        """What must not be lost by the loss of these nodes, or by what costs none."""
        status = self.status()
        safe = (status.get("copies") or {}).get("safe_step", -1)
        stored = (status.get("storage") or {}).get("stored_step", -1)
        newest = max((promise.step for promise in self.promises), default=-1)
        if safe > newest and self.run.generation() != self.given_up and status.get("state") == "running":
            self.since_safe = 0
        self.since_safe += len(nodes)
        if safe >= 0:
            self.known_safe.append((time.time(), safe))
        what = f"the loss of {', '.join(nodes)}" if nodes else "what costs no node"
        if self.since_safe <= self.schedule.copies:
            self.promises.append(Promise(time.time(), max(safe, newest), f"step {safe} was safe before {what}"))
        else:  # all copies may be gone: what is on storage is still there
            self.promises.append(Promise(time.time(), stored, f"step {stored} was on storage before {what}"))
            self.given_up = self.run.generation()
            self.say("more nodes than the redundancy covers")

    # ---- the end ----

    def expect_end(self) -> None:
        # Not by the ranks' pages: one of a node that was frozen may still write into its successor's.
        try:
            if self.schedule.needs_lost_nodes:
                # It may have ended just before the loss, or go on all the same.
                wait_until(lambda: any(words in self.run.show() for words in ("Restarts=1 ", "JobState=COMPLETED ")), 150, "the job requeued, or at its end", 0.2)
                if "Restarts=1 " in self.run.show():
                    for node in self.lost:
                        self.cluster.start_node(node)
                    self.say("the lost nodes were booted")
            wait_until(lambda: "JobState=COMPLETED " in self.run.show(), 150, "the job's end", 0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.run.show()}") from None
        if "ExitCode=0:0 " not in self.run.show():
            self.fault(f"the job's exit code: {self.field('ExitCode')}")

    def judge(self, starts: "list[Start]") -> None:
        self.corrected = "tasks on nodes that it had lost" in self.run.output()
        if self.run.violations():
            self.fault(self.run.violations())
        if self.run.out.read_bytes() != reference(self.cluster, SIZE, STEPS):
            self.fault("the field differs from the undisturbed one")
        story = self.run.time_line()
        worlds = collections.defaultdict(set)
        for start in starts:
            worlds[start.generation].add(start.restored)
            broken = self.broken(start) or self.unsaid(start, story)
            if broken:
                self.fault(f"rank {start.rank} of generation {start.generation} went on from step {start.restored}: {broken}")
        # The next run counts its generations anew. (On a busy machine a short cut may cost a node that the schedule did not mean to take.)
        requeued = self.schedule.requeues or "Restarts=0 " not in self.run.show()
        for generation, steps in worlds.items():
            if len(steps) > 1 and not requeued:
                self.fault(f"ranks of generation {generation} went on from different steps: {sorted(steps)}")

    def broken(self, start: Start) -> str:
        """The promise in force when this process began that it broke."""
        given = [promise for promise in self.promises if promise.since <= start.started]
        # A loss of all copies takes back what was promised before it.
        return given[-1].why if given and start.restored < given[-1].step else ""

    def unsaid(self, start: Start, story: str) -> str:
        """Who goes on from a step that is older than what was safe has it from storage, or begins anew, and the time line of that generation says so."""
        if story and start.started < float(story.split()[0]):
            return ""  # in a run before: its time line has gone with the requeue
        safe = [step for when, step in self.known_safe if when <= start.started]
        words = f"from step {start.restored} on storage" if start.restored >= 0 else "from the beginning"
        if not safe or start.restored >= safe[-1] or any(words in line for line in story.splitlines() if line.split()[2:3] == [str(start.generation)]):
            return ""
        return f"step {safe[-1]} had been safe, and the time line does not say: {words}"

    def tidy(self) -> None:
        for thread in self.passing:
            thread.join()
        if self.faults:
            with contextlib.suppress(AssertionError):  # a job that never was
                self.story += ["", self.run.time_line(), self.run.output()]
        self.cluster.run("scancel", str(self.run.job), user="root")
        for node in self.touched:
            self.cluster.control("kill-node", node, check=False)
            self.cluster.start_node(node)
        try:
            self.cluster.expect_clean(20)
            without_slurmctld = any(fault.kind == "no slurmctld" for fault in self.schedule.faults)
            wait_until(lambda: self.node_states() == {"idle none"}, 100 if without_slurmctld else 40, "all nodes idle", 0.3)
        except AssertionError as error:
            self.fault(f"{error}; nodes are {self.node_states()}")
            self.cluster.run("scontrol", "update", f"NodeName={','.join(self.cluster.nodes)}", "State=RESUME", user="root")

    def node_states(self) -> "set[str]":
        return set(self.cluster.run("sinfo", "-h", "-N", "-o", "%T %E", user="root").stdout.splitlines())


class Campaign:
    """Schedules, each carried out by the first lane that is free."""

    def __init__(self, seeds: "typing.Iterable[int]", keep_going: bool) -> None:
        self.seeds, self.keep_going, self.wrong = iter(seeds), keep_going, 0
        self.lock = threading.Lock()

    def next(self) -> "int | None":
        with self.lock:
            return None if self.wrong and not self.keep_going else next(self.seeds, None)

    def run(self, cluster: Cluster) -> None:
        """Each schedule is told in a line, with all that is known where it ended wrongly."""
        while (seed := self.next()) is not None:
            schedule, begun = draw(seed), time.monotonic()
            trial = Trial(cluster, schedule)
            faults = trial.execute()
            corrected = "; srun ended with the group's exit code instead of its own" if trial.corrected else ""
            lines = [f"{'WRONG' if faults else 'right'}: seed {seed}, {time.monotonic() - begun:.1f} s: {schedule}{corrected}"]
            if faults:
                lines += [*(f"  {fault}" for fault in faults), *(f"    {line}" for text in trial.story for line in text.splitlines())]
            with self.lock:
                self.wrong += bool(faults)
                print(*lines, sep="\n", flush=True)


def campaign(seeds: "typing.Iterable[int]", keep_going: bool, lanes: int = 1) -> int:
    """How many schedules ended wrongly. Each lane has a cluster of its own."""
    whole = Campaign(seeds, keep_going)
    words = [word for setting in SETTINGS for word in ("--conf", setting)]

    def run(lane: int) -> None:
        with Cluster(f"chaos{lane}", nodes=CLUSTER_NODES, arguments=("--slurmdbd", *words)) as cluster:
            whole.run(cluster)

    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(run, lane) for lane in range(lanes)]:
            done.result()
    return whole.wrong
