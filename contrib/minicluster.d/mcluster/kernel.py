# SPDX-License-Identifier: Apache-2.0
"""The few system calls that Python's standard library lacks."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_REMOUNT = 0x20
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _text(value):
    return None if value is None else os.fsencode(value)


def mount(source, target, fstype=None, flags=0, data=None):
    _checked(_libc.mount(_text(source), _text(target), _text(fstype), ctypes.c_ulong(flags), _text(data)),
             f"mount {source} on {target}")


def umount_lazily(target):
    _checked(_libc.umount2(_text(target), MNT_DETACH), f"umount {target}")


def bind(source, target):
    """Bind source on target, without the nodev, noexec and nosuid that its file system may carry (/run often does)."""
    mount(source, target, flags=MS_BIND)
    mount(None, target, flags=MS_BIND | MS_REMOUNT)


def unshare(flags):
    _checked(_libc.unshare(flags), "unshare")


def setns(fd):
    _checked(_libc.setns(fd, 0), "setns")


def die_with_parent(signum):
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")


def enter(pid, with_pid_namespace=True):
    """Move the caller into the namespaces of process `pid` (the PID namespace: its future children only)."""
    kinds = ["cgroup", "ipc", "uts", "net", "mnt"]
    if with_pid_namespace:
        kinds.insert(0, "pid")
    fds = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for fd in fds:
        setns(fd)
        os.close(fd)
