# SPDX-License-Identifier: Apache-2.0
"""examples/heat seen from outside: its phase pages (layout: examples/heat/phase.h), and a run of it on a cluster."""

import contextlib
import json
import mmap
import os
import pathlib
import signal
import struct
import subprocess
import time
import typing

from cluster import Cluster, Process, prefix, stopped, wait_until

PHASES = ["none", "startup", "restart", "step", "copy", "seal", "finish", "done"]
FIELDS = {"magic": (0, "<I"), "pid": (4, "<I"), "pid_namespace": (8, "<Q"), "generation": (16, "<Q"), "phase": (24, "<I"), "incarnation": (28, "<I"),
          "step": (32, "<q"), "started_us": (40, "<q"), "connected_us": (48, "<q"), "first_step_us": (56, "<q"), "restored_step": (64, "<q"),
          "order_phase": (72, "<I"), "order_delay_us": (76, "<I"), "orders_taken": (80, "<I"), "dies_in": (84, "<I"), "saved_step": (120, "<q")}


def program(name: str = "heat") -> pathlib.Path:
    return prefix() / "libexec" / "dlrover" / "examples" / name


class Page:
    """One rank's page."""

    def __init__(self, path: pathlib.Path) -> None:
        with open(path, "a+b") as file:
            os.fchmod(file.fileno(), 0o666)
            if os.fstat(file.fileno()).st_size < 4096:
                file.truncate(4096)
            self.memory = mmap.mmap(file.fileno(), 4096)

    def __getattr__(self, name: str) -> int:
        offset, kind = FIELDS[name]
        return struct.unpack_from(kind, self.memory, offset)[0]

    @property
    def phase_name(self) -> str:
        return PHASES[self.phase]

    def kills(self, phase: str) -> int:
        """Orders for this phase that ended a process. The last one counts when its successor has started."""
        return struct.unpack_from("<I", self.memory, 88 + 4 * PHASES.index(phase))[0]

    def order(self, phase: str, delay_us: int) -> None:
        struct.pack_into("<I", self.memory, 76, delay_us)
        struct.pack_into("<I", self.memory, 72, PHASES.index(phase))

    def cancel(self) -> None:
        struct.pack_into("<I", self.memory, 72, 0)

    def find_process(self) -> "Process | None":
        """The rank's process in this PID namespace; None when it is gone."""
        space, inner = f"pid:[{self.pid_namespace}]", self.pid
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                if os.readlink(f"/proc/{entry}/ns/pid") != space:
                    continue
            except OSError:
                continue
            process = Process.read(int(entry))
            if process and process.inner_pid == inner and process.state != "Z":
                return process
        return None

    def kill_now(self) -> "tuple[str, float] | None":
        """SIGKILL from outside. (phase it died in, time of the kill); None when there was nobody to kill."""
        incarnation, process = self.incarnation, self.find_process()
        if process is None:
            return None
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return None
        try:
            if incarnation != self.incarnation or self.phase_name == "done":
                return None
            moment = time.time()
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return self.phase_name, moment
        except ProcessLookupError:
            return None
        finally:
            os.close(handle)


class Run:
    """srun of heat with the option, on all nodes unless told otherwise; each rank has a page."""

    def __init__(self, cluster: Cluster, label: str, ranks_per_node: int = 2, srun: "tuple[str, ...]" = (), spares: int = 0, nodes: int = 0, **heat: object) -> None:
        self.cluster, self.label = cluster, label
        self.nodes = nodes or len(cluster.nodes)
        self.ranks = ranks_per_node * (self.nodes - spares)
        self.folder = cluster.work / label
        self.folder.mkdir()
        self.folder.chmod(0o777)  # not sticky: the ranks open files that root made
        self.out = self.folder / "field"
        self.pages = [Page(self.folder / f"rank-{rank}") for rank in range(self.ranks)]
        options = [word for key, value in heat.items() for word in ("--" + key.replace("_", "-"), *([] if value is True else [str(value)]))]
        self.options = ["--job-name", label, "-N", str(self.nodes), f"--ntasks-per-node={ranks_per_node}", *self.elastic(spares), *srun]
        self.command = [str(program()), *options, "--phase-dir", str(self.folder), "--out", str(self.out)]
        self.job = 0
        self.process: "subprocess.Popen | None" = None
        self.begun = 0.0

    def elastic(self, spares: int) -> "list[str]":
        workers = self.nodes - spares
        return [f"--dlrover-elastic={max(1, workers - 1)}:{workers}", f"--dlrover-spares={spares}"] if spares else ["--dlrover-elastic"]

    def start(self) -> "Run":
        # Files, not pipes: nobody reads while the test kills.
        self.begun = time.time()
        with open(self.folder / "stdout", "w") as out, open(self.folder / "stderr", "w") as err:
            self.process = self.cluster.start("srun", *self.options, *self.command, stdout=out, stderr=err)
        return self

    def submit(self) -> "Run":
        """As a batch job. srun's exit code comes into the file `code`, where there still is a batch host then."""
        script = self.folder / "job.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH {' '.join(self.options)}\nsrun {' '.join(self.command)}\necho $? >{self.folder}/code\nsleep 1\n")
        self.begun = time.time()
        self.job = int(self.cluster.run("sbatch", "--parsable", "-o", str(self.folder / "stdout"), str(script), check=True).stdout)
        return self

    def running(self) -> bool:
        """Of a batch job nobody asks Slurm this every millisecond."""
        return self.process.poll() is None if self.process else self.job > 0

    def job_id(self) -> int:
        self.job = self.job or self.cluster.job_id(self.label)
        return self.job

    def status(self, node: str) -> dict:
        """Of the group, as the daemon of this node says."""
        done = self.cluster.run("dlrover", "status", str(self.job_id()), "--json", user="root", node=node, check=True)
        return json.loads(done.stdout)["groups"][0]

    def finish(self, seconds: float) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            state = ", ".join(f"{p.phase_name} {p.generation} {p.step}" for p in self.pages)
            self.process.terminate()
            raise AssertionError(f"{self.label}: not finished after {seconds:g} s; ranks: {state}\n{self.output()}") from None

    def output(self) -> str:
        return "".join((self.folder / name).read_text(errors="replace")[-4000:] for name in ("stdout", "stderr") if (self.folder / name).exists())

    def stepping_in(self) -> int:
        """The generation in which every rank has completed a step; 0: they are not in one and the same, or not so far. Its number is read before that, once:
        a process that is started again meanwhile has a new one, and no step."""
        generations = {p.generation for p in self.pages}
        return generations.pop() if len(generations) == 1 and all(p.first_step_us > 0 for p in self.pages) else 0

    def all_stepping(self) -> bool:
        return self.stepping_in() > 0

    def generation(self) -> int:
        return max(p.generation for p in self.pages)

    def safe_step(self, node: str) -> int:
        return self.status(node)["copies"]["safe_step"]

    def nodes_with_ranks(self, node: str) -> "list[str]":
        """In their order, as this node says."""
        return list(dict.fromkeys(rank["node"] for rank in self.status(node)["ranks"]))

    def notes(self) -> "list[dict]":
        """The time line, without what comes many times a second. The first node that answers has asked the others."""
        found = next(filter(None, (self.cluster.events(self.job_id(), [node]) for node in self.cluster.nodes)), [])
        return [event for event in found if not event["kind"].startswith("checkpoint-")]

    def time_line(self) -> str:
        return "\n".join(f"{e['time_us'] / 1e6:.3f} {e['node']} {e['generation']['number']} {e['text']}" for e in self.notes())

    def full_time_line(self) -> str:
        """With every checkpoint, the last 300 lines."""
        return "\n".join(f"{e['time_us'] / 1e6:.6f} {e['node']} {e['generation']['number']} {e['kind']} {e['text']}" for e in self.cluster.events(self.job_id())[-300:])

    def wait_for_steps(self, after: int = 0, seconds: float = 30.0) -> None:
        """Until all ranks have completed a step in a generation newer than `after`, or the run is over."""
        wait_until(lambda: self.stepping_in() > after or not self.running(), seconds,
                   f"{self.label}: all ranks stepping after generation {after}", 0.002)

    def common_save(self) -> int:
        """The step that every rank has sealed last; -1 while they differ. (The oldest of their last ones need not be complete: a rank
        that found no slot has skipped a save that others have done.)"""
        steps = {page.saved_step for page in self.pages}
        return steps.pop() if len(steps) == 1 else -1

    def violations(self) -> str:
        note = self.folder / "violations"
        return note.read_text() if note.exists() else ""


@contextlib.contextmanager
def held_back(cluster: Cluster, nodes: "list[str]") -> "typing.Iterator[None]":
    """Their daemons answer later: a world is made of the nodes that are ready first."""
    with stopped([cluster.daemon_pid(node) for node in nodes]):
        yield


def start_with_copies(cluster: Cluster, label: str, nodes: int = 4, spares: int = 1, copies: int = 1, batch: bool = False, redundancy: str = "",
                      spares_late: bool = True, options: "tuple[str, ...]" = (), names: "list[str] | None" = None, **heat: object) -> Run:
    """On n1, n2 ... (or `names`): n1 is the batch host, n2 leads, the last ones are the spares, where the others are a majority; else one of the last may
    have ranks. The daemons of the spares are held back for a while: no other job may count on them then. Returns when all ranks step and checkpoints are safe."""
    names = names or cluster.nodes[:nodes]
    late = names[max(nodes - spares, nodes // 2 + 1):] if spares_late else []
    srun = (f"--dlrover-redundancy={redundancy or f'partner:{copies}'}", "--mem=400", "-w", ",".join(names), *options)
    for label in (label, f"{label}-again"):
        run = Run(cluster, label, srun=srun, spares=spares, nodes=nodes, **{"size": 256, "save_every": 5, "step_us": 4000, "ballast_mb": 4, **heat})
        try:
            with held_back(cluster, late):
                run.submit() if batch else run.start()
                # Slurm may take a minute to let a job onto a node that was booted.
                wait_until(lambda: all(page.started_us for page in run.pages) or not run.running(), 90, f"{label}: a world without the spares", 0.002)
            run.wait_for_steps()
            wait_until(lambda: run.running() and run.safe_step(names[0]) > 20, 30, f"{label}: safe steps", 0.02)
            ranks = run.nodes_with_ranks(names[0])
            if len(late) < spares or ranks == names[:nodes - spares]:
                return run
            assert not label.endswith("-again"), run.status(names[0])["ranks"]
        except BaseException:
            print(run.output(), run.time_line(), sep="\n")
            cluster.run("scancel", "-n", label, user="root")
            raise
        # A daemon that has no processor for 1.6 s has lost its node, and a spare takes its place: the test is about something else.
        print(f"{label}: ranks on {ranks}, once more", run.time_line(), sep="\n")
        cluster.run("scancel", "-n", label, user="root")
        wait_until(lambda: not cluster.run("squeue", "-h", "-n", label, user="root").stdout.strip(), 60, f"{label}: the end of the job", 0.2)
    raise AssertionError


def reference(cluster: Cluster, size: int, steps: int) -> bytes:
    """The field computed by one process, undisturbed, without a daemon."""
    out = cluster.work / f"reference-{size}-{steps}"
    if not out.exists():
        subprocess.run([str(program()), "--size", str(size), "--steps", str(steps), "--save-every", "0", "--out", str(out)], check=True,
                       stdout=subprocess.DEVNULL, cwd=cluster.work, timeout=600,
                       env={key: value for key, value in os.environ.items() if not key.startswith(("DLROVER_", "SLURM_"))})
    return out.read_bytes()
