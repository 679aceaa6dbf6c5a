# SPDX-License-Identifier: Apache-2.0
"""A sample of the kill campaign; the whole one is kills.py and runs nightly."""

import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Kills(unittest.TestCase):
    def campaign(self, *arguments: str) -> str:
        done = subprocess.run([sys.executable, str(HERE / "kills.py"), *arguments], capture_output=True, text=True, timeout=1500, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_heat(self) -> None:
        self.assertIn("every run ended with the undisturbed bits", self.campaign("--kills", "30", "--seed", "7", "--steps", "2000"))

    def test_torch(self) -> None:
        self.assertIn("every run ended with the undisturbed bits", self.campaign("--torch", "2", "--seed", "7", "--torch-steps", "80"))


if __name__ == "__main__":
    unittest.main()
