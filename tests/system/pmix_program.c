// SPDX-License-Identifier: Apache-2.0
// A program that speaks PMIx alone; what each rank finds goes to stdout as "rank R: NAME VALUE". "publish FOLDER": each rank publishes under a
// name of its own and finds what all the others have; all make a group. In its first run rank 1 ends by a signal then; in the next one all find what the first one
// has left, before they publish again. "abort FOLDER": in its first run rank 1 ends by PMIx_Abort with words of its own. "abort-and-stay FOLDER": it calls
// PMIx_Abort, and does not end.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pmix_test.h"

static uint32_t size;

static void say(const char *name, long value) {
    printf("rank %u: %s %ld\n", self.rank, name, value);
    fflush(stdout);
}

static void publish(uint32_t value) {
    pmix_info_t info;
    char key[64];
    snprintf(key, sizeof key, "test.of-%u", self.rank);
    PMIX_INFO_LOAD(&info, key, &value, PMIX_UINT32);
    expect("publish", PMIx_Publish(&info, 1));
}

/// The sum of what all ranks have published; -1: one of them has not.
static long look_up(void) {
    long sum = 0;
    for (uint32_t rank = 0; rank < size; ++rank) {
        pmix_pdata_t data;
        PMIX_PDATA_CONSTRUCT(&data);
        snprintf(data.key, sizeof data.key, "test.of-%u", rank);
        pmix_status_t status = PMIx_Lookup(&data, 1, NULL, 0);
        if (status == PMIX_ERR_NOT_FOUND) return -1;
        expect("look up", status);
        sum += data.value.data.uint32;
        PMIX_PDATA_DESTRUCT(&data);
    }
    return sum;
}

/// Of all ranks, under the same name in each generation; its number is the same on all.
static long make_group(void) {
    pmix_proc_t *procs;
    pmix_info_t info, *results;
    size_t count, number = 0;
    bool yes = true;
    PMIX_PROC_CREATE(procs, size);
    for (uint32_t rank = 0; rank < size; ++rank) PMIX_LOAD_PROCID(&procs[rank], self.nspace, rank);
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    expect("group", PMIx_Group_construct("everybody", procs, size, &info, 1, &results, &count));
    for (size_t i = 0; i < count; ++i)
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID)) number = results[i].value.data.size;
    PMIX_PROC_FREE(procs, size);
    PMIX_INFO_FREE(results, count);
    return (long)number;
}

static void end_first_run(const char *note, int by_word, int stay) {
    if (self.rank == 1) {
        FILE *file = fopen(note, "w");
        if (file == NULL || fclose(file) != 0) abort();
        if (!by_word) raise(SIGKILL);
        expect("abort", PMIx_Abort(78, "the paper is used up", NULL, 0));
        if (!stay) _exit(78);
    }
    pause();
}

int main(int argc, char **argv) {
    char name[4096];
    int stays = argc == 3 && strcmp(argv[1], "abort-and-stay") == 0;
    int aborts = stays || (argc == 3 && strcmp(argv[1], "abort") == 0);
    if (!aborts && (argc != 3 || strcmp(argv[1], "publish") != 0)) return 2;
    snprintf(name, sizeof name, "%s/died", argv[2]);
    expect("init", PMIx_Init(&self, NULL, 0));
    size = job_size();
    int again = access(name, F_OK) == 0;
    if (aborts) {
        say("size", size);
        expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
        if (!again) end_first_run(name, 1, stays);
        expect("finalize", PMIx_Finalize(NULL, 0));
        return 0;
    }
    if (again) say("left", look_up());
    say("group", make_group());
    expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
    publish(again ? 1000 + self.rank : 100 + self.rank);
    expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
    say("published", look_up());
    expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
    if (!again) end_first_run(name, 0, 0);
    expect("finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
