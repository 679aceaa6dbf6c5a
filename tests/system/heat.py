# SPDX-License-Identifier: Apache-2.0
"""examples/heat seen from outside: its phase pages (layout: examples/heat/phase.h), and a run of it on a cluster."""

import mmap
import os
import pathlib
import signal
import struct
import subprocess
import time

from cluster import Cluster, Process, prefix, wait_until

PHASES = ["none", "startup", "restart", "step", "copy", "seal", "finish", "done"]
FIELDS = {"magic": (0, "<I"), "pid": (4, "<I"), "pid_namespace": (8, "<Q"), "generation": (16, "<Q"), "phase": (24, "<I"), "incarnation": (28, "<I"),
          "step": (32, "<q"), "started_us": (40, "<q"), "connected_us": (48, "<q"), "first_step_us": (56, "<q"), "restored_step": (64, "<q"),
          "order_phase": (72, "<I"), "order_delay_us": (76, "<I"), "orders_taken": (80, "<I"), "dies_in": (84, "<I"), "saved_step": (120, "<q")}


def program() -> pathlib.Path:
    return prefix() / "libexec" / "dlrover" / "examples" / "heat"


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
    """srun of heat with the option; each rank has a page."""

    def __init__(self, cluster: Cluster, label: str, ranks_per_node: int = 2, srun: "tuple[str, ...]" = (), spares: int = 0, **heat: object) -> None:
        self.cluster, self.label = cluster, label
        self.nodes, self.ranks = len(cluster.nodes), ranks_per_node * (len(cluster.nodes) - spares)
        self.folder = cluster.work / label
        self.folder.mkdir()
        self.folder.chmod(0o777)  # not sticky: the ranks open files that root made
        self.out = self.folder / "field"
        self.pages = [Page(self.folder / f"rank-{rank}") for rank in range(self.ranks)]
        options = [word for key, value in heat.items() for word in ("--" + key.replace("_", "-"), str(value))]
        self.argv = ["srun", "--job-name", label, "-N", str(self.nodes), f"--ntasks-per-node={ranks_per_node}", *self.elastic(spares), *srun, str(program()), *options, "--phase-dir", str(self.folder), "--out", str(self.out)]
        self.process: "subprocess.Popen | None" = None
        self.begun = 0.0

    def elastic(self, spares: int) -> "list[str]":
        workers = self.nodes - spares
        return [f"--dlrover-elastic={max(1, workers - 1)}:{workers}", f"--dlrover-spares={spares}"] if spares else ["--dlrover-elastic"]

    def start(self) -> "Run":
        # Files, not pipes: nobody reads while the test kills.
        self.begun = time.time()
        with open(self.folder / "stdout", "w") as out, open(self.folder / "stderr", "w") as err:
            self.process = self.cluster.start(*self.argv, stdout=out, stderr=err)
        return self

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def finish(self, seconds: float) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            state = ", ".join(f"{p.phase_name} {p.generation} {p.step}" for p in self.pages)
            self.process.terminate()
            raise AssertionError(f"{self.label}: not finished after {seconds:g} s; ranks: {state}\n{self.output()}") from None

    def output(self) -> str:
        return "".join((self.folder / name).read_text(errors="replace")[-4000:] for name in ("stdout", "stderr"))

    def all_stepping(self) -> bool:
        """Every rank has completed a step in one and the same generation."""
        return len({p.generation for p in self.pages}) == 1 and all(p.first_step_us > 0 for p in self.pages)

    def generation(self) -> int:
        return max(p.generation for p in self.pages)

    def wait_for_steps(self, after: int = 0, seconds: float = 30.0) -> None:
        """Until all ranks have completed a step in a generation newer than `after`, or the run is over."""
        wait_until(lambda: (self.all_stepping() and self.pages[0].generation > after) or not self.running(), seconds,
                   f"{self.label}: all ranks stepping after generation {after}", 0.002)

    def common_save(self) -> int:
        """The step that every rank has sealed last; -1 while they differ. (The oldest of their last ones need not be complete: a rank
        that found no slot has skipped a save that others have done.)"""
        steps = {page.saved_step for page in self.pages}
        return steps.pop() if len(steps) == 1 else -1

    def violations(self) -> str:
        note = self.folder / "violations"
        return note.read_text() if note.exists() else ""


def reference(cluster: Cluster, size: int, steps: int) -> bytes:
    """The field computed by one process, undisturbed, without a daemon."""
    out = cluster.work / f"reference-{size}-{steps}"
    if not out.exists():
        subprocess.run([str(program()), "--size", str(size), "--steps", str(steps), "--save-every", "0", "--out", str(out)], check=True,
                       stdout=subprocess.DEVNULL, cwd=cluster.work, timeout=600,
                       env={key: value for key, value in os.environ.items() if not key.startswith(("DLROVER_", "SLURM_"))})
    return out.read_bytes()
