// SPDX-License-Identifier: Apache-2.0
// A program that speaks PMIx and saves by dlrover.h: "FOLDER COUNT PAUSE". In each generation it takes some steps with a fence and a checkpoint each, publishes,
// looks up, and then one of its ranks is killed; the COUNTth ends well. Rank 0 puts its number into FOLDER/generation. Before its end the PAUSEth, and the COUNTth,
// waits until FOLDER/go.NUMBER is there; that all of its ranks have come so far says FOLDER/waits.NUMBER.
#include <dlrover.h>
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { steps = 4, published = 4096 };
static pmix_proc_t self;

static void expect(const char *what, int good) {
    if (good) return;
    fprintf(stderr, "rank %u: %s\n", self.rank, what);
    exit(1);
}

/// Of another rank's death its fence tells a rank that is not ended yet.
static void fence(void) {
    if (PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS) exit(1);
}

/// Valid until the next call.
static const char *file_in(const char *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_number(const char *folder, const char *name, unsigned long number) {
    char fresh[4096];
    strcpy(fresh, file_in(folder, "new"));
    FILE *file = fopen(fresh, "w");
    expect("file", file != NULL && fprintf(file, "%lu\n", number) > 0 && fclose(file) == 0);
    expect("rename", rename(fresh, file_in(folder, name)) == 0);
}

static void wait_to_be_told(const char *folder, unsigned long number) {
    char name[64];
    snprintf(name, sizeof name, "waits.%lu", number);
    if (self.rank == 0) write_number(folder, name, number);
    snprintf(name, sizeof name, "go.%lu", number);
    while (access(file_in(folder, name), F_OK) != 0) usleep(10000);
}

/// Under a name that every generation uses again.
static void publish(void) {
    static char text[published];
    pmix_info_t info;
    pmix_pdata_t data;
    memset(text, 'x', sizeof text - 1);
    PMIX_INFO_LOAD(&info, "test.same", text, PMIX_STRING);
    if (self.rank == 0) expect("publish", PMIx_Publish(&info, 1) == PMIX_SUCCESS);
    PMIX_INFO_DESTRUCT(&info);
    fence();
    PMIX_PDATA_CONSTRUCT(&data);
    PMIX_LOAD_KEY(data.key, "test.same");
    expect("look up", PMIx_Lookup(&data, 1, NULL, 0) == PMIX_SUCCESS);
    PMIX_PDATA_DESTRUCT(&data);
}

int main(int argc, char **argv) {
    dlrover_context *context;
    dlrover_world world;
    uint64_t state[512] = {0};
    if (argc != 4) return 2;
    expect("init", PMIx_Init(&self, NULL, 0) == PMIX_SUCCESS);
    expect("open", dlrover_open(&context) == DLROVER_OK && dlrover_get_world(context, &world) == DLROVER_OK);
    expect("protect", dlrover_protect(context, 0, state, 512, DLROVER_UINT64) == DLROVER_OK);
    expect("restart", world.generation_number == 1 || dlrover_restart(context) == DLROVER_OK);
    if (self.rank == 0) write_number(argv[1], "generation", world.generation_number);
    publish();
    for (int i = 0; i < steps; ++i) {
        ++state[0];
        fence();
        dlrover_report_step(context, state[0]);
        dlrover_checkpoint(context, state[0]);
        usleep(10000);
    }
    fence();
    int last = world.generation_number == strtoul(argv[2], NULL, 10);
    if (last || world.generation_number == strtoul(argv[3], NULL, 10)) wait_to_be_told(argv[1], world.generation_number);
    if (!last) {
        if (self.rank == world.generation_number % world.world_size) raise(SIGKILL);
        for (;;) fence();
    }
    dlrover_close(context);
    PMIx_Finalize(NULL, 0);
    return 0;
}
