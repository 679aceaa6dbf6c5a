// SPDX-License-Identifier: Apache-2.0
// A client of PMIx that poses as a rank: with the rank's variables in its environment, and POSE_AS=UID:GID, which it gives for its own. Says "init STATUS NAMESPACE RANK", and "size N" where it is let in.
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static unsigned posed(int group) {
    unsigned ids[2] = {0, 0};
    const char *text = getenv("POSE_AS");
    if (text == NULL || sscanf(text, "%u:%u", &ids[0], &ids[1]) != 2) exit(2);
    return ids[group];
}

// libpmix asks these who it runs as.
uid_t geteuid(void) {
    return posed(0);
}

gid_t getegid(void) {
    return posed(1);
}

int main(void) {
    pmix_proc_t self, all;
    pmix_value_t *value;
    PMIX_PROC_CONSTRUCT(&self);
    pmix_status_t status = PMIx_Init(&self, NULL, 0);
    printf("init %s %s %u\n", PMIx_Error_string(status), self.nspace, self.rank);
    fflush(stdout);
    if (status != PMIX_SUCCESS) return 1;
    PMIX_LOAD_PROCID(&all, self.nspace, PMIX_RANK_WILDCARD);
    status = PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value);
    if (status != PMIX_SUCCESS) return 3;
    printf("size %u\n", value->data.uint32);
    PMIX_VALUE_RELEASE(value);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 4;
}
