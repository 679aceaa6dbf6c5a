// SPDX-License-Identifier: Apache-2.0
// A PMIx group by invitation: rank 0 invites all ranks, the others join, and every rank hears that the group is complete.
// Says "rank R: NAME VALUE" of the call (invite or join: 0 is success), and of the event.
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pmix_proc_t self, leader;
static volatile int invited, complete;

static void say(const char *name, long value) {
    printf("rank %u: %s %ld\n", self.rank, name, value);
    fflush(stdout);
}

static void on_event(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                     pmix_info_t *results, size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data) {
    (void)handler, (void)info, (void)ninfo, (void)results, (void)nresults;
    leader = *source;
    if (status == PMIX_GROUP_INVITED) invited = 1;
    if (status == PMIX_GROUP_CONSTRUCT_COMPLETE) complete = 1;
    if (done != NULL) done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void wait_for(volatile int *flag) {
    for (int i = 0; i < 1000 && !*flag; ++i) usleep(10000);
}

static pmix_status_t invite(uint32_t size) {
    pmix_info_t patience, *results = NULL;
    size_t count = 0;
    int seconds = 10;
    PMIX_INFO_LOAD(&patience, PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_proc_t *all = calloc(size, sizeof *all);
    for (uint32_t rank = 0; rank < size; ++rank) PMIX_LOAD_PROCID(&all[rank], self.nspace, rank);
    pmix_status_t status = PMIx_Group_invite("invited", all, size, &patience, 1, &results, &count);
    free(all);
    return status;
}

int main(int argc, char **argv) {
    pmix_status_t codes[] = {PMIX_GROUP_INVITED, PMIX_GROUP_CONSTRUCT_COMPLETE};
    if (argc != 2 || PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS) return 2;
    if (PMIx_Register_event_handler(codes, 2, NULL, 0, on_event, NULL, NULL) < 0) return 3;
    if (PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS) return 4;
    if (self.rank == 0) {
        say("invite", invite((uint32_t)atoi(argv[1])));
    } else {
        pmix_info_t *results = NULL;
        size_t count = 0;
        wait_for(&invited);
        say("join", invited ? PMIx_Group_join("invited", &leader, PMIX_GROUP_ACCEPT, NULL, 0, &results, &count) : 1);
    }
    wait_for(&complete);
    say("complete", complete);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 5;
}
