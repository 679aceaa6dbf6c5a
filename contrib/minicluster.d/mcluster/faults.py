# SPDX-License-Identifier: Apache-2.0
"""Faults that do not end a node: frozen hosts and cut links."""

import signal

from mcluster import Failure, proc


def is_frozen(cluster, host):
    return cluster.cgroups.is_frozen(host) or host in cluster.options.get("frozen_by_signal", [])


def freeze(cluster, host):
    """Stop every process of the host, jobs too; its kernel still answers on the network, as that of a hung node."""
    if is_frozen(cluster, host):
        raise Failure(f"{host} is frozen already")
    first = cluster.running(host)
    if cluster.cgroups.freeze(host):
        return
    stopped = set()
    while True:  # until none was forked meanwhile
        found = set(proc.in_pid_namespace_of(first)) - stopped
        if not found:
            break
        for pid in found:
            proc.kill(pid, signal.SIGSTOP)
        stopped |= found
    _remember(cluster, host, True)


def thaw(cluster, host):
    if not is_frozen(cluster, host):
        raise Failure(f"{host} is not frozen")
    cluster.cgroups.thaw(host)
    if host in cluster.options.get("frozen_by_signal", []):
        for pid in proc.in_pid_namespace_of(cluster.running(host)):
            proc.kill(pid, signal.SIGCONT)
        _remember(cluster, host, False)


def forget(cluster, host):
    """The host has ended."""
    cluster.cgroups.thaw(host)
    if host in cluster.options.get("frozen_by_signal", []):
        _remember(cluster, host, False)


def _remember(cluster, host, frozen):
    hosts = set(cluster.options.get("frozen_by_signal", [])) - {host}
    cluster.options["frozen_by_signal"] = sorted(hosts | ({host} if frozen else set()))
    cluster.save()
