# SPDX-License-Identifier: Apache-2.0
"""The cluster's network, all of it inside the fabric's and the hosts' network namespaces.

    host nX:  eth0 ── to-nX ┐ fabric: bridge sw-nX ┌ up-nX ── dn-nX ┐ bridge core

A link is cut in the middle of the way: what is dropped on to-nX never reaches the node, what is dropped on up-nX never
leaves its switch. Both ends keep their carrier, and neither is told, as with a failed switch. Dropping needs nothing
but a queue of length 0, which every kernel has. Hosts that are separated send what is for the other side to an
Ethernet address that nobody has.
"""

import subprocess

from mcluster import Failure, kernel
from mcluster.cluster import FABRIC

DROP_IN = "to-"
DROP_OUT = "up-"
NOBODY = "02:00:00:00:ff:ff"


def _run(pid, argv, text=None):
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=20,
                          preexec_fn=lambda: _enter_net(pid))
    if done.returncode != 0:
        raise Failure(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _enter_net(pid):
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        kernel.setns(namespace.fileno())


def create_core(fabric_pid):
    _run(fabric_pid, ["ip", "-batch", "-"], "link add core type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n"
         "link set core up\n")


def attach(cluster, host, pid):
    """Connect a new host. Its MAC address is always the same, so that peers' ARP entries survive its reboot."""
    fabric = cluster.running(FABRIC)
    _run(fabric, ["ip", "-batch", "-"], f"""\
link add sw-{host} type bridge stp_state 0 forward_delay 0 mcast_snooping 0
link add to-{host} type veth peer name eth0 address {cluster.mac(host)} netns {pid}
link add up-{host} type veth peer name dn-{host}
link set to-{host} master sw-{host} up
link set up-{host} master sw-{host} up
link set dn-{host} master core up
link set sw-{host} up
""")
    _run(pid, ["ip", "-batch", "-"], f"""\
link set lo up
addr add {cluster.address(host)}/16 dev eth0
link set eth0 up
""")


def detach(cluster, host):
    """Remove the host's part of the fabric. The kernel may be at it too, after the host's death."""
    fabric = cluster.running(FABRIC)
    for device in (f"to-{host}", f"up-{host}", f"sw-{host}"):
        try:
            _run(fabric, ["ip", "link", "del", device])
        except Failure:
            if device in _devices(fabric):
                raise


def _devices(fabric):
    lines = _run(fabric, ["ip", "-o", "link", "show"]).splitlines()
    return {line.split()[1].rstrip(":").partition("@")[0] for line in lines}


def cut(cluster, host, inward=True, outward=True):
    """Drop silently what goes to the host and what comes from it."""
    fabric = cluster.running(FABRIC)
    for device, wanted in ((DROP_IN + host, inward), (DROP_OUT + host, outward)):
        if wanted:
            _run(fabric, ["tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "0"])


def narrow(cluster, host, rate, queue):
    """What goes to the host and what comes from it passes at `rate` and waits for its turn, as tc(8) writes them; what would wait for longer than `queue` is dropped."""
    fabric = cluster.running(FABRIC)
    for device in (DROP_IN + host, DROP_OUT + host):
        _run(fabric, ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", queue])


def heal(cluster, host):
    """Undo `cut` and `narrow`."""
    fabric = cluster.running(FABRIC)
    disciplined = _dropping(fabric) | _disciplined(fabric, "tbf")
    for device in (DROP_IN + host, DROP_OUT + host):
        if device in disciplined:
            _run(fabric, ["tc", "qdisc", "del", "dev", device, "root"])


def separate(cluster, one_side, other_side):
    """Drop silently what hosts of one side and of the other send to each other; both still reach everybody else."""
    for side, others in ((one_side, other_side), (other_side, one_side)):
        lines = "".join(f"neigh replace {cluster.address(host)} lladdr {NOBODY} dev eth0 nud permanent\n" for host in others)
        for host in side:
            _run(cluster.running(host), ["ip", "-batch", "-"], lines)


def rejoin(cluster):
    """Undo all separations."""
    for host in cluster.hosts:
        if cluster.pid(host) is None:
            continue
        found = _run(cluster.running(host), ["ip", "neigh", "show", "nud", "permanent"]).splitlines()
        lines = "".join(f"neigh del {line.split()[0]} dev eth0\n" for line in found if NOBODY in line)
        _run(cluster.running(host), ["ip", "-batch", "-"], lines)


def _disciplined(fabric, kind, words=""):
    """The devices with such a queue."""
    lines = _run(fabric, ["tc", "qdisc", "show"]).splitlines()
    return {line.split()[4] for line in lines if line.split()[1] == kind and words in line}


def _dropping(fabric):
    return _disciplined(fabric, "pfifo", "limit 0p")


def states(cluster):
    """Host to `up`, `cut`, `cut in` or `cut out`."""
    dropping = _dropping(cluster.running(FABRIC))
    words = {(False, False): "up", (True, True): "cut", (True, False): "cut in", (False, True): "cut out"}
    return {host: words[DROP_IN + host in dropping, DROP_OUT + host in dropping] for host in cluster.hosts}
