# SPDX-License-Identifier: Apache-2.0
"""A minicluster for a test: start, run commands on its hosts, look at its processes, stop."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import typing

TOP = pathlib.Path(__file__).resolve().parents[2]
MINICLUSTER = TOP / "contrib" / "minicluster"
sys.path.append(str(TOP / "contrib" / "minicluster.d"))
from mcluster import lifecycle, net  # noqa: E402
from mcluster.cluster import Cluster as Hosts  # noqa: E402

NIGHTLY = os.environ.get("DLROVER_NIGHTLY") == "1"


def prefix() -> pathlib.Path:
    """The installation under test."""
    found = os.environ.get("DLROVER_PREFIX")
    if not found:
        raise SystemExit("set DLROVER_PREFIX to the prefix of an installation (make install)")
    return pathlib.Path(found)


@contextlib.contextmanager
def stopped(pids: "list[int]") -> "typing.Iterator[None]":
    """These processes stand still meanwhile. Some may be gone at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


#: How much longer what takes long may take here: contrib/run-tests runs several tests at a time, and a build beside them. How fast something is says bench/.
PATIENCE = float(os.environ.get("DLROVER_TEST_PATIENCE", "1"))


def wait_until(condition, seconds: float, what: str, interval: float = 0.02):
    """The first true result of condition(); AssertionError after `seconds`, times PATIENCE."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(interval)


class Process:
    """A process of some node, by its pid here; everything is read once. Gone processes give None from read()."""

    def __init__(self, pid: int, state: str, parent: int, uid: int, inner_pid: int, namespace: str, command: "list[str]") -> None:
        self.pid, self.state, self.parent, self.uid = pid, state, parent, uid
        self.inner_pid, self.namespace, self.command = inner_pid, namespace, command

    @classmethod
    def read(cls, pid: int) -> "Process | None":
        try:
            status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            namespace = os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return None
        return cls(pid, status["State"][0], int(status["PPid"]), int(status["Uid"].split()[0]),
                   int(status["NSpid"].split()[-1]), namespace, command)

    def environment(self) -> "dict[str, str]":
        try:
            entries = pathlib.Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return {}
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def __repr__(self) -> str:
        return f"{self.pid} ({self.state}, uid {self.uid}): {' '.join(self.command)}"


class Cluster:
    """`with Cluster("name", nodes=4) as cluster:`. The name is made unique, so that several tests may run side by side."""

    def __init__(self, name: str, nodes: int = 4, arguments: "tuple[str, ...]" = (), unique: bool = True) -> None:
        self.name = f"{name}-{os.getpid()}" if unique else name
        self.keep = False
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.arguments = ["--nodes", str(nodes), "--prefix", str(prefix()), *arguments]
        self.folder = pathlib.Path()
        self.spaces: "dict[str, str]" = {}

    def __enter__(self) -> "Cluster":
        try:
            self.control("start", *self.arguments)
            self.folder = pathlib.Path(self.describe()["folder"])
        except BaseException:
            self.control("stop", check=False)
            raise
        return self

    def __exit__(self, *_rest) -> None:
        logs = os.environ.get("DLROVER_TEST_LOGS")
        if logs:
            subprocess.run(["cp", "-r", str(self.folder / "log"), f"{logs}/{self.name}"], check=False)
        if not self.keep:
            self.control("stop")

    @property
    def work(self) -> pathlib.Path:
        """A folder that all hosts share, open to every user."""
        return self.folder / "work"

    def control(self, verb: str, *arguments: str, check: bool = True) -> str:
        done = subprocess.run([str(MINICLUSTER), verb, "--name", self.name, *arguments], capture_output=True, text=True, timeout=180, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"minicluster {verb} {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def lose(self, *nodes: str, power: bool = True) -> float:
        """These nodes are cut off, one within milliseconds of the other, and their power fails unless told otherwise. When it began.
        As cut-link and kill-node do, but those take longer to start than a group to notice."""
        hosts = Hosts.load(self.name)
        lock = hosts.lock()
        try:
            began = time.time()
            for node in nodes:
                net.cut(hosts, node)
            for node in nodes if power else ():
                lifecycle.kill_node(hosts, node, abrupt=False)
        finally:
            os.close(lock)
        return began

    def start_node(self, node: str) -> None:
        """Boots a node that was lost."""
        self.control("start-node", node)
        self.spaces.clear()

    def describe(self) -> dict:
        return json.loads(self.control("status", "--json"))

    def daemon_pid(self, node: str) -> "int | None":
        return next(host["dlroverd"] for host in self.describe()["hosts"] if host["host"] == node)

    def command(self, *argv: str, user: str = "alice", node: str = "ctl") -> "list[str]":
        return [str(MINICLUSTER), "exec", "--name", self.name, "--node", node, "--user", user, "--", *map(str, argv)]

    def run(self, *argv: str, user: str = "alice", node: str = "ctl", timeout: float = 120, env: "dict[str, str] | None" = None,
            check: bool = False) -> subprocess.CompletedProcess:
        done = subprocess.run(self.command(*argv, user=user, node=node), capture_output=True, text=True, errors="replace", timeout=timeout,
                              env={**os.environ, **(env or {})}, cwd=self.work, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{argv}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *argv: str, user: str = "alice", node: str = "ctl", env: "dict[str, str] | None" = None, **options) -> subprocess.Popen:
        """Starts a command. Its output goes into pipes unless options say otherwise."""
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen(self.command(*argv, user=user, node=node), text=True, errors="replace", env={**os.environ, **(env or {})},
                                cwd=self.work, stdin=subprocess.DEVNULL, **options)

    # ---- processes ----

    def namespaces(self) -> "dict[str, str]":
        """PID namespace -> node. Remembered when all nodes are up: one that boots is not there yet."""
        if self.spaces:
            return self.spaces
        found = {os.readlink(f"/proc/{host['slurmd']}/ns/pid"): host["host"]
                 for host in self.describe()["hosts"] if host["host"] in self.nodes and host.get("slurmd")}
        if len(found) == len(self.nodes):
            self.spaces = found
        return found

    def processes(self, user_only: bool = True) -> "list[tuple[str, Process]]":
        """(node, process) of all nodes; zombies too. user_only: not those of root."""
        spaces = self.namespaces()
        found = []
        for entry in os.listdir("/proc"):
            process = Process.read(int(entry)) if entry.isdigit() else None
            if process and process.namespace in spaces and not (user_only and process.uid == 0):
                found.append((spaces[process.namespace], process))
        return found

    def expect_clean(self, seconds: float = 5.0) -> None:
        """No process of a user, nothing in /dev/shm, no slurmstepd on any node; AssertionError otherwise."""
        def leftovers() -> "list[str]":
            everything = self.processes(user_only=False)
            found = [f"{node}: {p}" for node, p in everything if p.uid != 0 or any("slurmstepd" in word for word in p.command[:1])]
            for host in self.describe()["hosts"]:
                if host.get("slurmd"):
                    found += [f"{host['host']}: /dev/shm/{name}" for name in os.listdir(f"/proc/{host['slurmd']}/root/dev/shm")]
            return found
        last: "list[str]" = []
        def clean() -> bool:
            last[:] = leftovers()
            return not last
        try:
            wait_until(clean, seconds, "clean nodes", 0.2)
        except AssertionError:
            raise AssertionError("left over:\n  " + "\n  ".join(last)) from None

    def daemon_logs(self, lines: int = 40) -> str:
        """The newest lines of each dlroverd, but for those of people who ask, for who looks for why a test failed."""
        story = []
        for path in sorted((self.folder / "log").glob("dlroverd-n*.log")):
            told = [line for line in path.read_text(errors="replace").splitlines() if "links: ctl" not in line]
            story += [f"-- {path.stem}", *told[-lines:]]
        return "\n".join(story)

    # ---- jobs ----

    def job_id(self, name: str, seconds: float = 20.0) -> int:
        def look() -> "str | None":
            return self.run("squeue", "-h", "-t", "all", "-n", name, "-o", "%i", user="root").stdout.split()[:1]
        return int(wait_until(look, seconds, f"a job named {name}", 0.05)[0])

    def events(self, job: int, nodes: "list[str] | None" = None) -> "list[dict]":
        """The time line, oldest first: each node tells its own part."""
        found = []
        for node in nodes or self.nodes:
            done = self.run("dlrover", "events", str(job), "--json", user="root", node=node)
            if done.returncode == 0:
                found += [event for group in json.loads(done.stdout)["groups"] for event in group["events"]]
        unique = {json.dumps(event, sort_keys=True): event for event in found}
        return sorted(unique.values(), key=lambda event: event["time_us"])
