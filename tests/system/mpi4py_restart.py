# SPDX-License-Identifier: Apache-2.0
"""An mpi4py program with checkpoints in memory: "PYTHONPATH FOLDER". Each of 30 steps adds the sum of all ranks' numbers to the state; rank 1 kills itself
once, after step 20. Stdout: "rank R: from step S: STATE"."""

import os
import pathlib
import signal
import sys

sys.path.insert(0, sys.argv[1])

import dlrover_slurm as dlrover  # noqa: E402
import numpy  # noqa: E402
from mpi4py import MPI  # noqa: E402

STEPS, DIES_AFTER = 30, 20


def main() -> None:
    comm, died = MPI.COMM_WORLD, pathlib.Path(sys.argv[2]) / "died"
    found = dlrover.load()
    begin, state = (found.step + 1, found.state["state"]) if found else (0, numpy.zeros(1000))
    for step in range(begin, STEPS):
        total = numpy.zeros(1)
        comm.Allreduce(numpy.full(1, float(step * (comm.rank + 1))), total, op=MPI.SUM)
        state = state + total[0]
        dlrover.save(step, {"state": state}, wait=10.0)
        comm.Barrier()
        if step == DIES_AFTER and comm.rank == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"rank {comm.rank}: from step {begin}: {int(state.sum())}", flush=True)


if __name__ == "__main__":
    main()
