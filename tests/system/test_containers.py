# SPDX-License-Identifier: Apache-2.0
"""A program in a container goes on from memory: with the mounts of the installed enroot.fstab, made by bubblewrap. (enroot and Apptainer are not among Debian's packages.)"""

import unittest

from cluster import Cluster, prefix

PROGRAM = """
import os, signal, time
import dlrover_slurm as dlrover
assert not os.path.exists("/var/lib/dpkg/status"), "no container"
restored = dlrover.load()
first = restored.step + 1 if restored else 0
world = dlrover.world()
print("rank", world.rank, "managed", int(world.managed), "from", first, flush=True)
for step in range(first, 20):
    dlrover.save(step, {"x": step})
    time.sleep(0.1)
    if step == 9 and world.restart_count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def mounts() -> "list[str]":
    """The lines of the installation, in bubblewrap's words."""
    words = []
    for line in (prefix() / "share" / "dlrover-slurm" / "containers" / "enroot.fstab").read_text().splitlines():
        if line.startswith("#"):
            continue
        source, target, kind, options = line.split()
        assert kind == "none" and "bind" in options.split(",") and source == target, line
        words += ["--ro-bind" if "ro" in options.split(",") else "--bind", source, target]
    return words


class Containers(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("containers", nodes=2))
        (cls.cluster.work / "program.py").write_text(PROGRAM)
        cls.cluster.work.chmod(0o777)
        cls.python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()

    def run_in_container(self, binds: "list[str]"):
        work = str(self.cluster.work)
        container = ["bwrap", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
                     "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", work, work, "--chdir", work, *binds]
        return self.cluster.run("srun", "-N2", "--dlrover-elastic", *container, "/usr/bin/python3", work + "/program.py",
                                env={"PYTHONPATH": self.python_path, "PYTHONDONTWRITEBYTECODE": "1"})

    def test_with_the_mounts(self) -> None:
        done = self.run_in_container(mounts())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} managed 1 from 0\n", done.stdout)
        self.assertRegex(done.stdout, r"rank \d managed 1 from [1-9]\d*\n", done.stderr)
        self.assertRegex(done.stderr, r"dlrover: .*[1-9]\d* restarts?, ")
        self.cluster.expect_clean()

    def test_without_them_nothing_of_ours_is_there(self) -> None:
        done = self.run_in_container([])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("No module named 'dlrover_slurm'", done.stderr)


if __name__ == "__main__":
    unittest.main()
