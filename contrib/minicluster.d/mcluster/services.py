# SPDX-License-Identifier: Apache-2.0
"""The daemons of a cluster: how each is started, and when it counts as up."""

import os
import pathlib
import secrets
import signal
import time

from mcluster import Failure, conf, proc, spawn
from mcluster.cluster import LOGIN


def last_lines(path, count=8):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join("  " + line for line in file.readlines()[-count:])
    except FileNotFoundError:
        return ""


def wait_for(cluster, host, service, condition, seconds, log):
    """Wait until a service is ready; if it dies, or time runs out, fail with the end of its log."""
    def ready_or_dead():
        return condition() or cluster.pid(host, service) is None
    try:
        proc.wait_until(ready_or_dead, seconds, f"{service} on {host}")
    except Failure as failure:
        raise Failure(f"{failure}; its log ends with:\n{last_lines(log)}") from None
    if not condition():
        raise Failure(f"{service} on {host} ended at once; its log ends with:\n{last_lines(log)}")


def write_munge_key(cluster):
    with open(cluster.path("munge.key"), "wb", opener=lambda path, flags: os.open(path, flags, 0o400)) as file:
        file.write(secrets.token_bytes(128))


def start_munged(cluster, host):
    """Each host has its own munged, at the default socket, with the cluster's key."""
    # --force: the state folder may be below a folder that others may write to, such as /tmp.
    spawn.daemon(cluster, host, "munged",
                 ["/usr/sbin/munged", "--foreground", "--force", f"--key-file={cluster.path('munge.key')}",
                  f"--origin={cluster.address(host)}", "--socket=/run/munge/munge.socket.2",
                  "--pid-file=/run/munge/munged.pid", "--seed-file=/run/munge/munged.seed",
                  f"--log-file={cluster.log('munged-' + host)}"], cluster.log("munged-" + host))


def wait_for_munged(cluster, host):
    sock = cluster.host_path(host, "root", "run", "munge", "munge.socket.2")
    wait_for(cluster, host, "munged", lambda: os.path.exists(sock), 15, cluster.log("munged-" + host))


def start_slurmctld(cluster):
    spawn.daemon(cluster, LOGIN, "slurmctld", ["/usr/sbin/slurmctld", "-D"], cluster.path("log", "slurmctld.out"))
    wait_for(cluster, LOGIN, "slurmctld", lambda: answers(cluster), 30, cluster.log("slurmctld"))


def answers(cluster):
    try:
        return "is UP" in spawn.run(cluster, LOGIN, ["scontrol", "ping"])
    except Failure:
        return False


def stop_slurmctld(cluster, abrupt=False):
    if not spawn.stop_daemon(cluster, LOGIN, "slurmctld", signal.SIGKILL if abrupt else signal.SIGTERM, 30):
        raise Failure("slurmctld is not running")


def start_slurmd(cluster, node):
    """Returns the time of the start, for wait_for_nodes."""
    began = int(time.time())
    spawn.daemon(cluster, node, "slurmd", ["/usr/sbin/slurmd", "-D", "-N", node],
                 cluster.path("log", f"slurmd-{node}.out"))
    return began


def slurm_states(cluster, timeout=10):
    """Node to state, as sinfo shows it."""
    lines = spawn.run(cluster, LOGIN, ["sinfo", "-h", "-N", "-o", "%N %T"], timeout=timeout).splitlines()
    return dict(line.split() for line in lines)


def wait_for_nodes(cluster, nodes, since, seconds=60):
    """Wait until Slurm can use the nodes, with the slurmds that were started at `since` or later."""
    def usable():
        for node in nodes:
            if cluster.pid(node, "slurmd") is None:
                raise Failure(f"slurmd on {node} ended; its log ends with:\n"
                              + last_lines(cluster.path("log", f"slurmd-{node}.out")))
        lines = spawn.run(cluster, LOGIN, ["scontrol", "-o", "show", "node", ",".join(nodes)]).splitlines()
        return len(lines) == len(nodes) and all(is_usable(line, since) for line in lines)
    proc.wait_until(usable, seconds, f"Slurm to accept {', '.join(nodes)} (see minicluster logs)", 0.05)


def is_usable(line, since):
    """Whether a line of `scontrol -o show node` is of a node in service whose slurmd is not an older one."""
    fields = dict(field.partition("=")[::2] for field in line.split())
    state = set(fields["State"].split("+"))
    if not state & {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"} or state & {"NOT_RESPONDING", "DOWN", "IDLE*"}:
        return False
    try:
        return time.mktime(time.strptime(fields["SlurmdStartTime"], "%Y-%m-%dT%H:%M:%S")) >= since
    except ValueError:
        return False


#: As contrib/systemd/dlrover.service.in has it.
NICE = "-15"
UNIT = pathlib.Path(__file__).resolve().parents[2] / "systemd" / "dlrover.service.in"
#: As CPUWeight=1000 of the slice: ten times the share of another.
SESSION_NICE = "-10"


def service_rights():
    """The command that gives a program the service's rights and no others: what the service may not do fails here, too."""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        key, _, names = line.partition("=")
        if key == "CapabilityBoundingSet":
            bounding = ["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())]
            return ["/usr/bin/setpriv", "--no-new-privs", "--bounding-set", ",".join(bounding)]
    raise Failure(f"{UNIT} says nothing of CapabilityBoundingSet")


def start_keeper(cluster, host):
    """dlrover-keeper, which starts dlroverd; its socket's appearance is awaited by wait_for_dlroverd."""
    conf.write_dlrover_toml(cluster, host)
    spawn.daemon(cluster, host, "keeper",
                 ["/usr/bin/nice", "-n", NICE, *service_rights(), f"{cluster.prefix}/sbin/dlrover-keeper", "--config", "/etc/dlrover/dlrover.toml"],
                 cluster.log(f"dlroverd-{host}"))
    session = f"/proc/{cluster.pid(host, 'keeper')}/autogroup"
    if os.path.exists(session):  # beyond its session a nice value means nothing
        with open(session, "w", encoding="ascii") as file:
            file.write(SESSION_NICE)


def wait_for_dlroverd(cluster, host):
    sock = cluster.host_path(host, "root", "run", "dlrover", "dlroverd.sock")
    wait_for(cluster, host, "keeper", lambda: os.path.exists(sock), 20, cluster.log(f"dlroverd-{host}"))


def dlroverd_pid(cluster, host):
    """The keeper's child, or None."""
    keeper = cluster.pid(host, "keeper")
    found = [pid for pid in proc.children(keeper) if proc.comm(pid) == "dlroverd"] if keeper else []
    return found[0] if found else None


def restart_dlroverd(cluster, host):
    """Kill dlroverd with SIGKILL and wait until the keeper has started another; returns both pids."""
    old = dlroverd_pid(cluster, host)
    if old is None:
        raise Failure(f"no dlroverd is running on {host}")
    proc.kill_and_wait(old)
    # A killed child that the keeper has not reaped yet still has its name.
    new = proc.wait_until(lambda: {dlroverd_pid(cluster, host)} - {old, None}, 20, f"the keeper on {host} to start another dlroverd")
    return old, new.pop()


def stop_slurmd(cluster, node):
    """kill -9: job steps live on, without their slurmd."""
    if not spawn.stop_daemon(cluster, node, "slurmd", signal.SIGKILL):
        raise Failure(f"slurmd on {node} is not running")
