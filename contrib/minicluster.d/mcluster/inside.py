# SPDX-License-Identifier: Apache-2.0
"""What the first process of a host does before it becomes the reaper: mounts, host name, loopback.

Everything is mounted in the host's own mount namespace. Folders that must stay visible though they may lie below a
private one (the state folder, the checkout, the installation) are opened first and bound back afterwards.
"""

import os
import shutil
import socket
import stat
import sys

from mcluster import kernel
from mcluster.cluster import FABRIC, LOGIN

PRIVATE = ("/tmp", "/run", "/var/log", "/var/spool")
REAPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reaper.py")


def become_host(cluster, host, cgroup_paths, ready, commit):
    """Run as the first process of the new namespaces; never returns. Reports on `ready`, see spawn.create_host."""
    try:
        os.setsid()
        kept = keep_open(cluster.options["shared"])
        root = os.open(cluster.root, os.O_PATH)
        cgroup_fds = [(hierarchy, os.open(path, os.O_PATH)) for hierarchy, path in cgroup_paths]
        kernel.mount(None, "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        socket.sethostname(host)
        mount_proc_and_sys(cgroup_fds)
        if host != FABRIC:
            mount_private_folders(cluster, host)
            put_back(kept)
            os.makedirs(cluster.root, exist_ok=True)
            kernel.bind(f"/proc/self/fd/{root}", cluster.root)
            mount_devices(cluster)
        os.chdir("/")
        ready.send(b"ready")
    except OSError as error:
        ready.send(f"{host}: {error}".encode())
        os._exit(1)
    become_reaper(cluster, host, commit)


def keep_open(folders):
    """Descriptors of the folders, outermost first."""
    return [(folder, os.open(folder, os.O_PATH)) for folder in sorted(set(folders), key=len)]


def put_back(kept):
    """Bind the folders that a private one hides now to their old places."""
    for folder, fd in kept:
        if os.path.isdir(folder) and os.path.samestat(os.stat(folder), os.fstat(fd)):
            continue
        os.makedirs(folder, exist_ok=True)
        kernel.bind(f"/proc/self/fd/{fd}", folder)


def mount_proc_and_sys(cgroup_fds):
    """/proc of this PID namespace, /sys of this network namespace, and the host's own cgroups as the root ones."""
    kernel.mount("proc", "/proc", "proc")
    kernel.mount("sysfs", "/sys", "sysfs")
    v2_only = len(cgroup_fds) == 1 and cgroup_fds[0][0].is_v2
    if not v2_only:
        kernel.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", data="mode=755")
    for hierarchy, fd in cgroup_fds:
        name = os.path.basename(hierarchy.mountpoint)
        target = "/sys/fs/cgroup" if v2_only else "/sys/fs/cgroup/" + name
        os.makedirs(target, exist_ok=True)
        kernel.bind(f"/proc/self/fd/{fd}", target)
        for controller in hierarchy.controllers - {name}:
            os.symlink(name, "/sys/fs/cgroup/" + controller)


def mount_private_folders(cluster, host):
    # The copies of the host's folders are on the state folder's file system, which the private /run may hide: reach
    # them through a descriptor.
    folder = os.open(cluster.host_path(host, "root"), os.O_PATH)
    here = f"/proc/self/fd/{folder}"
    prepare_private_folders(cluster, host, here)
    mount_etc(cluster, host)
    for path in PRIVATE:
        kernel.bind(here + path, path)
    kernel.bind(here + "/etc/dlrover", "/etc/dlrover")
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    if os.path.isdir("/dev/mqueue"):
        kernel.mount("mqueue", "/dev/mqueue", "mqueue")


def prepare_private_folders(cluster, host, here):
    """A fresh /tmp, /run and /var/spool, as after a reboot; /var/log and /etc/dlrover stay."""
    for path in ("/tmp", "/run", "/var/spool"):
        shutil.rmtree(here + path, ignore_errors=True)
    for path in PRIVATE + ("/var/log/dlrover", "/var/spool/slurmd", "/run/munge", "/run/lock", "/etc/dlrover"):
        os.makedirs(here + path, exist_ok=True)
    os.chmod(here + "/tmp", 0o1777)
    os.chmod(here + "/run/lock", 0o1777)
    if host == LOGIN:
        os.makedirs(here + "/run/slurm")
        uid = cluster.options["slurm_uid"]
        os.chown(here + "/run/slurm", uid, uid)


def mount_etc(cluster, host):
    """/etc with the cluster's users and hosts laid over the machine's; nothing is written to the machine's own /etc."""
    ours = os.open(cluster.path("etc"), os.O_PATH)  # by path it may be hidden from the next line on
    kernel.mount("tmpfs", "/tmp", "tmpfs", data="mode=755")
    os.makedirs("/tmp/upper/dlrover")
    os.makedirs("/tmp/work")
    for name in ("passwd", "group", "hosts"):
        shutil.copy(f"/proc/self/fd/{ours}/{name}", "/tmp/upper/" + name)
    with open("/tmp/upper/hostname", "w", encoding="ascii") as file:
        file.write(host + "\n")
    os.symlink(cluster.path("etc"), "/tmp/upper/slurm")
    kernel.mount("overlay", "/etc", "overlay", data="lowerdir=/etc,upperdir=/tmp/upper,workdir=/tmp/work")
    kernel.umount_lazily("/tmp")


def mount_devices(cluster):
    """Character devices that stand for GPUs, on a file system that allows devices."""
    folder = cluster.path("dev")
    kernel.mount("tmpfs", folder, "tmpfs", data="mode=755")
    for index in range(cluster.options["gpus_per_node"]):
        os.mknod(f"{folder}/gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chmod(f"{folder}/gpu{index}", 0o666)


def become_reaper(cluster, host, commit):
    """Replace this process by the reaper, which holds nothing of the caller's but, in the fabric, `commit`."""
    log = os.open(cluster.log("init-" + host), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, place in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, place)
    if commit is not None:
        os.dup2(commit, 3)
        os.set_inheritable(3, True)  # dup2 of 3 to itself leaves it close-on-exec
    os.closerange(3 if commit is None else 4, 4096)
    os.execv(sys.executable, [sys.executable, "-I", "-S", REAPER, cluster.name, host, "-1" if commit is None else "3"])
