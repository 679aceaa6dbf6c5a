# SPDX-License-Identifier: Apache-2.0
"""What the machine must have before a cluster can start."""

import os
import shutil

from mcluster import Failure, environ

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge", "ip": "iproute2",
            "tc": "iproute2"}
ACCOUNTING_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
INSTALLED_FILES = ("sbin/dlroverd", "sbin/dlrover-keeper", "bin/dlrover", "libexec/dlrover/dlrover-agent")
PREFIXES = ("/usr/local", "/usr")


def check_packages(with_slurmdbd):
    wanted = dict(PROGRAMS, **(ACCOUNTING_PROGRAMS if with_slurmdbd else {}))
    missing = sorted({package for program, package in wanted.items()
                      if shutil.which(program, path=environ.STANDARD_PATH) is None})
    if missing:
        raise Failure("packages are missing; install them with: apt-get install --no-install-recommends "
                      + " ".join(missing))


def find_prefix(wanted):
    """Folder of the DLRover installation to use."""
    wanted = wanted or os.environ.get("DLROVER_PREFIX")
    if wanted is None:
        found = [prefix for prefix in PREFIXES if os.path.exists(f"{prefix}/sbin/dlroverd")]
        if not found:
            raise Failure("DLRover is not installed: run `make install` and name its prefix with --prefix DIR or "
                          "DLROVER_PREFIX, or start a plain Slurm cluster with --no-dlrover")
        return found[0]
    prefix = os.path.realpath(wanted)
    missing = [name for name in INSTALLED_FILES if not os.path.exists(f"{prefix}/{name}")]
    if missing:
        raise Failure(f"{prefix} is not a whole DLRover installation, it lacks {', '.join(missing)}: run "
                      "`make install` (an uninstalled build tree does not do)")
    return prefix
