# SPDX-License-Identifier: Apache-2.0
"""examples/digits resumes bit for bit, and the comparison notices each single piece that is missing from the checkpoints."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

from cluster import TOP, prefix

TRAIN = TOP / "examples" / "digits" / "train.py"
PIECES = ("optimizer", "bn", "rng", "scheduler", "ema", "data")


def environment(folder: pathlib.Path) -> "dict[str, str]":
    """No daemon: checkpoints in plain files."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DLROVER_", "SLURM_"))}
    return {**clean, "DLROVER_LOCAL_DIR": str(folder / "checkpoints"), "PYTHONPATH": f"{prefix()}/lib/python3/dist-packages", "PYTHONDONTWRITEBYTECODE": "1"}


class Digits(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def start(self, name: str, *options: str) -> subprocess.Popen:
        """Two ranks under dlrover-run on this machine."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        argv = [f"{prefix()}/bin/dlrover-run", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python", str(TRAIN), "--steps", "24",
                "--out", str(folder / "weights"), *options]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(folder), cwd=folder)

    def digest(self, name: str, *options: str, kill_after: int = 0) -> str:
        process = self.start(name, *options)
        output = []
        for line in process.stdout:
            output.append(line)
            match = re.match(r"step (\d+) ", line)
            if match and kill_after and int(match.group(1)) >= kill_after:
                kill_after = 0
                os.kill(self.rank_zero(process.pid), signal.SIGKILL)
        self.assertEqual(process.wait(60), 0, "".join(output))
        self.assertEqual(kill_after, 0, "the worker was never killed")
        return (self.folder / name / "weights.sha256").read_text().strip()

    @staticmethod
    def rank_zero(above: int) -> int:
        """The first process below `above` that runs train.py as rank 0."""
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                    parents[int(entry)] = int(fields[1])
                except OSError:
                    continue
        for pid in sorted(parents):
            chain, seen = pid, set()
            while chain in parents and chain not in seen:
                seen.add(chain)
                chain = parents[chain]
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                settings = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if above in seen and pid != above and b"train.py" in command and b"RANK=0" in settings and b"python" in command.split(b"\0")[0]:
                return pid
        raise AssertionError("no rank 0")

    def test_bits(self) -> None:
        undisturbed = self.digest("undisturbed")
        self.assertEqual(self.digest("killed", kill_after=10), undisturbed)
        self.assertEqual(self.digest("killed-in-accumulation", "--save-at", "1", kill_after=10), undisturbed)
        for piece in PIECES:
            with self.subTest(omit=piece):
                self.assertNotEqual(self.digest(f"without-{piece}", "--omit", piece, kill_after=10), undisturbed)


if __name__ == "__main__":
    unittest.main()
