# SPDX-License-Identifier: Apache-2.0
"""A sample of the cycles of deaths; the whole campaign is cycles.py and runs nightly."""

import pathlib
import re
import subprocess
import sys
import unittest

import numpy

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(HERE))
import cycles  # noqa: E402
import cycles_worker as walk  # noqa: E402
import fault_twins  # noqa: E402

#: Some of each program's; the commit is the writer's.
SAMPLE = ("worker:mid_copy", "worker:after_seal", "writer:writer_mid_file", "writer:writer_before_manifest", "daemon:flush", "daemon:daemon_seal_on_record",
          "agent:agent_before_start", "alone:before_rename")

#: Points of library and writer that no cycle comes to, and the test that orders each.
ELSEWHERE = {"mid_checksum": "tests/unit/lib_cuda_save_test.cpp", "storage_sync_folder": "tests/unit/writer_crash_test.cpp",
             "storage_write": "tests/unit/writer_crash_test.cpp"}


class Cycles(unittest.TestCase):
    def test_what_a_state_must_be_is_known(self) -> None:
        x = numpy.tile(walk.first_row(2), 3)
        for step in range(20):
            self.assertEqual(walk.differs(x, step, 2), "")
            self.assertNotEqual(walk.differs(x, step, 1), "")
            x = x * numpy.uint64(walk.MULTIPLIER) + numpy.uint64(walk.INCREMENT)
        x[2 * walk.COLUMNS:] = walk.state_after(19, 2)
        self.assertIn("1 of 3 rows are not those after 20 steps, the first is row 2", walk.differs(x, 20, 2))
        x[:] = numpy.tile(walk.state_after(20, 2), 3)
        x.view("u1")[4321] ^= 1
        self.assertIn("1 of 3 rows", walk.differs(x, 20, 2))

    def test_every_point_of_daemon_and_agent_has_its_cycle(self) -> None:
        for program, folder in (("daemon", "daemon"), ("agent", "agent"), ("guard", "agent")):
            sources = "".join(path.read_text() for path in sorted((TOP / folder).glob("*.cpp")))
            calls = " ".join(re.findall(r"fault_point\(([^;]*)\);", sources))
            named = set(re.findall(rf'"({program}_\w+)"', calls))
            self.assertEqual(named, set(fault_twins.POINTS[program]))

    def test_every_point_of_library_and_writer_is_ordered(self) -> None:
        sources = "".join(path.read_text() for folder in ("ckpt", "lib", "writer") for path in sorted((TOP / folder).glob("*.cpp")))
        named = re.findall(r'\bfault_(?:point|error)\("(\w+)"\)', sources)
        self.assertEqual(len(named), len(re.findall(r"\bfault_(?:point|error)\(", sources)), "each says its name where it is")
        cycled = {*cycles.WORKER_POINTS, *cycles.ALONE_POINTS, *cycles.WRITER_POINTS}
        self.assertEqual(set(named), cycled | set(ELSEWHERE))
        for name, test in ELSEWHERE.items():
            self.assertIn(f'"{name}:', (TOP / test).read_text())

    def test_sample(self) -> None:
        done = subprocess.run([sys.executable, str(HERE / "cycles.py"), "--cycles", str(len(SAMPLE)), "--seed", "7", "--points", ",".join(SAMPLE)],
                              capture_output=True, text=True, timeout=1500, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("always a common step, whole, and none lost", done.stdout)
        for point in SAMPLE:
            self.assertRegex(done.stdout, rf"(?m)^ +[12] {point}$")


if __name__ == "__main__":
    unittest.main()
