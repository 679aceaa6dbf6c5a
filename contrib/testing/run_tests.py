#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs all tests in stages and counts every single result. Called by contrib/run-tests, which has installed the packages.

The last line is "N passed, N failed" (", N skipped" where something was skipped; each skip is printed with its reason).
Exit status 0 only when nothing failed and something passed."""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree

IDLE = ["chrt", "--idle", "0"]  # takes the time that nobody else wants: a build beside tests that mostly wait
# GCC 12 at -O2 warns of bounds in std::vector that are not broken (array-bounds): no error in test programs.
WARNINGS = "WARN_CXXFLAGS=-Wall -Wextra -Wshadow -Wno-missing-field-initializers"
NO_INDEX = 69  # of tests/adapters/run: PyPI can not be reached
TELLING = r"error: in|Sanitizer|runtime error|fatal error"  # lines of a unit test's log that say what is wrong
TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def shortened(text, first=400, last=800):
    """A failure's reason in one line: CI keeps the end of what is printed, the log it is in goes with the machine."""
    text = " / ".join(line.strip() for line in text.splitlines() if line.strip())
    return text if len(text) <= first + last else f"{text[:first]} … {text[-last:]}"


class Results:
    """Every result by name; the counts of the last line come from here and nowhere else."""

    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []
        self.seconds = {}  # that each command took

    def slowest(self, count=12):
        return sorted(self.seconds.items(), key=lambda entry: -entry[1])[:count]

    def add(self, name, outcome, reason=""):
        {"pass": self.passed, "fail": self.failed, "skip": self.skipped}[outcome].append((name, reason))
        if outcome != "pass":
            print(f"  {outcome.upper()}: {name}{': ' + reason if reason else ''}", flush=True)

    def skips(self):
        """Those of one file and one reason together: ((file, reason), names)."""
        together = {}
        for name, reason in self.skipped:
            file, _, test = name.partition(": ")
            together.setdefault((file, reason), []).append(test)
        return together.items()

    def last_line(self):
        line = f"{len(self.passed)} passed, {len(self.failed)} failed"
        return line + (f", {len(self.skipped)} skipped" if self.skipped else "")


class Runner:
    def __init__(self, options):
        self.options = options
        self.results = Results()
        self.work = os.path.abspath(options.work)
        self.logs = os.path.join(self.work, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.prefix = os.path.join(self.work, "prefix")
        self.asan = os.path.join(self.work, "build-asan")
        self.beside = None  # the sanitizers' build, where it was begun early
        self.sanitizers_built = False
        self.sanitizers_follow = False
        self.environment = dict(os.environ, CCACHE_DIR=os.environ.get("CCACHE_DIR", os.path.join(self.work, "ccache")),
                                DLROVER_PREFIX=self.prefix, DLROVER_BUILD=os.path.join(self.work, "build"),
                                DLROVER_NIGHTLY="1" if options.nightly else "0", PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8")
        self.environment.setdefault("DLROVER_TEST_PATIENCE", "2")  # of the system tests, which run beside each other and beside a build
        self.environment.setdefault("DLROVER_TORCH_VENV", os.path.join(self.work, "torch-venv"))
        self.environment.setdefault("CCACHE_BASEDIR", TOP)  # what one clone has compiled serves another
        self.environment["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin:" + self.environment.get("PATH", "")

    def run(self, name, command, cwd=TOP, timeout=1800, environment=None):
        """Runs one command, its output in a log; returns (exit status, log's path). Shows the end of the log where it failed."""
        log = os.path.join(self.logs, re.sub(r"[^\w.-]", "_", name) + ".log")
        begin = time.monotonic()
        with open(log, "wb") as f:
            try:
                code = subprocess.run(command, cwd=cwd, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      timeout=timeout, env=environment or self.environment).returncode
            except subprocess.TimeoutExpired:
                code = 124
                f.write(f"\nstopped after {timeout} s\n".encode())
        self.results.seconds[name] = time.monotonic() - begin
        if code != 0:
            self.show_end(log)
        return code, log

    @staticmethod
    def show_end(log, only=None):
        """The last lines of a log; of those that match `only`, where it is given, before all others. CI's machine is gone when one asks."""
        if not os.path.exists(log):
            return
        with open(log, errors="replace") as f:
            lines = f.readlines()
        chosen = [line for line in lines if only and re.search(only, line)][:20]
        print("".join("    | " + line for line in chosen + lines[-40:]), flush=True)

    def check(self, name, command, **kwargs):
        """A command that is one result."""
        code, log = self.run(name, command, **kwargs)
        self.results.add(name, "pass" if code == 0 else "fail", "" if code == 0 else f"exit status {code}, see {log}")
        return code == 0

    # ---- stages ----
    # -g1: lines for backtraces, without variables; with them the sanitizers' build takes twice as long.

    def configure(self, build, *arguments, under=()):
        os.makedirs(build, exist_ok=True)
        code, _ = self.run("bootstrap", ["./bootstrap"]) if not os.path.exists(os.path.join(TOP, "configure")) else (0, "")
        if code == 0:
            code, _ = self.run("configure-" + os.path.basename(build), [*under, os.path.join(TOP, "configure"), "-q", *arguments], cwd=build)
        return code == 0

    def make(self, build, *targets, timeout=2400, under=()):
        code, _ = self.run("make-" + os.path.basename(build) + "-" + "-".join(targets or ["all"]),
                           [*under, "make", f"-j{self.options.jobs}", *targets], cwd=build, timeout=timeout, environment=self.environment_of(build))
        return code == 0

    def environment_of(self, build):
        """Where unity.py was used make has to know."""
        unity = os.path.join(build, "unity.mk")
        return dict(self.environment, MAKEFILES=unity) if os.path.exists(unity) else self.environment

    def stage_build(self):
        """Compiles with warnings as errors, installs into a private prefix."""
        build = self.environment["DLROVER_BUILD"]
        ok = self.configure(build, "CC=ccache gcc", "CXX=ccache g++", "CXXFLAGS=-O2 -g1", "--enable-werror", f"--prefix={self.prefix}",
                            f"--sysconfdir={self.prefix}/etc")
        ok = ok and self.make(build) and self.make(build, "install") and self.make(build, "fault-programs")
        self.results.add("build and install", "pass" if ok else "fail")
        return ok

    def stage_unit(self):
        """Without the programs that the sanitizers' stage compiles and runs, where that comes; nightly all."""
        target = "check-rest" if self.sanitizers_follow and not self.options.nightly else "check"
        self.automake_tests(self.environment["DLROVER_BUILD"], "unit", target)

    def automake_tests(self, build, label, target="check"):
        self.run(f"make-check-{label}", ["make", f"-j{self.options.jobs}", "-k", target, WARNINGS], cwd=build, timeout=2400,
                 environment=self.environment_of(build))
        results = sorted(self.test_results(build))
        for name, outcome, reason in results:
            self.results.add(f"{label}: {name}", outcome, reason)
            if outcome == "fail":
                self.show_end(os.path.join(build, name + ".log"), TELLING)
        if not results:
            self.results.add(f"{label}: make check", "fail", "no test ran")

    @staticmethod
    def what_failed(log):
        """The lines of a unit test's log that say so, or its last ones."""
        if not os.path.exists(log):
            return "no log"
        with open(log, errors="replace") as f:
            lines = f.readlines()
        return shortened("\n".join([line for line in lines if re.search(TELLING, line)][:3] or lines[-3:]))

    @classmethod
    def test_results(cls, build):
        for base, _, names in os.walk(build):
            for name in names:
                if not name.endswith(".trs"):
                    continue
                with open(os.path.join(base, name)) as f:
                    text = f.read()
                test = os.path.relpath(os.path.join(base, name[:-4]), build)
                for result in re.findall(r"^:test-result: (\w+)", text, re.M):
                    outcome = {"PASS": "pass", "SKIP": "skip"}.get(result, "fail")
                    told = cls.what_failed(os.path.join(build, test + ".log")) if outcome == "fail" else f"see {test}.log"
                    yield test, outcome, "" if outcome == "pass" else told

    def stage_checks(self):
        """Rules about the sources and what was built from them."""
        build = self.environment["DLROVER_BUILD"]
        environment = dict(self.environment, CXX="ccache g++", CPPFLAGS="")
        self.check("include table", ["tests/checks/include-table"])
        self.check("headers alone", ["tests/checks/headers-alone", TOP, build], environment=environment)
        self.check("format", ["tests/checks/format"])
        for script in sorted(self.files("tests/checks", "")):
            name = os.path.basename(script)
            if name not in ("include-table", "headers-alone", "format"):
                self.check(name, [script, TOP, build, self.prefix])
        scripts = [f for f in subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True).stdout.split("\n") if self.is_shell(f)]
        self.check("shellcheck", ["shellcheck", "-x", *scripts])

    @staticmethod
    def is_shell(name):
        path = os.path.join(TOP, name)
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as f:
            return bool(re.match(rb"#!\s*/bin/(ba)?sh", f.readline()))

    def stage_dist(self):
        """The release archive builds and passes by itself."""
        self.check("distcheck", ["make", "distcheck", f"-j{self.options.jobs}",
                                 "DISTCHECK_CONFIGURE_FLAGS=CC='ccache gcc' CXX='ccache g++' CXXFLAGS=-O1"],
                   cwd=self.environment["DLROVER_BUILD"], timeout=2400)

    def stage_sanitizers(self):
        """All unit tests again under AddressSanitizer and UndefinedBehaviorSanitizer: clang's, and nightly GCC's, with the checks of null
        pointers (which fault anyway) and of alignment, which compile for twice as long."""
        if self.beside:
            self.beside.join()
        else:
            self.build_sanitizers()
        if not self.sanitizers_built:
            return self.results.add("sanitizers: build", "fail")
        self.automake_tests(self.asan, "asan+ubsan")

    def build_sanitizers(self, under=()):
        """What the tests need, too: their programs are half of it. Clang without optimization compiles in half of GCC's time with it, and a
        program's sources several at a time in a third of that; nightly each is compiled by itself."""
        if self.options.nightly:
            compiler, flags = ("CC=ccache gcc", "CXX=ccache g++"), "-O1 -g1"
        else:
            compiler, flags = ("CC=ccache clang-14", "CXX=ccache clang++-14"), "-O0 -g1 -fno-sanitize=null,alignment"
        ok = self.configure(self.asan, *compiler, f"CXXFLAGS={flags}", "--enable-sanitizers=address,undefined",
                            "--enable-fault-injection", f"--prefix={self.work}/prefix-asan", under=under)
        if ok and not self.options.nightly:
            ok = self.run("unity", ["contrib/testing/unity.py", self.asan])[0] == 0
        self.sanitizers_built = ok and self.make(self.asan, under=under, timeout=3600)
        if self.sanitizers_built:  # a program that can not be built fails in its stage
            self.run("make-check-programs-asan", [*under, "make", f"-j{self.options.jobs}", "-k", "check", "TESTS=", WARNINGS,
                                                  f"CXXFLAGS={flags.replace('-O1', '-O0')}"], cwd=self.asan, timeout=3600,
                     environment=self.environment_of(self.asan))

    def begin_sanitizers(self):
        """The system tests wait most of the time: this build is done meanwhile."""
        self.beside = threading.Thread(target=self.build_sanitizers, args=(IDLE,), daemon=True)
        self.beside.start()

    def stage_system(self):
        """On contrib/minicluster: real slurmctld, slurmd, munge. Each on clusters of its own."""
        names = self.files("tests/minicluster", "\\.bats$") + self.files("tests/system", "\\.bats$") + self.files("tests/system", "test_.*\\.py$")
        with concurrent.futures.ThreadPoolExecutor(self.options.lanes) as lanes:
            for done in [lanes.submit(self.bats if path.endswith(".bats") else self.pytest, path) for path in sorted(names)]:
                done.result()

    def stage_adapters(self):
        """The framework adapters with current PyTorch from PyPI."""
        build = self.environment["DLROVER_BUILD"]
        if not self.make(build, "tests/adapters/to_storage", "tests/adapters/stored_daemon", "tests/fakes/libcuda.la", "bench/stored_ranks",
                         "tests/system/faults/libdlrover.la"):
            return self.results.add("adapters: build", "fail")
        environment = self.environment
        if self.with_torch("adapters", "tests/adapters/run", environment):
            # What Debian's torch has not: its newer types and scalers. What starts many processes takes long with this one.
            chosen = () if self.options.nightly else ("-k", "test_cuda or test_torch or test_values or test_plan")
            python = os.path.join(environment["DLROVER_TORCH_VENV"], "bin", "python")
            self.with_torch("python with current torch", "tests/python/run", dict(environment, PYTHON=python), *chosen)
        if os.path.exists("/dev/nvidiactl"):
            self.with_torch("gpu", "tests/gpu/run", environment)
        else:
            self.results.add("gpu", "skip", "this machine has no NVIDIA GPU (/dev/nvidiactl)")

    def with_torch(self, name, script, environment, *arguments):
        """False: PyPI can not be reached."""
        report = self.new_report(name.replace(" ", "-"))
        code, log = self.run(name, [os.path.join(TOP, script), f"--junitxml={report}", *arguments], cwd=environment["DLROVER_BUILD"],
                             timeout=2700, environment=environment)
        if code == NO_INDEX:
            with open(log, errors="replace") as f:
                self.results.add(name, "skip", f.read().rstrip().rpartition("\n")[2])
            return False
        self.junit(name, report, code)
        return True

    def stage_quickstart(self):
        self.check("quickstart", ["contrib/quickstart", "--prefix", self.prefix], timeout=900)

    def stage_nightly(self):
        """Long campaigns, only with --nightly."""
        for path in sorted(self.files("tests/nightly", "")):
            self.check("nightly: " + os.path.basename(path), [path], timeout=4 * 3600)

    # ---- runners ----

    @staticmethod
    def files(folder, pattern):
        base = os.path.join(TOP, folder)
        if not os.path.isdir(base):
            return []
        names = [os.path.join(base, n) for n in os.listdir(base) if re.search(pattern, n)]
        return [n for n in names if os.path.isfile(n) and (pattern or os.access(n, os.X_OK))]

    def bats(self, path):
        name = os.path.relpath(path, TOP)
        code, log = self.run(name, ["bats", "--tap", path], timeout=1800)
        count = 0
        with open(log, errors="replace") as f:
            for line in f:
                match = re.match(r"(ok|not ok) \d+ (.*?)(?:\s*# skip\s*(.*))?$", line.rstrip("\n"))
                if match:
                    count += 1
                    outcome = "fail" if match.group(1) == "not ok" else "skip" if "# skip" in line else "pass"
                    self.results.add(f"{name}: {match.group(2)}", outcome, match.group(3) or "")
        if count == 0 or (code != 0 and not any(n.startswith(name) for n, _ in self.results.failed)):
            self.results.add(name, "fail", f"exit status {code}, {count} results")

    def pytest(self, path):
        name = os.path.relpath(path, TOP)
        report = self.new_report(os.path.basename(path))
        environment = dict(self.environment)
        file = os.path.join(self.prefix, "share", "dlrover-slurm", "pythonpath")
        if os.path.exists(file):
            with open(file) as f:
                environment["PYTHONPATH"] = f.read().strip()
        code, _ = self.run(name, ["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", path],
                           timeout=2700, environment=environment)
        self.junit(name, report, code)

    def new_report(self, name):
        report = os.path.join(self.logs, name + ".xml")
        if os.path.exists(report):
            os.unlink(report)
        return report

    def junit(self, name, report, code):
        cases = ElementTree.parse(report).getroot().iter("testcase") if os.path.exists(report) else []
        count = failures = 0
        for case in cases:
            count += 1
            skipped = case.find("skipped")
            wrong = [found for found in (case.find("failure"), case.find("error")) if found is not None]
            failures += bool(wrong)
            outcome = "fail" if wrong else "skip" if skipped is not None else "pass"
            reason = shortened(wrong[0].get("message", "")) if wrong else skipped.get("message", "") if skipped is not None else ""
            self.results.add(f"{name}: {case.get('name')}", outcome, reason)
        if count == 0 or (code != 0 and failures == 0):
            self.results.add(name, "fail", f"exit status {code}, {count} results")


STAGES = ["build", "unit", "checks", "system", "adapters", "quickstart", "sanitizers"]
NIGHTLY = ["dist", "nightly"]  # a sample of the first: tests/checks/dist-complete


def parse_arguments():
    parser = argparse.ArgumentParser(prog="run-tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nightly", action="store_true", help="also distcheck and the long campaigns (hours)")
    parser.add_argument("--stage", action="append", choices=STAGES + NIGHTLY, help="only these stages, in the given order (default: all)")
    parser.add_argument("--work", default=os.path.join(TOP, "build", "tests"), help="folder for builds and logs (default: build/tests)")
    parser.add_argument("--clean", action="store_true", help="remove that folder first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--lanes", type=int, default=2, help="so many system tests at a time: they wait most of the time (default: %(default)s)")
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.clean:
        shutil.rmtree(options.work, ignore_errors=True)
    runner = Runner(options)
    begin = time.monotonic()
    stages = options.stage or STAGES + (NIGHTLY if options.nightly else [])
    runner.sanitizers_follow = "sanitizers" in stages
    for i, stage in enumerate(stages):
        if stage == "system" and "sanitizers" in stages[i:]:
            runner.begin_sanitizers()
        start = time.monotonic()
        print(f"== {stage}", flush=True)
        result = getattr(runner, "stage_" + stage)()
        print(f"== {stage}: {time.monotonic() - start:.0f} s; so far {runner.results.last_line()}", flush=True)
        if stage == "build" and result is False:
            break
    print(f"whole run: {time.monotonic() - begin:.0f} s; logs in {runner.logs}")
    print("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in runner.results.slowest()))
    for (file, reason), names in runner.results.skips():
        print(f"skipped: {file}{': ' + ', '.join(names) if any(names) else ''}: {reason}")
    for name, reason in runner.results.failed:  # last, as many keep only a log's end
        print(f"failed: {name}: {reason}")
    print(runner.results.last_line(), flush=True)
    return 1 if runner.results.failed or not runner.results.passed else 0


if __name__ == "__main__":
    sys.exit(main())
