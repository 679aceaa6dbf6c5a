# SPDX-License-Identifier: Apache-2.0
"""slurmdbd and its MariaDB, on the login host, for `start --slurmdbd`."""

import os

from mcluster import Failure, services, spawn
from mcluster.cluster import LOGIN

SOCKET = "/run/mysqld/mysqld.sock"


def start(cluster):
    start_database(cluster)
    spawn.daemon(cluster, LOGIN, "slurmdbd", ["/usr/sbin/slurmdbd", "-D"], cluster.path("log", "slurmdbd.out"))
    services.wait_for(cluster, LOGIN, "slurmdbd", lambda: knows_cluster(cluster), 60, cluster.log("slurmdbd"))


def start_database(cluster):
    data = cluster.path("mysql")
    uid = cluster.options["slurm_uid"]
    os.makedirs(data)
    os.chown(data, uid, uid)
    spawn.run(cluster, LOGIN, ["install", "-d", "-o", "slurm", "/run/mysqld"])
    spawn.run(cluster, LOGIN, ["mariadb-install-db", "--no-defaults", "--user=slurm", f"--datadir={data}",
                               "--auth-root-authentication-method=normal", "--skip-test-db",
                               "--innodb-log-file-size=16M"], timeout=120)
    init = cluster.path("etc", "mariadb-init.sql")
    with open(init, "w", encoding="ascii") as file:
        file.write("create database if not exists slurm_acct_db;\n"
                   "create user if not exists 'slurm'@'localhost' identified by 'slurm';\n"
                   "grant all on slurm_acct_db.* to 'slurm'@'localhost';\n")
    spawn.daemon(cluster, LOGIN, "mariadb",
                 ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", "--user=slurm", f"--socket={SOCKET}",
                  "--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M",
                  "--innodb-lock-wait-timeout=900", f"--init-file={init}"], cluster.log("mariadb"))
    sock = cluster.host_path(LOGIN, "root") + SOCKET
    services.wait_for(cluster, LOGIN, "mariadb", lambda: os.path.exists(sock), 30, cluster.log("mariadb"))


def knows_cluster(cluster):
    """Register the cluster, an account and the users; False while slurmdbd does not answer yet."""
    try:
        known = spawn.run(cluster, LOGIN, ["sacctmgr", "-nP", "show", "cluster", "format=cluster"])
        if cluster.name not in known.split():
            spawn.run(cluster, LOGIN, ["sacctmgr", "-iQ", "add", "cluster", cluster.name])
            spawn.run(cluster, LOGIN, ["sacctmgr", "-iQ", "add", "account", "users"])
            for user in cluster.users:
                spawn.run(cluster, LOGIN, ["sacctmgr", "-iQ", "add", "user", user, "account=users"])
        return True
    except Failure:
        return False
