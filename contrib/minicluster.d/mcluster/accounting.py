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
    server = ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", "--user=slurm", "--skip-networking",
              "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0",
              "--innodb-flush-method=nosync", "--skip-innodb-doublewrite"]  # the data need not outlive the machine
    spawn.run(cluster, LOGIN, server + ["--bootstrap"], timeout=120, text=system_tables())
    init = cluster.path("etc", "mariadb-init.sql")
    with open(init, "w", encoding="ascii") as file:
        file.write("create database if not exists slurm_acct_db;\n"
                   "create user if not exists 'slurm'@'localhost' identified by 'slurm';\n"
                   "grant all on slurm_acct_db.* to 'slurm'@'localhost';\n")
    spawn.daemon(cluster, LOGIN, "mariadb", server + [f"--socket={SOCKET}", "--innodb-lock-wait-timeout=900",
                                                      f"--init-file={init}"], cluster.log("mariadb"))
    sock = cluster.host_path(LOGIN, "root") + SOCKET
    services.wait_for(cluster, LOGIN, "mariadb", lambda: os.path.exists(sock), 30, cluster.log("mariadb"))


def system_tables():
    """What mariadb-install-db feeds the server; that script itself needs the client packages."""
    text = "create database if not exists mysql;\nuse mysql;\n"
    for name in ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data"):
        with open(f"/usr/share/mysql/{name}.sql", encoding="utf-8") as file:
            text += file.read()
    return text


def knows_cluster(cluster):
    """Register the cluster, an account and the users; False while slurmdbd does not answer yet."""
    try:
        known = spawn.run(cluster, LOGIN, ["sacctmgr", "-nP", "show", "cluster", "format=cluster"])
        if cluster.name not in known.split():
            spawn.run(cluster, LOGIN, ["sacctmgr", "-iQ", "add", "cluster", cluster.name])
            spawn.run(cluster, LOGIN, ["sacctmgr", "-iQ", "add", "account", "users"])
            spawn.run(cluster, LOGIN, ["sacctmgr", "-iQ", "add", "user", ",".join(["root", *cluster.users]),
                                       "account=users"])
        return True
    except Failure:
        return False
