#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills random workers in chosen phases and checks that every run ends with the bits of an undisturbed one.

As root, with DLROVER_PREFIX set: kills.py --kills 200 --seed 1, kills.py --torch 10. Exit status 0 only when nothing was found."""

import argparse
import collections
import os
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cluster import TOP, Cluster, Process, prefix, wait_until  # noqa: E402
from heat import Run, reference  # noqa: E402

ORDERED_PHASES = ("startup", "restart", "step", "copy", "seal")
#: Longest delay of a kill after the phase began; most phases are far shorter, so short delays are the most frequent.
LONGEST_US = {"startup": 20000, "restart": 20000, "step": 2500, "copy": 4000, "seal": 1500}


class Campaign:
    """Runs of heat until the wanted number of kills is reached."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self.cluster, self.options = cluster, options
        self.random = random.Random(options.seed)
        self.kills: "collections.Counter[str]" = collections.Counter()
        self.several = self.runs = 0
        self.faults: "list[str]" = []
        self.expected = reference(cluster, options.size, options.steps)

    def enough(self) -> bool:
        return self.enough_but_startup() and self.enough_of("startup")

    def enough_but_startup(self) -> bool:
        """Start-up comes once in a run, the others as often as wanted."""
        return (sum(self.kills.values()) >= self.options.kills and self.several >= min(10, self.options.kills // 10)
                and all(map(self.enough_of, ORDERED_PHASES[1:])))

    def enough_of(self, phase: str) -> bool:
        return self.kills[phase] >= min(self.options.per_phase, self.options.kills // 8)

    def execute(self) -> None:
        while not self.enough() and not self.faults:
            self.one_run()
        self.cluster.expect_clean()

    def one_run(self) -> None:
        self.runs += 1
        run = Run(self.cluster, f"heat-{self.runs}", ranks_per_node=2, srun=("--dlrover-max-restarts=1000",), size=self.options.size,
                  steps=self.options.steps, save_every=5, step_us=2000, ballast_mb=self.options.ballast_mb)
        before = sum(self.kills.values())
        if not self.enough_of("startup"):
            self.place(run, "startup", self.random.sample(run.pages, self.random.choice((1, 2, 3))))
        run.start()
        try:
            self.disturb(run)
            code = run.finish(180)
        except AssertionError as error:
            self.fault(run, str(error))
            return
        self.judge(run, code)
        done = sum(self.kills.values())
        print(f"run {self.runs}: {done - before} kills, {len(self.faults)} faults; so far {done}: {dict(self.kills)}, {self.several} times several at once", flush=True)

    def place(self, run: Run, phase: str, victims: list) -> None:
        longest = LONGEST_US[phase]
        delay = min(int(self.random.expovariate(4.0 / longest)), longest)
        for page in victims:
            page.order(phase, delay)

    def disturb(self, run: Run) -> None:
        generation, counted = 0, collections.Counter()
        while True:
            run.wait_for_steps(after=generation)
            if not run.running():
                break
            self.check_ranks(run)
            self.count(run, counted)
            if self.options.steps - run.pages[0].step < 200 or self.enough_but_startup():
                break
            generation = run.generation()
            if not self.kill_somebody(run, generation):
                generation -= 1
        for page in run.pages:
            page.cancel()
        run.finish(180)
        self.count(run, counted)

    def kill_somebody(self, run: Run, generation: int) -> bool:
        """One kill or several at once. False: the orders came too late in their phase and nobody died."""
        victims = self.random.sample(run.pages, self.random.choice((1, 1, 1, 2, 3)))
        safe = max(run.common_save(), min(page.restored_step for page in run.pages))
        taken = {page: page.orders_taken for page in victims}
        outside = self.random.random() < 0.2
        if outside:
            time.sleep(self.random.random() * 0.05)
            dead = sum(page.kill_now() is not None for page in victims)
            self.kills["outside"] += dead
        else:
            wanted = [phase for phase in ORDERED_PHASES[2:] if not self.enough_of(phase)] or ORDERED_PHASES[2:]
            if not self.enough_of("restart"):
                self.place_restart(run, victims)
            self.place(run, self.random.choice(wanted), victims)

        def decided() -> bool:
            missed = not outside and all(page.orders_taken > taken[page] and page.dies_in == 0 for page in victims)
            return run.generation() > generation or missed or not run.running()

        wait_until(decided, 20, f"{run.label}: a new generation after {generation}", 0.001)
        if run.generation() == generation:
            return False
        self.several += len(victims) > 1
        self.check_restored(run, safe)
        return True

    def place_restart(self, run: Run, victims: list) -> None:
        """Somebody else dies while the group comes back."""
        others = [page for page in run.pages if page not in victims]
        self.place(run, "restart", [self.random.choice(others)])

    def check_restored(self, run: Run, safe: int) -> None:
        """A step that every rank had sealed is never lost, and all ranks resume from the same one."""
        def picture() -> "list[int] | None":
            before = [(page.incarnation, page.generation) for page in run.pages]
            connected = all(page.connected_us for page in run.pages)  # before the steps: a rank writes its step, then this
            restored = [page.restored_step for page in run.pages]
            same = before == [(page.incarnation, page.generation) for page in run.pages] and len({g for _, g in before}) == 1
            return restored if connected and same else None

        restored = wait_until(lambda: picture() or (not run.running() and [safe]), 30, f"{run.label}: all ranks connected", 0.002)
        if len(set(restored)) != 1:
            self.fault(run, f"ranks resumed from different steps: {restored}")
        elif restored[0] < safe:
            self.fault(run, f"step {safe} was sealed by every rank, but the group resumed from {restored[0]}")

    def check_ranks(self, run: Run) -> None:
        """Each rank once, all of one generation."""
        ranks: "dict[str, list[Process]]" = collections.defaultdict(list)
        generations = set()
        generation = run.generation()
        for _, process in self.cluster.processes():
            if process.state == "Z" or not process.command or not process.command[0].endswith("/heat"):
                continue
            environment = process.environment()
            if environment.get("SLURM_JOB_NAME") == run.label and "RANK" in environment:
                ranks[environment["RANK"]].append(process)
                generations.add(environment["DLROVER_GENERATION"])
        if generation != run.generation() or not run.running():
            return  # the world changed meanwhile: the picture is not of one moment
        if len(generations) > 1 or any(len(found) > 1 for found in ranks.values()):
            self.fault(run, f"generations {generations}, ranks {dict(ranks)}")

    def count(self, run: Run, counted: "collections.Counter") -> None:
        for rank, page in enumerate(run.pages):
            for phase in ORDERED_PHASES:
                self.kills[phase] += page.kills(phase) - counted[rank, phase]
                counted[rank, phase] = page.kills(phase)

    def judge(self, run: Run, code: int) -> None:
        if code != 0:
            self.fault(run, f"exit code {code}\n{run.output()}")
        elif run.out.read_bytes() != self.expected:
            self.fault(run, "the field differs from the undisturbed one")
        if run.violations():
            self.fault(run, run.violations())
        try:
            self.cluster.expect_clean()
        except AssertionError as error:
            self.fault(run, str(error))

    def fault(self, run: Run, text: str) -> None:
        self.faults.append(f"{run.label}: {text}")
        print(f"FAULT {run.label} (seed {self.options.seed}): {text}", flush=True)


def digits_argv(out: pathlib.Path, steps: int, label: str) -> "list[str]":
    return ["srun", "--job-name", label, "-N4", "--ntasks-per-node=2", "--dlrover-elastic", "--dlrover-max-restarts=100",
            "/usr/bin/python3", str(TOP / "examples/digits/train.py"), "--steps", str(steps), "--step-time", "0.1", "--out", str(out)]


def torch_workers(cluster: Cluster, loaders: bool) -> "list[Process]":
    """Live ranks of digits, or their data loaders."""
    scripts = {p.pid: p for _, p in cluster.processes() if p.state != "Z" and any(word.endswith("train.py") for word in p.command)
               and p.command[0].endswith("python3")}
    return [p for p in scripts.values() if (p.parent in scripts) == loaders]


def run_digits(cluster: Cluster, label: str, steps: int, kills: int, chooser: random.Random) -> "tuple[int, str, int]":
    """(exit code, digest, kills)"""
    out = cluster.work / label / "result"
    out.parent.mkdir()
    out.parent.chmod(0o777)
    done = 0
    with open(out.parent / "stdout", "w+") as log:
        process = cluster.start(*digits_argv(out, steps, label), stdout=log, stderr=subprocess.STDOUT)
        while done < kills and process.poll() is None:
            time.sleep(1.0 + 3.0 * chooser.random())
            victims = torch_workers(cluster, loaders=chooser.random() < 0.2)
            for victim in chooser.sample(victims, min(len(victims), chooser.choice((1, 1, 2)))):
                try:
                    os.kill(victim.pid, 9)
                    done += 1
                except ProcessLookupError:
                    pass
        code = process.wait(600)
    digest = out.with_name("result.sha256")
    if code != 0:
        print((out.parent / "stdout").read_text()[-3000:])
    return code, digest.read_text().strip() if digest.exists() else "none", done


def torch_campaign(cluster: Cluster, options: argparse.Namespace) -> "list[str]":
    chooser = random.Random(options.seed)
    _, expected, _ = run_digits(cluster, "digits-0", options.torch_steps, 0, chooser)
    faults, done, runs = [], 0, 0
    while done < options.torch and not faults:
        runs += 1
        code, digest, kills = run_digits(cluster, f"digits-{runs}", options.torch_steps, min(5, options.torch - done), chooser)
        done += kills
        print(f"digits run {runs}: {kills} kills, exit code {code}, digest {digest[:16]}, undisturbed {expected[:16]}", flush=True)
        if code != 0 or digest != expected:
            faults.append(f"digits-{runs}: exit code {code}, digest {digest} instead of {expected}")
        try:
            cluster.expect_clean()
        except AssertionError as error:
            faults.append(f"digits-{runs}: {error}")
    return faults


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="of workers of examples/heat")
    parser.add_argument("--torch", type=int, default=0, help="of workers and data loaders of examples/digits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-phase", type=int, default=10, help="at least so many in each phase (fewer where --kills is small)")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--ballast-mb", type=int, default=4)
    parser.add_argument("--torch-steps", type=int, default=150)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    print(f"installation {prefix()}, seed {options.seed}", flush=True)
    faults: "list[str]" = []
    with Cluster("kills", nodes=4) as cluster:
        if options.kills:
            campaign = Campaign(cluster, options)
            campaign.execute()
            faults += campaign.faults
            print(f"heat: {sum(campaign.kills.values())} kills in {campaign.runs} runs {dict(campaign.kills)}, {campaign.several} times several at once")
        if options.torch:
            faults += torch_campaign(cluster, options)
    print("\n".join(faults) if faults else "every run ended with the undisturbed bits; no rank twice, no stale worker, nothing left over")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
