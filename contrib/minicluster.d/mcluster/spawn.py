# SPDX-License-Identifier: Apache-2.0
"""Starting hosts, and processes on hosts. Everything started here belongs to the host's namespaces and cgroups."""

import os
import resource
import signal
import socket
import struct
import subprocess

from mcluster import Failure, environ, inside, kernel, proc
from mcluster.cluster import FABRIC

class Report:
    """A socket pair on which a process deep inside tells its pid, as the kernel translates it, and its errors."""

    def __init__(self):
        self.reader, self.writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def receive(self):
        """(message, sender's pid), or (b"", 0) when all writers are gone."""
        message, ancillary, _, _ = self.reader.recvmsg(4096, socket.CMSG_SPACE(12))
        for _, kind, data in ancillary:
            if kind == socket.SCM_CREDENTIALS and message:
                return message, struct.unpack("3i", data[:12])[0]
        return b"", 0


def in_child(action):
    """Run `action` in a forked child that never returns to the caller's code; wait for the child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def create_host(cluster, host, commit=None):
    """Make the namespaces of a host (or the fabric), and return the pid of its first process."""
    report = Report()
    cgroup_paths = cluster.cgroups.create(host)
    procs = cluster.cgroups.open_procs(host)
    fabric = None if host == FABRIC else cluster.running(FABRIC)

    def first_process():
        inside.become_host(cluster, host, cgroup_paths, report.writer, commit)

    def unshare_and_fork():
        flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC
        for fd in procs:
            os.write(fd, b"0")
        kernel.unshare(flags | kernel.CLONE_NEWPID | kernel.CLONE_NEWCGROUP)
        if os.fork() == 0:
            report.reader.close()
            first_process()

    def enter_fabric():
        # The process that unshares must itself be in the fabric's PID namespace, so that the host's first process is
        # handed to the fabric's reaper.
        with open(f"/proc/{fabric}/ns/pid", "rb") as namespace:
            kernel.setns(namespace.fileno())
        in_child(unshare_and_fork)

    in_child(unshare_and_fork if fabric is None else enter_fabric)
    report.writer.close()
    for fd in procs:
        os.close(fd)
    message, pid = report.receive()
    if message != b"ready":
        raise Failure("could not set up " + (message.decode() or f"{host}: its first process died"))
    cluster.record_pid(host, "init", pid)
    return pid


def run(cluster, host, argv, timeout=30, text=None):
    """Run a short command as root on a host and return its output; Failure with its errors if it fails."""
    pid = cluster.running(host)
    done = subprocess.run(argv, input=text, stdin=None if text else subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False, env=environ.of_daemon(cluster),
                          preexec_fn=lambda: kernel.enter(pid, with_pid_namespace=False))
    if done.returncode != 0:
        raise Failure(f"{' '.join(argv)} on {host}: "
                      + (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"))
    return done.stdout


def daemon(cluster, host, service, argv, log):
    """Start a root daemon on a host, in the foreground as its own session, and record its pid."""
    report = Report()
    first = cluster.running(host)
    procs = cluster.cgroups.open_procs(host)

    def become_daemon():
        try:
            os.setsid()
            for fd in procs:
                os.write(fd, b"0")
            report.writer.send(b"pid")
            redirect(log)
            set_limits()
            os.closerange(3, report.writer.fileno())
            os.closerange(report.writer.fileno() + 1, 4096)
            os.chdir("/")
            os.execve(argv[0], argv, environ.of_daemon(cluster))
        except OSError as error:
            report.writer.send(f"{argv[0]}: {error.strerror}".encode())

    def enter_and_fork():
        # Forked twice, so that the daemon's parent ends inside the PID namespace and its reaper inherits the daemon.
        kernel.enter(first)
        in_child(lambda: os.fork() or (become_daemon(), os._exit(127)))

    in_child(enter_and_fork)
    report.writer.close()
    for fd in procs:
        os.close(fd)
    _, pid = report.receive()
    error, _ = report.receive()
    if pid == 0 or error:
        raise Failure(f"could not start {service} on {host}: {error.decode()}")
    cluster.record_pid(host, service, pid)
    return pid


def set_limits():
    """As Slurm's systemd units do, whatever limits the caller has; jobs inherit slurmd's."""
    for kind, wanted in ((resource.RLIMIT_NOFILE, 131072), (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)):
        try:
            resource.setrlimit(kind, (wanted, wanted))
        except ValueError:  # some containers' root may not raise it
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (hard, hard))


def redirect(log):
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd, place in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, place)


def stop_daemon(cluster, host, service, signum=signal.SIGTERM, seconds=20):
    """Signal a service and wait for its end; False if it was not running."""
    pid = cluster.pid(host, service)
    if pid is None:
        return False
    proc.kill_and_wait(pid, signum, seconds)
    return True
