// SPDX-License-Identifier: Apache-2.0
// Usage: pmix_allocate FOLDER. Rank 0 asks for what FOLDER/request says, and puts PMIx's answer into FOLDER/answer. The others meet in fences meanwhile,
// and rank 1 writes how often into FOLDER/fences, until FOLDER/last names a number that is reached.
#include <string.h>
#include <unistd.h>

#include "pmix_test.h"

static const char *folder;

static FILE *open_file(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "r");
}

/// Readers find the whole of it.
static void write_file(const char *name, const char *text) {
    char path[4096], made[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(made, sizeof made, "%s.made", path);
    FILE *file = fopen(made, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0 || rename(made, path) != 0) exit(1);
}

static unsigned long last_fence(void) {
    unsigned long last = 0;
    FILE *file = open_file("last");
    if (file == NULL) return 0;
    if (fscanf(file, "%lu", &last) != 1) last = 0;
    fclose(file);
    return last;
}

/// One word of a request: nodes=1, time=90, queue=long, label=tests, id=58.
static void take(const char *word, pmix_info_t *info) {
    const char *value = strchr(word, '=') + 1;
    uint64_t nodes = strtoul(value, NULL, 10);
    uint32_t seconds = (uint32_t)nodes;
    if (strncmp(word, "nodes=", 6) == 0) PMIX_INFO_LOAD(info, PMIX_ALLOC_NUM_NODES, &nodes, PMIX_UINT64);
    if (strncmp(word, "time=", 5) == 0) PMIX_INFO_LOAD(info, PMIX_ALLOC_TIME, &seconds, PMIX_UINT32);
    if (strncmp(word, "queue=", 6) == 0) PMIX_INFO_LOAD(info, PMIX_ALLOC_QUEUE, value, PMIX_STRING);
    if (strncmp(word, "label=", 6) == 0) PMIX_INFO_LOAD(info, PMIX_ALLOC_REQ_ID, value, PMIX_STRING);
    if (strncmp(word, "id=", 3) == 0) PMIX_INFO_LOAD(info, PMIX_ALLOC_ID, value, PMIX_STRING);
}

static pmix_status_t query(const char *key, const pmix_info_t *about, pmix_info_t **found, size_t *count) {
    pmix_query_t query;
    pmix_status_t rc = PMIX_SUCCESS;
    bool yes = true;
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(rc, query.keys, key);
    PMIX_QUERY_QUALIFIERS_CREATE(&query, about == NULL ? 1 : 2);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_QUERY_REFRESH_CACHE, &yes, PMIX_BOOL);
    if (about != NULL) PMIX_INFO_XFER(&query.qualifiers[1], about);
    if (rc == PMIX_SUCCESS) rc = PMIx_Query_info(&query, 1, found, count);
    PMIX_QUERY_DESTRUCT(&query);
    return rc;
}

static void answer(char *request) {
    char text[4096];
    pmix_info_t infos[8], *results = NULL;
    size_t given = 0, count = 0;
    pmix_status_t rc = PMIX_ERR_BAD_PARAM;
    char *what = strtok(request, " \n");
    for (char *word; given < 8 && (word = strtok(NULL, " \n")) != NULL; ++given) {
        PMIX_INFO_CONSTRUCT(&infos[given]);
        take(word, &infos[given]);
    }
    if (strcmp(what, "new") == 0) rc = PMIx_Allocation_request(PMIX_ALLOC_NEW, infos, given, &results, &count);
    if (strcmp(what, "release") == 0) rc = PMIx_Allocation_request(PMIX_ALLOC_RELEASE, infos, given, &results, &count);
    if (strcmp(what, "status") == 0) rc = query(PMIX_QUERY_ALLOC_STATUS, given > 0 ? infos : NULL, &results, &count);
    if (strcmp(what, "why") == 0) rc = query("dlrover.refusal", NULL, &results, &count);
    size_t used = (size_t)snprintf(text, sizeof text, "%d\n", rc);
    for (size_t i = 0; i < count && used < sizeof text; ++i)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s=%s\n", results[i].key,
                                 results[i].value.type == PMIX_STRING ? results[i].value.data.string : "no text");
    write_file("answer", text);
}

static void answer_requests(void) {
    char path[4096], request[4096];
    snprintf(path, sizeof path, "%s/request", folder);
    for (; last_fence() == 0; usleep(10000)) {
        FILE *file = open_file("request");
        if (file == NULL) continue;
        char *line = fgets(request, sizeof request, file);
        fclose(file);
        remove(path);
        if (line != NULL) answer(line);
    }
}

static void meet(uint32_t size) {
    char text[32];
    pmix_proc_t *others = calloc(size - 1, sizeof *others);
    for (uint32_t rank = 1; rank < size; ++rank) PMIX_LOAD_PROCID(&others[rank - 1], self.nspace, rank);
    for (unsigned long fence = 1, last = 0; last == 0 || fence <= last; ++fence, last = last_fence()) {
        expect("fence", PMIx_Fence(others, size - 1, NULL, 0));
        snprintf(text, sizeof text, "%lu\n", fence);
        if (self.rank == 1) write_file("fences", text);
        usleep(20000);
    }
    free(others);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    folder = argv[1];
    expect("init", PMIx_Init(&self, NULL, 0));
    if (self.rank == 0)
        answer_requests();
    else
        meet(job_size());
    expect("finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
