# SPDX-License-Identifier: Apache-2.0
"""The configuration files of a cluster."""

import os

from mcluster import Failure, cgroups
from mcluster.cluster import FABRIC, LOGIN, SLURM_UID

NODE_KEYS = {"CPUs", "Boards", "CoresPerSocket", "Features", "Gres", "MemSpecLimit", "CoreSpecCount", "CPUSpecList",
             "RealMemory", "Sockets", "ThreadsPerCore", "TmpDisk", "Weight"}
TOP_SWITCH = "spine"
REPEATED_KEYS = {"NodeName", "PartitionName", "NodeSet", "DownNodes", "Include"}
PARTITION_KEYS = {"AllowAccounts", "DefaultTime", "GraceTime", "MaxCPUsPerNode", "MaxNodes", "MaxTime", "MinNodes",
                  "OverSubscribe", "PriorityTier"}


def parse_settings(texts):
    """KEY=VALUE texts of --conf as pairs."""
    pairs = []
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.isidentifier():
            raise Failure(f"--conf {text}: expected KEY=VALUE")
        pairs.append((key, value))
    return pairs


def parse_switches(texts, nodes):
    """NAME=n1,n2 texts of --switch as pairs of a name and its nodes."""
    pairs, taken = [], set()
    for text in texts:
        name, separator, hosts = text.partition("=")
        hosts = hosts.split(",")
        if not separator or not name.isidentifier() or name == TOP_SWITCH or not set(hosts) <= set(nodes) or taken & set(hosts):
            raise Failure(f"--switch {text}: expected NAME=n1,n2,... with nodes that hang on no other switch")
        taken |= set(hosts)
        pairs.append((name, hosts))
    return pairs


def write_all(cluster):
    os.makedirs(cluster.path("etc"), exist_ok=True)
    write_users(cluster)
    write_hosts(cluster)
    _write(cluster, "slurm.conf", slurm_conf(cluster))
    _write(cluster, "gres.conf", gres_conf(cluster))
    _write(cluster, "cgroup.conf", cgroup_conf(cluster))
    _write(cluster, "plugstack.conf", plugstack_conf(cluster))
    if cluster.options["switches"]:
        _write(cluster, "topology.conf", topology_conf(cluster))
    if cluster.options["slurmdbd"]:
        write_slurmdbd_conf(cluster)


def _write(cluster, name, text, mode=0o644):
    path = cluster.path("etc", name)
    with open(path, "w", encoding="utf-8", opener=lambda file, flags: os.open(file, flags, mode)) as file:
        file.write(text)


def _lines_of(path):
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line.rstrip("\n") for line in file if line.strip()]


def write_users(cluster):
    """The machine's users, plus the cluster's (which win) and slurm where the machine has none."""
    added = {user: (uid, cluster.path("home", user), "/bin/bash") for user, uid in cluster.users.items()}
    passwd = _lines_of("/etc/passwd")
    slurm = [int(line.split(":")[2]) for line in passwd if line.startswith("slurm:")]
    cluster.options["slurm_uid"] = slurm[0] if slurm else SLURM_UID
    groups = {line.split(":")[0] for line in _lines_of("/etc/group")}
    if not slurm:
        added["slurm"] = (SLURM_UID, "/nonexistent", "/usr/sbin/nologin")
    numbers = {str(uid) for uid, _, _ in added.values()}
    passwd = [line for line in passwd if line.split(":")[0] not in added and line.split(":")[2] not in numbers]
    passwd += [f"{user}:x:{uid}:{uid}::{home}:{shell}" for user, (uid, home, shell) in added.items()]
    group = [line for line in _lines_of("/etc/group")
             if line.split(":")[0] not in added and line.split(":")[2] not in numbers]
    group += [f"{user}:x:{uid}:" for user, (uid, _, _) in added.items()]
    if slurm and "slurm" not in groups:
        group.append(f"slurm:x:{slurm[0]}:")
    _write(cluster, "passwd", "\n".join(passwd) + "\n")
    _write(cluster, "group", "\n".join(group) + "\n")


def write_hosts(cluster):
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{cluster.address(host)} {host}" for host in cluster.hosts]
    _write(cluster, "hosts", "\n".join(lines) + "\n")


def node_memory_mb():
    """So much that six nodes fill nine tenths of the machine, within reason."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1 << 20)
    return max(512, min(4000, total * 9 // 10 // 6 // 100 * 100))


def node_settings(cluster):
    gpus = cluster.options["gpus_per_node"]
    settings = {"CPUs": "8", "RealMemory": str(node_memory_mb())}
    if gpus:
        settings["Gres"] = f"gpu:{gpus}"
    settings.update((key, value) for key, value in cluster.options["conf"] if key in NODE_KEYS)
    return settings


def slurm_settings(cluster):
    """The settings of slurm.conf but for its node and partition lines."""
    settings = {
        "ClusterName": cluster.name,
        "SlurmctldHost": f"{LOGIN}({cluster.address(LOGIN)})",
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        "AuthInfo": "cred_expire=5",
        "CredType": "cred/munge",
        "StateSaveLocation": cluster.path("state"),
        "SlurmdSpoolDir": "/var/spool/slurmd",
        "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "SlurmctldLogFile": cluster.log("slurmctld"),
        "SlurmdLogFile": cluster.log("slurmd-%n"),
        "LogTimeFormat": "iso8601_ms",
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "MailProg": "/bin/true",
        "PlugStackConfig": cluster.path("etc", "plugstack.conf"),
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0,sched_interval=5,bf_interval=5",
        "ReturnToService": "2",
        "SlurmdTimeout": "10",
        "SlurmctldTimeout": "10",
        "InactiveLimit": "0",
        "KillWait": "5",
        "MinJobAge": "300",
        "MessageTimeout": "5",
        "TCPTimeout": "2",
        "BatchStartTimeout": "10",
        "CompleteWait": "0",
        "UnkillableStepTimeout": "20",
        "JobRequeue": "1",
        "PrologFlags": "Alloc",
        "SlurmdParameters": "config_overrides",
        "PropagateResourceLimits": "NONE",
    }
    settings.update(tracking_settings(cluster))
    if cluster.options["gpus_per_node"]:
        settings["GresTypes"] = "gpu"
    if cluster.options["switches"]:
        settings["TopologyPlugin"] = "topology/tree"
    if cluster.options["slurmdbd"]:
        settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
        settings["AccountingStorageHost"] = cluster.address(LOGIN)
    if not {"DefMemPerCPU", "DefMemPerNode"} & {key for key, _ in cluster.options["conf"]}:
        settings["DefMemPerNode"] = str(int(node_settings(cluster)["RealMemory"]) // 2)
    other = NODE_KEYS | REPEATED_KEYS | PARTITION_KEYS
    settings.update((key, value) for key, value in cluster.options["conf"] if key not in other)
    return settings


def tracking_settings(cluster):
    """With task/affinity Slurm could not lay tasks out on the cores that the machine lacks: task/cgroup or none."""
    if cluster.options["cgroup"] == "none":
        return {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none",
                "JobAcctGatherType": "jobacct_gather/linux", "JobAcctGatherFrequency": "5"}
    return {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup",
            "JobAcctGatherType": "jobacct_gather/cgroup", "JobAcctGatherFrequency": "5"}


def _joined(settings):
    return " ".join(f"{key}={value}" for key, value in settings.items())


def slurm_conf(cluster):
    lines = [f"{key}={value}" for key, value in slurm_settings(cluster).items()]
    lines += [f"NodeName={node} NodeHostname={node} NodeAddr={cluster.address(node)} {_joined(node_settings(cluster))} "
              "State=UNKNOWN" for node in cluster.nodes]
    partition = {"MaxTime": "INFINITE", "OverSubscribe": "NO"}
    partition.update((key, value) for key, value in cluster.options["conf"] if key in PARTITION_KEYS)
    lines.append(f"PartitionName=main Nodes={','.join(cluster.nodes)} Default=YES State=UP {_joined(partition)}")
    lines += [f"{key}={value}" for key, value in cluster.options["conf"] if key in REPEATED_KEYS]
    return "\n".join(lines) + "\n"


def gres_conf(cluster):
    gpus = cluster.options["gpus_per_node"]
    return "".join(f"Name=gpu File={cluster.path('dev', f'gpu{index}')}\n" for index in range(gpus))


def topology_conf(cluster):
    switches = cluster.options["switches"]
    lines = [f"SwitchName={name} Nodes={','.join(nodes)}" for name, nodes in switches]
    lines.append(f"SwitchName={TOP_SWITCH} Switches={','.join(name for name, _ in switches)}")
    return "\n".join(lines) + "\n"


def cgroup_conf(cluster):
    lines = ["ConstrainCores=no", "ConstrainDevices=no", "ConstrainRAMSpace=yes", "ConstrainSwapSpace=no"]
    if cluster.options["cgroup"] == "v2":
        # No systemd in the nodes: Slurm makes its own cgroups below the node's.
        lines += ["CgroupPlugin=cgroup/v2", "IgnoreSystemd=yes"]
    else:
        # Also where none is used: slurmd always loads a plugin, and this one touches nothing before it is used.
        lines += ["CgroupPlugin=cgroup/v1", "CgroupAutomount=no"]
    return "\n".join(lines) + "\n"


def choose_cgroup(wanted):
    """What Slurm shall use. Version 2 only on request: see docs/minicluster.md for what was tried."""
    if wanted != "auto":
        return wanted
    return "v1" if cgroups.slurm_can_use_v1() else "none"


def plugstack_conf(cluster):
    """The snippet that the installation ships, or the same line made here; it names the module by its full path."""
    if cluster.prefix is None:
        return ""
    return cluster.installed_text("plugstack.conf") or f"optional {cluster.prefix}/lib/slurm/dlrover.so\n"


def write_slurmdbd_conf(cluster):
    uid = cluster.options["slurm_uid"]
    _write(cluster, "slurmdbd.conf", f"""\
AuthType=auth/munge
DbdHost={LOGIN}
DbdAddr={cluster.address(LOGIN)}
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile={cluster.log('slurmdbd')}
PidFile=/run/slurm/slurmdbd.pid
DebugLevel=info
""", 0o600)
    os.chown(cluster.path("etc", "slurmdbd.conf"), uid, uid)


def make_folders(cluster):
    """The folders of the state folder, with their owners; `home` and `work` are the cluster's shared file system."""
    uid = cluster.options["slurm_uid"]
    for name, mode, owner in (("log", 0o755, uid), ("state", 0o700, uid), ("host", 0o700, 0),
                              ("dev", 0o755, 0), ("home", 0o755, 0), ("work", 0o1777, 0)):
        _make_folder(cluster.path(name), mode, owner)
    for user, user_id in cluster.users.items():
        _make_folder(cluster.path("home", user), 0o700, user_id)
    for host in cluster.hosts + [FABRIC]:
        _make_folder(cluster.host_path(host, "root", "etc", "dlrover"), 0o755, 0)


def _make_folder(path, mode, owner):
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)
    os.chown(path, owner, owner)


def write_dlrover_toml(cluster, host):
    """The daemons' settings are their defaults, unless `start --dlrover-conf FILE` brought others."""
    text = cluster.options.get("dlrover_conf") or "# minicluster: every setting has its default\n"
    with open(cluster.host_path(host, "root", "etc", "dlrover", "dlrover.toml"), "w", encoding="utf-8") as file:
        file.write(text)
