// SPDX-License-Identifier: Apache-2.0
// A program that reads from PMIx's store and does nothing else: "FOLDER". Each rank puts a value, all have it by a fence, and then it asks for each other
// rank's again and again; FOLDER/rank.R has how often this process has asked so far. It ends well once FOLDER/go is there. A rank R that finds FOLDER/hold.R
// takes that away and all the locks of its node's store, and waits for its end.
#include <fcntl.h>
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { pause_us = 500 };  // virtual machines stand still for seconds where processes wake each other without a pause
static pmix_proc_t self;

static void expect(const char *what, int good) {
    if (good) return;
    fprintf(stderr, "rank %u: %s\n", self.rank, what);
    exit(1);
}

static uint32_t size_of_job(void) {
    pmix_proc_t all = self;
    pmix_value_t *value = NULL;
    all.rank = PMIX_RANK_WILDCARD;
    expect("job size", PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value) == PMIX_SUCCESS);
    uint32_t size = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return size;
}

/// Of every other rank: what it has put.
static void read_all(uint32_t size) {
    pmix_proc_t other = self;
    for (other.rank = 0; other.rank < size; ++other.rank) {
        pmix_value_t *value = NULL;
        if (other.rank == self.rank) continue;
        expect("get", PMIx_Get(&other, "test.reader", NULL, 0, &value) == PMIX_SUCCESS);
        expect("what another rank has put", value->type == PMIX_UINT32 && value->data.uint32 == other.rank + 100);
        PMIX_VALUE_RELEASE(value);
    }
}

/// As libpmix 4.2 has it at the beginning of the file.
struct locks {
    size_t bytes;
    uint32_t clients;  // two locks for each
    size_t distance, first;
};

static void hold_locks(void) {
    char path[4096];
    const char *folder = getenv("PMIX_DSTORE_21_BASE_PATH");
    expect("a store in shared memory", folder != NULL);
    snprintf(path, sizeof path, "%s/smlockseg-%s", folder, self.nspace);
    int fd = open(path, O_RDWR);
    struct locks found;
    expect("file of locks", fd >= 0 && pread(fd, &found, sizeof found, 0) == sizeof found && found.clients > 0);
    char *all = mmap(NULL, found.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    expect("map the locks", all != MAP_FAILED);
    for (uint32_t i = 0; i < 2 * found.clients; ++i)
        expect("lock", pthread_mutex_lock((pthread_mutex_t *)(all + found.first + i * found.distance)) == 0);
}

int main(int argc, char **argv) {
    char path[4096], go[4096], hold[4096];
    if (argc != 2) return 2;
    if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS) return 1;
    snprintf(path, sizeof path, "%s/rank.%u", argv[1], self.rank);
    snprintf(go, sizeof go, "%s/go", argv[1]);
    snprintf(hold, sizeof hold, "%s/hold.%u", argv[1], self.rank);
    FILE *file = fopen(path, "w");
    expect("file", file != NULL);

    pmix_value_t mine;
    uint32_t number = self.rank + 100;
    PMIX_VALUE_LOAD(&mine, &number, PMIX_UINT32);
    expect("put", PMIx_Put(PMIX_GLOBAL, "test.reader", &mine) == PMIX_SUCCESS && PMIx_Commit() == PMIX_SUCCESS);
    pmix_info_t collect;
    bool yes = true;
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    if (PMIx_Fence(NULL, 0, &collect, 1) != PMIX_SUCCESS) return 1;

    uint32_t size = size_of_job();
    for (unsigned long times = 1; access(go, F_OK) != 0; ++times) {
        read_all(size);
        rewind(file);
        expect("number", fprintf(file, "%d %lu\n", (int)getpid(), times) > 0 && fflush(file) == 0);
        usleep(pause_us);
        if (access(hold, F_OK) != 0) continue;
        hold_locks();
        expect("order taken", remove(hold) == 0);
        pause();
    }
    fclose(file);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 1;
}
