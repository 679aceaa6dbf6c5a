# SPDX-License-Identifier: Apache-2.0
"""The training of test_replicas.py: a large tensor that all ranks have alike, and a small one of each rank's own. What both are after a step has a closed form."""

import os
import pathlib
import sys
import time

import dlrover_slurm
import torch

SIZE = 8 << 20  # bytes of the large one


def expected(step: int, rank: int, alike: bool) -> "dict[str, torch.Tensor]":
    random = torch.Generator().manual_seed(1000 * step + (0 if alike else 1 + rank))
    return {"weights": torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=random), "own": torch.full((100,), float(step * 100 + rank))}


def main() -> int:
    folder, alike = pathlib.Path(sys.argv[1]), sys.argv[2] == "alike"
    torch.set_num_threads(1)
    here = dlrover_slurm.world()
    state, step = expected(0, here.rank, alike), 0
    loaded = dlrover_slurm.load()
    if loaded is not None:
        state, step = loaded.state, loaded.step
    right = all(torch.equal(state[name], value) for name, value in expected(step, here.rank, alike).items())
    with open(folder / f"log-{here.rank}", "a", encoding="utf-8") as log:
        print(step, "right" if right else "wrong", os.environ["SLURMD_NODENAME"], file=log)
    while not (folder / "end").exists():
        step += 1
        dlrover_slurm.report_step(step)
        dlrover_slurm.save(step, expected(step, here.rank, alike), replicated=(lambda name: name == "weights") if alike else False)
        time.sleep(0.2)
    return 0 if right else 3


sys.exit(main())
