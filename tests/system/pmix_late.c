// SPDX-License-Identifier: Apache-2.0
// pmix_late HOW FOLDER: all ranks meet in a fence, then in another one (or, "group": make a process group), and say so. In the first run rank 1 does not come to the second: "hang", "group": it
// stands still for ever; "mismatch": it waits in a fence with itself and the last rank, which does not come either; "compute": it computes for 10 s first; "read": it
// reads 320 KiB a second for 10 s first, and sleeps in between; "spin": it computes for ever.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pmix_test.h"

/// Once.
static int is_first(const char *folder) {
    char name[4096];
    snprintf(name, sizeof name, "%s/first", folder);
    FILE *file = fopen(name, "wx");
    return file != NULL && fclose(file) == 0;
}

static void be_late(const char *how, uint32_t size) {
    if (strcmp(how, "spin") == 0) {
        for (;;) clock();
    } else if (strcmp(how, "compute") == 0) {
        while (clock() < 10 * CLOCKS_PER_SEC) continue;
    } else if (strcmp(how, "read") == 0) {
        static char some[64 << 10];
        FILE *file = fopen("/dev/zero", "r");
        for (int i = 0; i < 50 && fread(some, sizeof some, 1, file) == 1; ++i) usleep(200000);
        fclose(file);
    } else if (strcmp(how, "mismatch") == 0) {
        pmix_proc_t two[2];
        PMIX_LOAD_PROCID(&two[0], self.nspace, 1);
        PMIX_LOAD_PROCID(&two[1], self.nspace, size - 1);
        expect("another fence", PMIx_Fence(two, 2, NULL, 0));
    } else {
        raise(SIGSTOP);
    }
}

static void make_group(uint32_t size) {
    pmix_proc_t *all;
    pmix_info_t *results = NULL;
    size_t count = 0;
    PMIX_PROC_CREATE(all, size);
    for (uint32_t rank = 0; rank < size; ++rank) PMIX_LOAD_PROCID(&all[rank], self.nspace, rank);
    expect("group", PMIx_Group_construct("everybody", all, size, NULL, 0, &results, &count));
    PMIX_PROC_FREE(all, size);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    expect("init", PMIx_Init(&self, NULL, 0));
    uint32_t size = job_size();
    expect("the first fence", PMIx_Fence(NULL, 0, NULL, 0));  // nobody is late because libpmix begins slowly
    if (self.rank == 1 && is_first(argv[2])) be_late(argv[1], size);
    if (strcmp(argv[1], "group") == 0)
        make_group(size);
    else
        expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
    printf("rank %u: all are there\n", self.rank);
    fflush(stdout);
    expect("finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
