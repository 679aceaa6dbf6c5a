// SPDX-License-Identifier: Apache-2.0
// For bench/pmix_startup: rank 0 prints how long MPI_Init took the slowest rank, in microseconds.
#include <mpi.h>
#include <stdio.h>
#include <time.h>

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    int rank = 0;
    double began = now_us(), took, longest = 0;
    MPI_Init(&argc, &argv);
    took = now_us() - began;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("init_us %.0f\n", longest);
    MPI_Finalize();
    return 0;
}
