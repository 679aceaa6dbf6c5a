# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of dlrover-agent (agent_*_test.py): a scripted daemon, an agent under test, processes and their output."""
import os
import queue
import re
import resource
import shutil
import subprocess
import tempfile
import textwrap
import threading
import time
import unittest

BUILD = os.environ.get("DLROVER_BUILD", os.getcwd())
AGENT = os.path.join(BUILD, "agent", "dlrover-agent")
RUN = os.path.join(BUILD, "agent", "dlrover-run")
FAKE = os.path.join(BUILD, "tests", "system", "fake_daemon")
DEADLINE = 20.0


#: How much longer everything may take here: beside a build, and with sanitizers.
PATIENCE = float(os.environ.get("DLROVER_TEST_PATIENCE", "1"))


def wait_until(condition, what, limit=DEADLINE):
    end = time.monotonic() + limit * PATIENCE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"not within {limit} s: {what}")


def state(pid):
    """The letter of /proc/PID/stat; X: no such process."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid):
    return state(pid) not in "ZX"


class Lines:
    """Lines of a pipe, read by a thread, waited for with a deadline."""

    def __init__(self, pipe):
        self.queue, self.seen = queue.Queue(), []
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def _read(self, pipe):
        with pipe:
            for line in pipe:
                self.queue.put(line.rstrip("\n"))
        self.queue.put(None)

    def expect(self, pattern, limit=DEADLINE):
        end = time.monotonic() + limit * PATIENCE
        while True:
            try:
                line = self.queue.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r} within {limit} s; seen: {self.seen}")
            if line is None:
                raise AssertionError(f"the stream ended before a line like {pattern!r}; seen: {self.seen}")
            self.seen.append(line)
            match = re.search(pattern, line)
            if match:
                return match

    def count(self, pattern):
        """Lines like this so far, also those that nobody has waited for."""
        return sum(re.search(pattern, line) is not None for line in [*self.seen, *filter(None, list(self.queue.queue))])


class Daemon:
    def __init__(self, socket, **settings):
        args = [FAKE, socket] + [f"{k}={v}" for k, v in settings.items()]
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = Lines(self.process.stdout)
        self.expect = self.lines.expect
        self.expect("listening")

    def order(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


class AgentCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="dlrover-agent-test-")
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.socket = os.path.join(self.dir, "s")
        self.started = []
        self.addCleanup(self._end)

    def _end(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def daemon(self, **settings):
        daemon = Daemon(self.socket, **settings)
        self.addCleanup(daemon.kill)
        return daemon

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "DLROVER", "PET_"))}
        env.update(DLROVER_JOB_ID="7", DLROVER_STEP_ID="0", DLROVER_SOCKET=self.socket, DLROVER_LOCAL_TASK="0",
                   SLURMD_NODENAME="n1", TMPDIR=self.dir)
        env.update(more)
        return {k: v for k, v in env.items() if v is not None}

    def start(self, *argv, program=AGENT, env=None, stdout=None, stderr=None, **more):
        with open(os.path.join(self.dir, "out"), "w") as out, open(os.path.join(self.dir, "err"), "w") as err:
            process = subprocess.Popen([program, *argv], env=self.environment(**(env or {})), cwd=self.dir,
                                       stdout=stdout or out, stderr=stderr or err, stdin=subprocess.DEVNULL, **more)
        self.started.append(process)
        return process

    def script(self, text, name="worker.py"):
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            f.write(textwrap.dedent(text))
        return path

    def tree(self, pid):
        found, todo = [], [pid]
        while todo:
            one = todo.pop()
            try:
                children = []
                for task in os.listdir(f"/proc/{one}/task"):
                    with open(f"/proc/{one}/task/{task}/children") as f:
                        children += [int(c) for c in f.read().split()]
            except FileNotFoundError:
                continue
            found += children
            todo += children
        return found

    def whole_tree(self, root, sleeps):
        """All below root, once so many "sleep" run (a signal to a shell that is just forking may be lost)."""
        tree = self.tree(root)
        return tree if [name_of(p) for p in tree].count("sleep") == sleeps else None

    def text(self, name):
        with open(os.path.join(self.dir, name), errors="replace") as f:
            return f.read()

    def no_scratch_left(self):
        self.assertEqual([n for n in os.listdir(self.dir) if n.startswith("dlrover-agent")], [])


def main():
    """Runs the tests of the calling file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    unittest.main(verbosity=2)
