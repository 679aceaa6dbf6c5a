# SPDX-License-Identifier: Apache-2.0
"""Start and stop: of the cluster, and of one node."""

import os
import shutil
import signal
import time

from mcluster import Failure, accounting, conf, faults, net, proc, services, spawn
from mcluster.cluster import FABRIC, base_folder

CHECKOUT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))


def claim_state_folder(cluster):
    if any(character in cluster.root for character in " ,:#=\n"):
        raise Failure(f"slurm.conf cannot name the state folder {cluster.root}: choose another path with "
                      "DLROVER_MINICLUSTER_DIR")
    while True:
        os.makedirs(base_folder(), mode=0o755, exist_ok=True)
        try:
            return os.mkdir(cluster.root, 0o755)
        except FileExistsError:
            raise Failure(f"there is a cluster '{cluster.name}' already (stop it with: minicluster stop --name "
                          f"{cluster.name})") from None
        except FileNotFoundError:
            continue  # a stop beside us took the empty base folder away


def shared_folders(extra):
    """Folders that every host must see even where they lie below a private one."""
    folders = {os.path.realpath(folder) for folder in extra}
    missing = [folder for folder in folders if not os.path.isdir(folder)]
    if missing:
        raise Failure(f"no such folder: {', '.join(sorted(missing))}")
    return sorted(folders | {CHECKOUT})


INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_once(_signum, _frame):
    """The first Ctrl-C ends the start; a second one (timeout(1) sends two) must not end the cleaning up."""
    for signum in INTERRUPTS:
        signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


def start(cluster):
    """Bring the whole cluster up, or leave nothing behind."""
    for signum in INTERRUPTS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, interrupt_once)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    reader, writer = os.pipe()
    try:
        claim_state_folder(cluster)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        cluster.lock()
        conf.write_all(cluster)
        conf.make_folders(cluster)
        cluster.save()
        bring_up(cluster, reader)
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # from here on it is up: an interrupt comes too late
        os.write(writer, b"!")
    except BaseException:
        tear_down(cluster)
        raise
    finally:
        os.close(reader)
        os.close(writer)


def bring_up(cluster, commit):
    net.create_core(spawn.create_host(cluster, FABRIC, commit))
    services.write_munge_key(cluster)
    boot(cluster, cluster.hosts)
    if cluster.options["slurmdbd"]:
        accounting.start(cluster)
    since = min(services.start_slurmd(cluster, node) for node in cluster.nodes)
    services.start_slurmctld(cluster)
    start_dlrover(cluster, cluster.hosts)
    services.wait_for_nodes(cluster, cluster.nodes, since)


def boot(cluster, hosts):
    """Hosts with their network and munged."""
    for host in hosts:
        pid = spawn.create_host(cluster, host)
        net.detach(cluster, host)
        net.attach(cluster, host, pid)
        services.start_munged(cluster, host)
    for host in hosts:
        services.wait_for_munged(cluster, host)


def start_dlrover(cluster, hosts):
    if cluster.prefix is None:
        return
    for host in hosts:
        services.start_keeper(cluster, host)
    for host in hosts:
        services.wait_for_dlroverd(cluster, host)


def tear_down(cluster, seconds=20):
    """Remove all there is of a cluster, however little or broken. Every step allows for what never came to be."""
    for host in (cluster.hosts if "nodes" in cluster.options else []):
        cluster.cgroups.thaw(host)
    fabric = cluster.pid(FABRIC)
    if fabric is not None:
        proc.kill_and_wait(fabric, seconds=seconds)
    deadline = time.monotonic() + seconds
    while True:
        pids = cluster.cgroups.pids()
        if not pids or time.monotonic() > deadline:
            break
        for pid in pids:
            proc.kill(pid)
        time.sleep(0.02)
    cluster.cgroups.remove()
    remove_state_folder(cluster)


def remove_state_folder(cluster):
    shutil.rmtree(cluster.root, ignore_errors=True)
    if os.path.lexists(cluster.root):
        raise Failure(f"could not remove {cluster.root}: something still writes there, or it is a mount point")
    try:
        os.rmdir(base_folder())
    except OSError:
        pass  # other clusters live there


def stop(cluster):
    """Idempotent: False where there was nothing to stop."""
    existed = os.path.isdir(cluster.root)
    if existed:
        cluster.lock()
    tear_down(cluster)
    return existed


def kill_node(cluster, node, abrupt):
    """End a node as a power failure would; `abrupt` lets its kernel say goodbye to its peers (FIN and RST)."""
    pid = cluster.running(node)
    if not abrupt:
        net.cut(cluster, node)
    proc.kill(pid)
    faults.forget(cluster, node)
    proc.wait_until(lambda: cluster.pid(node) is None, 20, f"{node} to die")
    net.detach(cluster, node)
    cluster.cgroups.remove(node)


def start_node(cluster, node):
    """Boot a node that was killed; as after a power failure, its /tmp, /run and /var/spool are empty."""
    if cluster.pid(node) is not None:
        raise Failure(f"{node} is running")
    boot(cluster, [node])
    since = services.start_slurmd(cluster, node)
    start_dlrover(cluster, [node])
    services.wait_for_nodes(cluster, [node], since)
