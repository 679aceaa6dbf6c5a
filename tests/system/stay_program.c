// SPDX-License-Identifier: Apache-2.0
// A client of PMIx and of libdlrover whose process stays: "CODE GENERATIONS" (CODE: of the event that a generation ends). In each generation it publishes a number and finds what all ranks have published, in this
// generation and in the one before, and counts on from the checkpoint. In each but the last one rank 1 ends by a signal, and the others go on in the next in the same process. Says "rank R: NAME VALUE".
// "CODE TIMES alone": is a client of PMIx so many times in one generation, and does nothing else.
#include <pmix.h>
#include <dlrover.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pmix_proc_t self;
static dlrover_context *context;
static dlrover_world world;
static volatile sig_atomic_t ended;
static int64_t count;

static void say(const char *name, long value) {
    printf("rank %u: %s %ld\n", world.rank, name, value);
    fflush(stdout);
}

static void expect(const char *what, pmix_status_t status) {
    if (status == PMIX_SUCCESS) return;
    fprintf(stderr, "rank %u: %s: %s\n", world.rank, what, PMIx_Error_string(status));
    exit(1);
}

static void expect_ours(const char *what, int code) {
    if (code == DLROVER_OK) return;
    fprintf(stderr, "rank %u: %s: %s\n", world.rank, what, dlrover_error_text());
    exit(1);
}

static void on_end(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                   pmix_info_t *results, size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data) {
    (void)handler, (void)status, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults;
    ended = 1;
    if (done != NULL) done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void publish(uint32_t value) {
    pmix_info_t info;
    char key[64];
    snprintf(key, sizeof key, "stay.%u.%u", world.restart_count, world.rank);
    PMIX_INFO_LOAD(&info, key, &value, PMIX_UINT32);
    expect("publish", PMIx_Publish(&info, 1));
}

static long look_up(uint32_t generation) {
    long sum = 0;
    for (uint32_t rank = 0; rank < world.world_size; ++rank) {
        pmix_pdata_t data;
        PMIX_PDATA_CONSTRUCT(&data);
        snprintf(data.key, sizeof data.key, "stay.%u.%u", generation, rank);
        expect("look up", PMIx_Lookup(&data, 1, NULL, 0));
        sum += data.value.data.uint32;
        PMIX_PDATA_DESTRUCT(&data);
    }
    return sum;
}

/// What nobody looks up any more.
static void unpublish(uint32_t generation) {
    char key[64], *keys[] = {key, NULL};
    snprintf(key, sizeof key, "stay.%u.%u", generation, world.rank);
    expect("unpublish", PMIx_Unpublish(keys, NULL, 0));
}

/// Of this process.
static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) exit(4);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE) / 1024;
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int be_alone(pmix_status_t code, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        expect("init", PMIx_Init(&self, NULL, 0));
        world.rank = self.rank;
        expect("handler", PMIx_Register_event_handler(&code, 1, NULL, 0, on_end, NULL, NULL));
        for (int fences = 0; fences < 3; ++fences) expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
        say("kib", resident_kib());
        expect("finalize", PMIx_Finalize(NULL, 0));
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) return 2;
    pmix_status_t code = atoi(argv[1]);
    uint32_t generations = (uint32_t)atoi(argv[2]);
    if (argc == 4) return be_alone(code, generations);
    expect_ours("open", dlrover_open(&context));
    expect_ours("stay", dlrover_stay(context));
    expect_ours("protect", dlrover_protect(context, 1, &count, 1, DLROVER_INT64));
    for (;;) {
        ended = 0;
        expect_ours("world", dlrover_get_world(context, &world));
        expect("init", PMIx_Init(&self, NULL, 0));
        if (self.rank != world.rank) return 3;
        expect("handler", PMIx_Register_event_handler(&code, 1, NULL, 0, on_end, NULL, NULL));
        count = 0;
        int restarted = dlrover_restart(context);
        if (restarted != DLROVER_E_NOT_FOUND) expect_ours("restart", restarted);
        say("pid", getpid());
        say("from", count);
        publish(100 * (world.restart_count + 1) + world.rank);
        expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
        say("published", look_up(world.restart_count));
        if (world.restart_count > 0) say("before", look_up(world.restart_count - 1));
        for (int i = 0; i < 10; ++i) {
            ++count;
            int saved = dlrover_checkpoint(context, (uint64_t)count);
            if (saved != DLROVER_E_SKIPPED) expect_ours("checkpoint", saved);
            pause_ms(10);
        }
        expect("fence", PMIx_Fence(NULL, 0, NULL, 0));
        if (world.restart_count > 0) unpublish(world.restart_count - 1);
        (void)PMIx_Fence(NULL, 0, NULL, 0);  // rank 1 may be through, and dead, before others have heard of it
        say("kib", resident_kib());
        if (world.restart_count + 1 == generations) break;
        if (world.rank == 1) raise(SIGKILL);
        for (int i = 0; i < 2000 && !ended; ++i) pause_ms(5);
        say("ended", ended);
        expect("finalize", PMIx_Finalize(NULL, 0));
        expect_ours("next generation", dlrover_next_generation(&context));
    }
    expect("finalize", PMIx_Finalize(NULL, 0));
    dlrover_close(context);
    return 0;
}
