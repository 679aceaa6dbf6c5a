# SPDX-License-Identifier: Apache-2.0
"""One cluster: its options, its hosts, and where its files are."""

import fcntl
import json
import os
import re

from mcluster import Failure, proc
from mcluster.cgroups import Cgroups

LOGIN = "ctl"
FABRIC = "fabric"  # holds the bridge, munged, and every host; not a machine of the cluster
NETWORK = "10.77"
FIRST_UID = 2001
MAX_NODES = 250
SLURM_UID = 64030  # Debian's


def base_folder():
    return os.path.realpath(os.environ.get("DLROVER_MINICLUSTER_DIR") or "/run/dlrover-minicluster")


class Cluster:
    """Names and paths; `options` is what `start` was asked for and lives in cluster.json."""

    def __init__(self, name, options=None):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name):
            raise Failure(f"cluster name '{name}': use lower-case letters, digits, - and _ (at most 40)")
        self.name = name
        self.root = os.path.join(base_folder(), name)
        self.options = options or {}
        self.cgroups = Cgroups(name, self.root)

    @classmethod
    def load(cls, name):
        cluster = cls(name)
        try:
            with open(cluster.path("cluster.json"), encoding="utf-8") as file:
                cluster.options = json.load(file)
        except FileNotFoundError:
            raise Failure(f"no cluster '{name}' is running (start one with: minicluster start --name {name})") from None
        return cluster

    def save(self):
        with open(self.path("cluster.json.new"), "w", encoding="utf-8") as file:
            json.dump(self.options, file, indent=1)
        os.rename(self.path("cluster.json.new"), self.path("cluster.json"))

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def lock(self):
        """Take the cluster's lock until the process ends; the folder itself is the lock, so nothing is left behind."""
        fd = os.open(self.root, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    @property
    def nodes(self):
        return [f"n{index + 1}" for index in range(self.options["nodes"])]

    @property
    def hosts(self):
        return [LOGIN] + self.nodes

    @property
    def users(self):
        """User name to uid; the gid is the same number."""
        return {user: FIRST_UID + index for index, user in enumerate(self.options["users"])}

    @property
    def prefix(self):
        """Where DLRover is installed, or None."""
        return self.options.get("prefix")

    def installed_text(self, name):
        """Text of a file that the installation keeps under share, or None."""
        for folder in ("dlrover-slurm", "dlrover"):
            try:
                with open(f"{self.prefix}/share/{folder}/{name}", encoding="utf-8") as file:
                    return file.read()
            except FileNotFoundError:
                continue
        return None

    def check_host(self, host):
        if host not in self.hosts:
            raise Failure(f"cluster '{self.name}' has no host '{host}' (it has {', '.join(self.hosts)})")
        return host

    def check_node(self, node):
        if node not in self.nodes:
            raise Failure(f"cluster '{self.name}' has no node '{node}' (it has {', '.join(self.nodes)})")
        return node

    def number(self, host):
        """Last part of the host's addresses: 1 for the login host, 11 for n1."""
        return 1 if host == LOGIN else 10 + int(host[1:])

    def address(self, host):
        number = self.number(host)
        return f"{NETWORK}.{number // 250}.{number % 250}"

    def mac(self, host):
        return f"02:00:00:00:{self.number(host) >> 8:02x}:{self.number(host) & 255:02x}"

    def host_path(self, host, *parts):
        return self.path("host", host, *parts)

    def log(self, name):
        return self.path("log", name + ".log")

    def pid(self, host, service="init"):
        """The live process of a host's service, or None; `init` is the first process of its PID namespace."""
        return proc.recorded(self.host_path(host, service + ".pid"))

    def record_pid(self, host, service, pid):
        proc.record(self.host_path(host, service + ".pid"), pid)

    def running(self, host):
        """Pid of the host's first process; Failure where the host is off."""
        pid = self.pid(host)
        if pid is None:
            if host == FABRIC:
                raise Failure(f"cluster '{self.name}' is not whole: stop it with: minicluster stop --name {self.name}")
            hint = f" (minicluster start-node --name {self.name} {host})" if host in self.nodes else ""
            raise Failure(f"{host} is not running{hint}")
        return pid
