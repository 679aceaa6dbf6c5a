# SPDX-License-Identifier: Apache-2.0
"""An mpi4py program that knows nothing of this suite; what each rank finds goes to stdout as "rank R: NAME VALUE"."""

import numpy
from mpi4py import MPI

SERVICE = "dlrover-test"


def main() -> None:
    world = MPI.COMM_WORLD
    total = numpy.zeros(4)
    world.Allreduce(numpy.full(4, float(world.rank + 1)), total, op=MPI.SUM)
    if world.rank == 0:
        port = MPI.Open_port()
        MPI.Publish_name(SERVICE, port)
    else:
        port = None
    port = world.bcast(port)
    found = MPI.Lookup_name(SERVICE)
    print(f"rank {world.rank}: allreduce {int(total.sum())}\nrank {world.rank}: looked up {int(found == port)}", flush=True)
    world.Barrier()
    if world.rank == 0:
        MPI.Unpublish_name(SERVICE, port)
        MPI.Close_port(port)


if __name__ == "__main__":
    main()
