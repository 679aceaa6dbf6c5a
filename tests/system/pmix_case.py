# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs under our PMIx server have in common."""

import pathlib
import shutil
import subprocess

from cluster import TOP, Cluster, prefix

SERVER = "dlrover-pmixd"
MISSING = [what for what, there in (("mpicc (openmpi-bin, libopenmpi-dev)", shutil.which("mpicc")),
                                    ("a build with PMIx", any(prefix().rglob(SERVER)))) if not there]
# Over TCP; left alone, Open MPI 4.1 here chooses a component for one-sided communication that has no use of it.
MPI_SETTINGS = ["OMPI_MCA_btl=self,vader,tcp", "OMPI_MCA_pml=ob1", "OMPI_MCA_osc=pt2pt"]


def build(cluster: Cluster, name: str, *flags: str) -> str:
    """A program of tests/system in C that needs PMIx, and what the flags say."""
    out = cluster.work / name
    pmix = subprocess.run(["pkg-config", "--cflags", "pmix"], check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["gcc", "-O1", *pmix, "-o", str(out), str(TOP / "tests" / "system" / f"{name}.c"), "-l:libpmix.so.2", *flags], check=True)
    return str(out)


def folder(cluster: Cluster, name: str) -> pathlib.Path:
    """In which every user may write."""
    made = cluster.work / name
    made.mkdir()
    made.chmod(0o777)
    return made
