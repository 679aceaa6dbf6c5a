// SPDX-License-Identifier: Apache-2.0
// An MPI program that knows nothing of this suite: what each rank finds goes to stdout as "rank R: NAME VALUE", the same wherever and by
// whomever it is started. With "die FOLDER" rank 1 ends by a signal in its first run, in the midst of a barrier of the others, with "abort FOLDER" by
// MPI_Abort; with "hold FOLDER" all wait there for the file "go".
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static void say(const char *name, long value) {
    printf("rank %d: %s %ld\n", rank, name, value);
    fflush(stdout);
}

static long allreduce(void) {
    long mine = (rank + 1) * (long)(rank + 1), all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/// Each sends to each what only the two of them can know.
static long alltoall(void) {
    int *out = malloc(sizeof(int) * size), *in = malloc(sizeof(int) * size);
    long sum = 0;
    for (int i = 0; i < size; ++i) out[i] = 1000 * rank + i;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < size; ++i) sum += in[i] * (long)(i + 1);
    free(out);
    free(in);
    return sum;
}

/// Around a ring, short and long: eager, and by rendezvous.
static long point_to_point(int words) {
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    long *out = calloc(words, sizeof(long)), *in = calloc(words, sizeof(long)), sum = 0;
    for (int i = 0; i < words; ++i) out[i] = rank * 7L + i;
    MPI_Sendrecv(out, words, MPI_LONG, next, 3, in, words, MPI_LONG, before, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < words; ++i) sum += in[i] ^ i;
    free(out);
    free(in);
    return sum;
}

/// Puts into the next rank's memory, and adds to rank 0's.
static long one_sided(long *added) {
    long memory[2] = {-1, 0}, mine = 100 + rank, one = rank;
    MPI_Win window;
    MPI_Win_create(memory, sizeof memory, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    MPI_Put(&mine, 1, MPI_LONG, (rank + 1) % size, 0, 1, MPI_LONG, window);
    MPI_Accumulate(&one, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_SUM, window);
    MPI_Win_fence(0, window);
    long put = memory[0];
    *added = memory[1];
    MPI_Win_free(&window);
    return put;
}

static int local_size(void) {
    MPI_Comm node;
    int count = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &count);
    MPI_Comm_free(&node);
    return count;
}

static void kill_oneself(void) {
    raise(SIGKILL);
}

static void abort_all(void) {
    MPI_Abort(MPI_COMM_WORLD, 77);
}

static void end_once(const char *folder, void (*end)(void)) {
    char name[4096];
    snprintf(name, sizeof name, "%s/died", folder);
    if (access(name, F_OK) == 0) return;
    if (rank == 1) {
        sleep(1);  // the others are in the barrier
        FILE *file = fopen(name, "w");
        if (file == NULL || fclose(file) != 0) abort();
        end();
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void hold(const char *folder) {
    char name[4096];
    snprintf(name, sizeof name, "%s/held-%d", folder, rank);
    FILE *file = fopen(name, "w");
    if (file == NULL || fclose(file) != 0) abort();
    snprintf(name, sizeof name, "%s/go", folder);
    while (access(name, F_OK) != 0) usleep(20000);
}

int main(int argc, char **argv) {
    char host[MPI_MAX_PROCESSOR_NAME];
    int length = 0;
    long added = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    if (argc == 3 && strcmp(argv[1], "die") == 0) end_once(argv[2], kill_oneself);
    if (argc == 3 && strcmp(argv[1], "abort") == 0) end_once(argv[2], abort_all);
    if (argc == 3 && strcmp(argv[1], "hold") == 0) hold(argv[2]);
    MPI_Barrier(MPI_COMM_WORLD);
    say("size", size);
    say("ranks here", local_size());
    say("allreduce", allreduce());
    say("alltoall", alltoall());
    say("short", point_to_point(8));
    say("long", point_to_point(300000));
    say("put", one_sided(&added));
    say("added", added);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
