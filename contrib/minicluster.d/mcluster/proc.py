# SPDX-License-Identifier: Apache-2.0
"""Processes, named by pid and start time so that a reused pid is never signalled; waiting with deadlines."""

import os
import signal
import time

from mcluster import Failure


def wait_until(condition, seconds, what, interval=0.02):
    """Poll `condition` until it returns something true, which is returned; Failure after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise Failure(f"waited {seconds:g} s in vain for {what}")
        time.sleep(interval)


def _stat_fields(pid):
    """Fields of /proc/PID/stat from the state on, or None; the command name may hold blanks and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_time(pid):
    """Start time in ticks, or None for a process that is gone or a zombie."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def comm(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def all_pids():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def children(parent):
    return [pid for pid in all_pids() if (_stat_fields(pid) or [None, -1])[1] == str(parent)]


def record(path, pid):
    """Write `pid` and its start time to a file, in one step."""
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(f"{pid} {start_time(pid) or 0}\n")
    os.rename(path + ".new", path)


def recorded(path):
    """The live process that record() noted in this file, or None."""
    try:
        with open(path, encoding="ascii") as file:
            pid, started = map(int, file.read().split())
    except (FileNotFoundError, ValueError):
        return None
    return pid if start_time(pid) == started else None


def kill(pid, signum=signal.SIGKILL):
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def kill_and_wait(pid, signum=signal.SIGKILL, seconds=20):
    """Signal a process and wait for its end; for the first process of a PID namespace: for the end of all in it."""
    started = start_time(pid)
    if started is None:
        return
    kill(pid, signum)
    wait_until(lambda: start_time(pid) != started, seconds, f"process {pid} ({comm(pid)}) to end")


def in_pid_namespace_of(pid):
    """All processes in the same PID namespace as `pid`."""
    def namespace(process):
        try:
            return os.readlink(f"/proc/{process}/ns/pid")
        except OSError:
            return None
    wanted = namespace(pid)
    return [other for other in all_pids() if wanted and namespace(other) == wanted]
