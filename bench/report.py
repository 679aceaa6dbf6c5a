# SPDX-License-Identifier: Apache-2.0
"""What every benchmark prints: machine, versions, quantiles, intervals."""

import math
import os
import pathlib
import platform
import re
import statistics
import subprocess

#: Two-sided 95 % points of Student's distribution by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042}


def quantile(values: "list[float]", share: float) -> float:
    """Nearest rank: a value that occurred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def mean_with_interval(values: "list[float]") -> "tuple[float, float]":
    """(mean, half width of its 95 % interval)"""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, math.inf
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1))
    degrees = max(d for d in STUDENT if d <= count - 1)
    return mean, STUDENT[degrees] * deviation / math.sqrt(count)


def median_with_interval(values: "list[float]") -> "tuple[float, float, float]":
    """(median, low and high end of its 95 % interval), whatever the distribution"""
    ordered = sorted(values)
    low = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return statistics.median(ordered), ordered[low], ordered[-1 - low]


def ratio_of(ours: "list[float]", theirs: "list[float]") -> "tuple[float, float, float]":
    """Of those measured in turn, pair by pair: as above."""
    return median_with_interval([mine / other for mine, other in zip(ours, theirs)])


def first_line(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10).stdout.splitlines()[0].strip()
    except (OSError, IndexError):
        return "?"


def describe_machine() -> str:
    cpu = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    prefix = os.environ.get("DLROVER_PREFIX", "")
    huge = re.search(r"\[(\w+)\]", shmem.read_text()) if (shmem := pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")).exists() else None
    return (f"machine: {cpu}, {os.cpu_count()} cores, {memory_gib:.1f} GiB, Linux {platform.release()} (shmem_enabled: {huge.group(1) if huge else '?'}), load {os.getloadavg()[0]:.2f} before\n"
            f"versions: {first_line(f'{prefix}/bin/dlrover', '--version')}, {first_line('slurmd', '-V')}, Python {platform.python_version()}")
