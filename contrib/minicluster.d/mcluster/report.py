# SPDX-License-Identifier: Apache-2.0
"""`status`, `list` and `logs`."""

import glob
import json
import os
import subprocess

from mcluster import Failure, faults, net, services
from mcluster.cluster import LOGIN, base_folder


def rows(cluster):
    """One dictionary per host."""
    try:
        states = services.slurm_states(cluster, timeout=15)
    except (Failure, subprocess.TimeoutExpired):
        states = {}
    links = net.states(cluster)
    return [row(cluster, host, links[host], states) for host in cluster.hosts]


def row(cluster, host, link, states):
    up = cluster.pid(host) is not None
    return {
        "host": host,
        "address": cluster.address(host),
        "power": "off" if not up else "frozen" if faults.is_frozen(cluster, host) else "on",
        "link": link if up else "-",
        "slurmctld" if host == LOGIN else "slurmd": cluster.pid(host, "slurmctld" if host == LOGIN else "slurmd"),
        "keeper": cluster.pid(host, "keeper"),
        "dlroverd": services.dlroverd_pid(cluster, host),
        "slurm": states.get(host, "-" if host == LOGIN else "unknown"),
    }


def show_status(cluster, as_json):
    table = rows(cluster)
    if as_json:
        print(json.dumps({"name": cluster.name, "folder": cluster.root, "prefix": cluster.prefix, "hosts": table},
                         indent=1))
        return
    print(f"cluster {cluster.name} in {cluster.root} (shared: home/USER, work; logs: log)")
    titles = ["host", "address", "power", "link", "slurmd", "keeper", "dlroverd", "slurm"]
    cells = [[str(entry.get(title, entry.get("slurmctld")) or "-") for title in titles] for entry in table]
    titles[4] = "slurm(ct)ld"
    widths = [max(map(len, column)) for column in zip(titles, *cells)]
    for line in [titles] + cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def show_list():
    for path in sorted(glob.glob(os.path.join(base_folder(), "*", "cluster.json"))):
        print(os.path.basename(os.path.dirname(path)))


def show_logs(cluster, host, follow):
    """Hand over to tail for the logs of one host, or of all."""
    if host is None:
        patterns = ["*.log"]
    else:
        patterns = [f"*-{host}.log"] + (["slurmctld.log", "slurmdbd.log", "mariadb.log"] if host == LOGIN else [])
    files = {file for pattern in patterns for file in glob.glob(cluster.path("log", pattern))}
    files = sorted(file for file in files if os.path.getsize(file) > 0)
    if not files:
        raise Failure("no log has anything in it yet")
    os.execvp("tail", ["tail", "-v", "-n", "+1"] + (["-F"] if follow else []) + files)
