// SPDX-License-Identifier: Apache-2.0
// For bench/pmix_startup: the last rank prints how long it was in a PMIx_Fence without data that rank 0, on
// another node, enters half a second later, in milliseconds. A fence returns when all have entered it (PMIx
// standard 4.1, PMIx_Fence).
#include <pmix.h>
#include <stdio.h>
#include <time.h>

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(void) {
    pmix_proc_t self, job;
    pmix_value_t *size = NULL;
    struct timespec late = {0, 500000000};
    if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS) return 1;
    PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &size) != PMIX_SUCCESS) return 1;
    pmix_info_t collect;
    bool yes = true;
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    if (PMIx_Fence(NULL, 0, &collect, 1) != PMIX_SUCCESS) return 1;
    if (self.rank == 0) nanosleep(&late, NULL);
    double began = now_ms();
    if (PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS) return 1;
    if (self.rank + 1 == size->data.uint32) printf("waited_ms %.0f\n", now_ms() - began);
    PMIX_VALUE_RELEASE(size);
    return PMIx_Finalize(NULL, 0) != PMIX_SUCCESS;
}
