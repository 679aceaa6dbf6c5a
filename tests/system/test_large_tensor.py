# SPDX-License-Identifier: Apache-2.0
"""A tensor of more than 2^31 elements: into memory, to storage, read there by plain h5py, in its rank's file and through the index, and back from both.
Nightly: it needs 14 GiB of memory."""

import sys
import unittest

import h5py
import numpy

from cluster import NIGHTLY, Cluster, prefix

COUNT = 2**31 + 5
PERIOD = 251  # a prime: what is displaced by any power of two shows
PROGRAM = """
import glob, os, sys, time
import numpy
import dlrover_slurm as dlrover
count, period, top = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
pattern = numpy.resize(numpy.arange(period, dtype="u1"), period << 14)

def check(x):
    assert x.dtype == numpy.uint8 and x.shape == (count,), (x.dtype, x.shape)
    for at in range(0, count, pattern.size):
        piece = x[at : at + pattern.size]
        assert numpy.array_equal(piece, pattern[: piece.size]), at

restored = dlrover.load()
if restored:
    check(restored.state["x"])
    print("restored step", restored.step, flush=True)
else:
    x = numpy.empty(count, "u1")
    for at in range(0, count, pattern.size):
        x[at : at + pattern.size] = pattern[: count - at]
    assert dlrover.save(3, {"x": x}, wait=60, storage=True)
    dlrover.report_step(3)
    end = time.monotonic() + 300
    while not glob.glob(top + "/*/step-3.*.manifest"):
        assert time.monotonic() < end, "it is not on storage"
        time.sleep(0.1)
    print("saved", flush=True)
    os.kill(os.getpid(), 9)
"""


@unittest.skipUnless(NIGHTLY, "nightly")
class LargeTensor(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(Cluster("large", nodes=1, arguments=("--conf", "RealMemory=14000")))
        cls.top = cls.cluster.work / "storage"
        cls.top.mkdir()
        cls.top.chmod(0o777)
        cls.script = cls.cluster.work / "train.py"
        cls.script.write_text(PROGRAM)

    def train(self) -> str:
        """The words of a job; one of the same name goes on from the one before."""
        python_path = (prefix() / "share" / "dlrover-slurm" / "pythonpath").read_text().strip()
        done = self.cluster.run("srun", "-N1", "-n1", "--mem=0", "--dlrover-elastic", "--dlrover-name=large", f"--dlrover-ckpt-dir={self.top}", "--dlrover-ckpt-every=off",
                                "/usr/bin/python3", str(self.script), str(COUNT), str(PERIOD), str(self.top),
                                env={"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_more_than_two_to_the_31_elements(self) -> None:
        out = self.train()
        self.assertIn("saved\n", out)
        self.assertIn("restored step 3\n", out, "after the crash, from memory")
        for name, group in (("rank-0.h5", "chunks"), ("index.h5", "tensors")):
            with self.subTest(name), h5py.File(next(self.top.glob(f"*/step-3.*/{name}"))) as file:
                data = next(d for d in file[group].values() if d.attrs["name"] == "x")
                self.assertEqual((data.shape, data.dtype), ((COUNT,), numpy.dtype("u1")))
                for at in (0, 2**31 - 10, COUNT - 1000):
                    piece = data[at:at + 1000]
                    self.assertTrue(numpy.array_equal(piece, numpy.arange(at, at + piece.size) % PERIOD), at)
        self.assertEqual(self.train(), "restored step 3\n", "another job, from storage")


if __name__ == "__main__":
    sys.exit(unittest.main())
