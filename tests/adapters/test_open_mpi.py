# SPDX-License-Identifier: Apache-2.0
"""A newer Open MPI, from PyPI, under our PMIx server: its own PMIx is a later one than the server's, and knows no MUNGE."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "system"))
if not os.environ.get("DLROVER_PREFIX") or os.geteuid() != 0:
    pytest.skip("needs root and an installation in DLROVER_PREFIX", allow_module_level=True)
from cluster import TOP, Cluster, prefix
from pmix_case import SERVER, expect_nothing_left, folder
from test_pmix import NODES, RANKS_HERE, SIZE, expected, results

VENV = pathlib.Path(sys.executable).parents[1]
if not any(prefix().rglob(SERVER)):
    pytest.skip("needs a build with PMIx", allow_module_level=True)
SETTINGS = [f"LD_LIBRARY_PATH={VENV / 'lib'}", f"OPAL_PREFIX={VENV}", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm,tcp", "OMPI_MCA_mpi_yield_when_idle=1"]


@pytest.fixture(scope="module")
def cluster():
    with Cluster("openmpi", nodes=NODES) as made:
        made.work.chmod(0o777)
        environment = dict(os.environ, OPAL_PREFIX=str(VENV))
        subprocess.run([str(VENV / "bin" / "mpicc"), "-O1", "-o", str(made.work / "program"), str(TOP / "tests" / "system" / "mpi_program.c")],
                       check=True, env=environment)
        yield made


def run(cluster: Cluster, job: str, *arguments: str) -> str:
    done = cluster.run("env", *SETTINGS, "srun", "--job-name", job, f"-N{NODES}", f"-n{SIZE}", f"--ntasks-per-node={RANKS_HERE}", "--overcommit",
                       "--dlrover-elastic", "--dlrover-pmix=yes", str(cluster.work / "program"), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_another_pmix_than_the_servers():
    info = subprocess.run([str(VENV / "bin" / "pmix_info")], capture_output=True, text=True, env=dict(os.environ, OPAL_PREFIX=str(VENV), PMIX_PREFIX=str(VENV)))
    theirs = re.search(r"^\s*PMIX: (\d+)", info.stdout, re.M)
    ours = subprocess.run(["pkg-config", "--modversion", "pmix"], capture_output=True, text=True, check=True).stdout
    assert theirs and int(theirs[1]) >= 5, info.stdout[:500]
    print(f"client: PMIx {theirs[0].split()[-1]}, server: {ours}")


def test_the_same_results(cluster):
    assert results(run(cluster, "same")) == expected()
    expect_nothing_left(cluster)


def test_a_killed_rank_ends_the_others_and_all_begin_again(cluster):
    files = folder(cluster, "die")
    assert results(run(cluster, "killed", "die", str(files))) == expected()
    assert (files / "died").exists()
    worlds = {str(e.get("generation")) for e in cluster.events(cluster.job_id("killed")) if e["kind"] == "world-published"}
    assert len(worlds) == 2, worlds
