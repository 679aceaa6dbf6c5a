#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Called by contrib/quickstart, which has installed the packages: build, start a cluster, train twice, compare, say the result."""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "system"))
from cluster import Cluster, Process  # noqa: E402

STEPS = 60
#: After which step, and which ranks are killed then.
KILLS = ((12, (0,)), (26, (5,)), (40, (3, 6)))


class Failed(Exception):
    """With the sentence for the person who started us."""


class Quickstart:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.build = TOP / "build" / "quickstart"
        self.prefix = pathlib.Path(options.prefix).resolve() if options.prefix else self.build / "prefix"

    def say(self, text: str) -> None:
        print(f"[{time.time() - self.options.begin:4.0f} s] {text}", flush=True)

    # ---- build ----

    def command(self, name: str, argv: "list[str]", folder: pathlib.Path) -> None:
        log = self.build / f"{name}.log"
        with open(log, "wb") as file:
            code = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        if code != 0:
            print("".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-30:]))
            raise Failed(f"{' '.join(argv)} failed with exit code {code}; the whole log is {log}")

    def build_and_install(self) -> None:
        if self.options.prefix:
            self.say(f"using the installation in {self.prefix}")
            return
        self.build.mkdir(parents=True, exist_ok=True)
        if not (TOP / "configure").exists():
            self.say("bootstrap")
            self.command("bootstrap", ["./bootstrap"], TOP)
        if not (self.build / "config.status").exists():
            self.say("configure")
            cache = ["CC=ccache gcc", "CXX=ccache g++"] if shutil.which("ccache") else []
            self.command("configure", [str(TOP / "configure"), "-q", "CXXFLAGS=-O1", f"--prefix={self.prefix}",
                                       f"--sysconfdir={self.prefix}/etc", *cache], self.build)
        self.say("make (the longest part)")
        self.command("make", ["make", f"-j{self.options.jobs}"], self.build)
        self.say("make install, into a prefix of its own")
        self.command("install", ["make", "install"], self.build)

    # ---- training ----

    def train(self, cluster: Cluster, label: str, kills: "tuple") -> pathlib.Path:
        """Runs the training; returns the file with its result."""
        folder = cluster.work / label
        folder.mkdir()
        folder.chmod(0o777)
        out = folder / "weights.npz"
        argv = ["srun", "--job-name", label, f"-N{len(cluster.nodes)}", "--ntasks-per-node=2", "--dlrover-elastic", "--dlrover-max-restarts=10",
                str(TOP / "examples/digits/train.py"), "--steps", str(STEPS), "--step-time", "0.1", "--out", str(out)]
        self.say("alice runs: " + " ".join(argv[:1] + argv[3:7] + [f"train.py --steps {STEPS}"]))
        process = cluster.start(*argv, stderr=subprocess.STDOUT)
        pending = list(kills)
        try:
            for line in process.stdout:
                print("    " + line.rstrip(), flush=True)
                words = line.split()
                if pending and words[:1] == ["step"] and int(words[1]) >= pending[0][0]:
                    self.kill(cluster, pending.pop(0)[1])
            code = process.wait(60)
        except BaseException:
            process.terminate()
            raise
        if code != 0:
            raise Failed(f"the training ended with exit code {code}")
        if pending:
            raise Failed("the training ended before every kill was done")
        return out

    def kill(self, cluster: Cluster, ranks: "tuple[int, ...]") -> None:
        victims = [(rank, *find_rank(cluster, rank)) for rank in ranks]
        for rank, node, process in victims:
            os.kill(process.pid, signal.SIGKILL)
            self.say(f"kill -9 of rank {rank} on {node}")

    def show(self, cluster: Cluster, job: int) -> None:
        for verb in ("events", "status"):
            print(f"\n$ dlrover {verb} {job}")
            done = cluster.run("dlrover", verb, str(job))
            print(done.stdout + done.stderr, flush=True)
            if done.returncode != 0:
                raise Failed(f"dlrover {verb} ended with exit code {done.returncode}")

    def compare(self, undisturbed: pathlib.Path, disturbed: pathlib.Path) -> None:
        same_file = undisturbed.read_bytes() == disturbed.read_bytes()
        digests = [path.with_name(path.name + ".sha256").read_text().strip() for path in (undisturbed, disturbed)]
        print(f"\nundisturbed  {digests[0]}\nwith kills   {digests[1]}   (model, average and optimizer of all ranks)", flush=True)
        if not same_file or digests[0] != digests[1]:
            raise Failed("THE RESULTS DIFFER: a resumed training must end with the bits of an undisturbed one")

    def check_folders(self) -> None:
        """alice must be able to read the checkout and the installation."""
        for folder in [TOP, *TOP.parents, self.prefix, *self.prefix.parents]:
            if folder.exists() and not folder.stat().st_mode & 0o001:
                raise Failed(f"other users can not enter {folder}: move the checkout to a folder open to all (/opt, say), or chmod o+x {folder}")

    def run(self) -> None:
        self.check_folders()
        self.build_and_install()
        if self.options.keep:  # one kept earlier
            subprocess.run([str(TOP / "contrib/minicluster"), "stop", "--name", "quickstart"], check=True, stdout=subprocess.DEVNULL)
        os.environ["DLROVER_PREFIX"] = str(self.prefix)
        self.say("starting a Slurm cluster of 4 virtual nodes")
        cluster = Cluster("quickstart", nodes=4, unique=not self.options.keep)
        with cluster:
            self.say("training without disturbance")
            undisturbed = self.train(cluster, "undisturbed", ())
            self.say("the same training; workers will be killed, rank 0 first")
            disturbed = self.train(cluster, "with-kills", KILLS)
            self.show(cluster, cluster.job_id("with-kills"))
            self.compare(undisturbed, disturbed)
            killed = sum(len(ranks) for _, ranks in KILLS)
            self.say(f"PASSED: {killed} workers were killed, and the final weights are those of the undisturbed run, bit for bit")
            if self.options.keep:
                cluster.keep = True
                print(f"the cluster stays:  contrib/minicluster exec --name quickstart --user alice -- bash\n"
                      f"                    contrib/minicluster stop --name quickstart")


def find_rank(cluster: Cluster, rank: int) -> "tuple[str, Process]":
    """The training process itself: its data loaders have the same environment but are its children."""
    found = {}
    for node, process in cluster.processes():
        if process.state != "Z" and any(word.endswith("train.py") for word in process.command):
            if process.environment().get("RANK") == str(rank):
                found[process.pid] = (node, process)
    roots = [entry for entry in found.values() if entry[1].parent not in found]
    if len(roots) != 1:
        raise Failed(f"rank {rank} has {len(roots)} processes")
    return roots[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="quickstart", description=__doc__)
    parser.add_argument("--begin", type=float, default=time.time(), help=argparse.SUPPRESS)
    parser.add_argument("--prefix", metavar="DIR", help="use the installation in DIR instead of building one")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, metavar="N", help="parallel compilers")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = Quickstart(parser.parse_args())
    try:
        start.run()
    except (Failed, AssertionError) as error:
        start.say(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        start.say("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
