# SPDX-License-Identifier: Apache-2.0
"""The environments of users' commands and of daemons."""

import os

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_INHERITED = ("TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "NOTIFY_SOCKET", "LISTEN_FDS")
NOT_INHERITED_PREFIXES = ("SLURM_", "SUDO_", "PMIX_")
FOR_DAEMONS = ("TZ", "LANG", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")


def of_user(cluster, user, home):
    """The caller's environment, with the cluster's own settings over it."""
    env = {key: value for key, value in os.environ.items()
           if key not in NOT_INHERITED and not key.startswith(NOT_INHERITED_PREFIXES)}
    return _completed(env, cluster, user, home)


def of_daemon(cluster):
    """Almost empty, as systemd would have it; what a test wants to tell the daemons may pass."""
    env = {key: value for key, value in os.environ.items() if key in FOR_DAEMONS or key.startswith("DLROVER_")}
    return _completed(env, cluster, "root", "/root")


def _completed(env, cluster, user, home):
    env.update(HOME=home, USER=user, LOGNAME=user, SHELL="/bin/bash", PATH=STANDARD_PATH,
               SLURM_CONF=cluster.path("etc", "slurm.conf"), MINICLUSTER_NAME=cluster.name,
               MINICLUSTER_WORK=cluster.path("work"))
    if cluster.prefix:
        env["PATH"] = f"{cluster.prefix}/bin:{cluster.prefix}/sbin:{STANDARD_PATH}"
        env["MANPATH"] = f"{cluster.prefix}/share/man:"
        env["PYTHONPATH"] = (cluster.installed_text("pythonpath")
                             or f"{cluster.prefix}/lib/python3/dist-packages").strip()
    return env
