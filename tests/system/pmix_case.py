# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs under our PMIx server have in common."""

import pathlib
import shutil
import subprocess

from cluster import TOP, Cluster, Process, prefix

SERVER = "dlrover-pmixd"
MISSING = [what for what, there in (("mpicc (openmpi-bin, libopenmpi-dev)", shutil.which("mpicc")),
                                    ("a build with PMIx", any(prefix().rglob(SERVER)))) if not there]
# Over TCP; left alone, Open MPI 4.1 here chooses a component for one-sided communication that has no use of it.
MPI_SETTINGS = ["OMPI_MCA_btl=self,vader,tcp", "OMPI_MCA_pml=ob1", "OMPI_MCA_osc=pt2pt",
                "OMPI_MCA_mpi_yield_when_idle=1"]  # many ranks on few cores

# Left alone, Open MPI 4.1 takes UCX for networks with RDMA only.
UCX_SETTINGS = ["OMPI_MCA_pml=ucx", "OMPI_MCA_osc=ucx", "OMPI_MCA_opal_common_ucx_tls=any",  # as docs/pmix.md says
                "OMPI_MCA_mpi_yield_when_idle=1"]


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


def servers(cluster: Cluster) -> "list[tuple[str, Process]]":
    return [(node, p) for node, p in cluster.processes() if p.state != "Z" and p.command and p.command[0].endswith("/" + SERVER)]


#: Open MPI's shared memory; a name says which node's and whose it is.
SEGMENTS = "dev/shm/vader_segment.*"


def files_on_nodes(cluster: Cluster, pattern: str) -> "list[pathlib.Path]":
    """As each node sees its own folders."""
    hosts = [host for host in cluster.describe()["hosts"] if host.get("slurmd")]
    return [path for host in hosts for path in pathlib.Path(f"/proc/{host['slurmd']}/root").glob(pattern)]


def expect_nothing_left(cluster: Cluster) -> None:
    """No process, no file, no socket of ours, of PMIx or of Open MPI."""
    roots = {host["host"]: pathlib.Path(f"/proc/{host['slurmd']}/root") for host in cluster.describe()["hosts"] if host.get("slurmd")}
    cluster.expect_clean()
    for node, root in roots.items():
        left = [str(p) for p in (root / "tmp").iterdir() if p.name.startswith(("dlrover-", "pmix"))]
        assert not left, f"{node}: {left}"
