# SPDX-License-Identifier: Apache-2.0
"""The cgroups of a cluster: one per host, in every hierarchy that is mounted, version 1 or 2.

Each host sees its own cgroup as the root (cgroup namespace and bind mounts, see inside.py), so that the job cgroups of
two clusters never meet, and freezing a host freezes its jobs too.
"""

import os
import time
import zlib

from mcluster import Failure, proc

NEEDED_BY_SLURM_V1 = {"cpuacct", "cpuset", "freezer", "memory"}


class Hierarchy:
    """One mounted cgroup hierarchy; `controllers` is empty for version 2."""

    def __init__(self, mountpoint, controllers):
        self.mountpoint = mountpoint
        self.controllers = controllers

    @property
    def is_v2(self):
        return not self.controllers


def hierarchies():
    """Mounted hierarchies, version 1 named ones (systemd) left out."""
    found = {}
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            _, mountpoint, fstype, options = line.split()[:4]
            if fstype == "cgroup2":
                found[mountpoint] = Hierarchy(mountpoint, frozenset())
            elif fstype == "cgroup" and "name=" not in options:
                known = {"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "clone_children"}
                found[mountpoint] = Hierarchy(mountpoint, frozenset(options.split(",")) - known)
    return list(found.values())


def slurm_can_use_v1():
    have = set().union(*(hierarchy.controllers for hierarchy in hierarchies()))
    return NEEDED_BY_SLURM_V1 <= have


def _read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def _write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


class Cgroups:
    """The cgroups of the cluster whose state folder is `root`."""

    def __init__(self, name, root):
        self.folder = f"dlrover-minicluster.{name}.{zlib.crc32(os.fsencode(root)):08x}"

    def path(self, hierarchy, host=""):
        return os.path.join(hierarchy.mountpoint, self.folder, host).rstrip("/")

    def create(self, host):
        """Make the host's cgroups and return (hierarchy, path) pairs. A hierarchy that refuses is left out."""
        made = []
        for hierarchy in hierarchies():
            try:
                for path in (self.path(hierarchy), self.path(hierarchy, host)):
                    os.makedirs(path, exist_ok=True)
                    if "cpuset" in hierarchy.controllers:
                        _inherit_cpuset(path)
                made.append((hierarchy, self.path(hierarchy, host)))
            except OSError:
                continue
        return made

    def open_procs(self, host):
        """Descriptors through which a process joins the host's cgroups by writing 0, from any namespace."""
        fds = []
        for hierarchy in hierarchies():
            try:
                fds.append(os.open(self.path(hierarchy, host) + "/cgroup.procs", os.O_WRONLY))
            except OSError:
                continue
        return fds

    def pids(self):
        """Processes in any cgroup of this cluster."""
        found = set()
        for hierarchy in hierarchies():
            for folder, _, _ in os.walk(self.path(hierarchy)):
                try:
                    found.update(map(int, _read(folder + "/cgroup.procs").split()))
                except OSError:
                    continue
        return found

    def remove(self, host="", seconds=10):
        """Remove the cgroups of one host, or of the whole cluster. Killed processes may hold them for a moment."""
        deadline = time.monotonic() + seconds
        while True:
            left = [path for path in (self.path(hierarchy, host) for hierarchy in hierarchies())
                    if not _remove_tree(path)]
            if not left:
                return
            if time.monotonic() >= deadline:
                raise Failure("cgroups still busy: " + " ".join(left))
            time.sleep(0.02)

    def _freezers(self, host):
        """(file, text to freeze, text to thaw, test whether frozen), the version 1 freezer first."""
        for hierarchy in sorted(hierarchies(), key=lambda hierarchy: hierarchy.is_v2):
            path = self.path(hierarchy, host)
            if "freezer" in hierarchy.controllers and os.path.exists(path + "/freezer.state"):
                state = path + "/freezer.state"
                yield state, "FROZEN", "THAWED", lambda state=state: _read(state).strip() == "FROZEN"
            elif hierarchy.is_v2 and os.path.exists(path + "/cgroup.freeze"):
                events = path + "/cgroup.events"
                yield path + "/cgroup.freeze", "1", "0", lambda events=events: "frozen 1" in _read(events)

    def freeze(self, host):
        """Freeze all processes of the host; False where the machine has no freezer."""
        for file, frozen, _, is_frozen in self._freezers(host):
            _write(file, frozen)
            proc.wait_until(is_frozen, 30, f"{host} to freeze")
            return True
        return False

    def thaw(self, host):
        for file, _, thawed, _ in self._freezers(host):
            _write(file, thawed)

    def is_frozen(self, host):
        return any(is_frozen() for _, _, _, is_frozen in self._freezers(host))


def _inherit_cpuset(path):
    """A new version 1 cpuset is empty and takes no process before it is filled."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not _read(f"{path}/{name}").strip():
            _write(f"{path}/{name}", _read(f"{os.path.dirname(path)}/{name}"))


def _remove_tree(path):
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            continue
    return not os.path.isdir(path)
