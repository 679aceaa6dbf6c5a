// SPDX-License-Identifier: Apache-2.0
// What the programs in C have in common that speak PMIx alone.
#pragma once

#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>

static pmix_proc_t self;

static void expect(const char *what, pmix_status_t status) {
    if (status == PMIX_SUCCESS) return;
    fprintf(stderr, "rank %u: %s: %s\n", self.rank, what, PMIx_Error_string(status));
    exit(1);
}

static uint32_t job_size(void) {
    pmix_proc_t all;
    pmix_value_t *value;
    PMIX_LOAD_PROCID(&all, self.nspace, PMIX_RANK_WILDCARD);
    expect("job size", PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value));
    uint32_t found = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return found;
}
