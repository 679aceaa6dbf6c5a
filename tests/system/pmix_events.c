// SPDX-License-Identifier: Apache-2.0
// A program that speaks PMIx and saves by dlrover.h: takes steps, each with a fence and a checkpoint, up to the one that the file FOLDER/go
// names, and writes what it hears into FOLDER/heard-RANK, one line each: microseconds since the epoch, host, generation, event, and what the event
// carries. What FOLDER/request says ("extend N", "release N", "checkpoint", "restart STEP") rank 0 asks for, and writes the status into FOLDER/answer; "why": the words of the last refusal. On stdout: "rank R of GENERATION from step N",
// and at the end how the group stands, which rank 0 asks: "asked NAME VALUE".
#include <dlrover.h>
#include <dlrover_pmix.h>
#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static pmix_proc_t self;
static FILE *heard;
static char host[256];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static bool ended, lost;

static const struct {
    pmix_status_t code;
    const char *name;
} events[] = {{DLROVER_PMIX_EVENT_GENERATION, "generation"},
              {DLROVER_PMIX_EVENT_RANK_LOST, "rank-lost"},
              {DLROVER_PMIX_EVENT_NODE_LOST, "node-lost"},
              {DLROVER_PMIX_EVENT_STEP_SAFE, "safe"},
              {DLROVER_PMIX_EVENT_STEP_DURABLE, "durable"},
              {DLROVER_PMIX_EVENT_ALLOCATION_CHANGED, "allocation"},
              {DLROVER_PMIX_EVENT_DRAINING, "draining"},
              {PMIX_JCTRL_CHECKPOINT, "checkpoint"}};
enum { event_count = sizeof events / sizeof events[0] };

static void print_value(FILE *file, const pmix_value_t *value) {
    if (value->type == PMIX_STRING) fprintf(file, "%s", value->data.string);
    if (value->type == PMIX_UINT32) fprintf(file, "%u", value->data.uint32);
    if (value->type == PMIX_UINT64) fprintf(file, "%lu", (unsigned long)value->data.uint64);
    if (value->type == PMIX_DOUBLE) fprintf(file, "%f", value->data.dval);
}

static void note(pmix_status_t code) {
    pthread_mutex_lock(&mutex);
    ended = ended || code == DLROVER_PMIX_EVENT_GENERATION;
    lost = lost || code == DLROVER_PMIX_EVENT_RANK_LOST || code == DLROVER_PMIX_EVENT_NODE_LOST;
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&mutex);
}

static void on_event(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t count, pmix_info_t *results,
                     size_t result_count, pmix_event_notification_cbfunc_fn_t done, void *data) {
    struct timeval now;
    gettimeofday(&now, NULL);
    for (int i = 0; i < event_count; ++i)
        if (events[i].code == code)
            fprintf(heard, "%ld %s %s %s", now.tv_sec * 1000000L + now.tv_usec, host, getenv("DLROVER_GENERATION"), events[i].name);
    for (size_t i = 0; i < count; ++i)
        if (strncmp(info[i].key, "dlrover.", 8) == 0) {
            fprintf(heard, "\t%s=", info[i].key);
            print_value(heard, &info[i].value);
        }
    fprintf(heard, "\n");
    fflush(heard);
    note(code);
    if (done != NULL) done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void expect(const char *what, int good) {
    if (good) return;
    fprintf(stderr, "rank %u: %s\n", self.rank, what);
    exit(1);
}

static void ask(void) {
    static const char *names[] = {DLROVER_PMIX_GENERATION, DLROVER_PMIX_NODES,        DLROVER_PMIX_RANKS,  DLROVER_PMIX_WORLD_SIZE,
                                  DLROVER_PMIX_SAFE_STEP,  DLROVER_PMIX_DURABLE_STEP, DLROVER_PMIX_GOODPUT};
    pmix_query_t query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    pmix_status_t rc = PMIX_SUCCESS;
    PMIX_QUERY_CONSTRUCT(&query);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) PMIX_ARGV_APPEND(rc, query.keys, names[i]);
    expect("query", rc == PMIX_SUCCESS && PMIx_Query_info(&query, 1, &found, &count) == PMIX_SUCCESS);
    for (size_t i = 0; i < count; ++i) {
        printf("asked %s ", found[i].key);
        print_value(stdout, &found[i].value);
        printf("\n");
    }
}

/// The generation ends. Of what is said then nothing is to be missed: every one ends by a loss here, and either word may be the last.
static void leave(void) {
    struct timespec end;
    int rc = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 5;
    pthread_mutex_lock(&mutex);
    while (rc == 0 && !(ended && lost)) rc = pthread_cond_timedwait(&told, &mutex, &end);
    _exit(1);
}

/// Which step is the last one; 0: that is not said yet.
static uint64_t last_step(const char *folder) {
    char name[4096];
    unsigned long step = 0;
    snprintf(name, sizeof name, "%s/go", folder);
    FILE *file = fopen(name, "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%lu", &step) != 1) step = 0;
    fclose(file);
    return step;
}

static pmix_status_t allocate(pmix_alloc_directive_t directive, const char *nodes) {
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    uint64_t number = strtoul(nodes, NULL, 10);
    PMIX_INFO_LOAD(&info, PMIX_ALLOC_NUM_NODES, &number, PMIX_UINT64);
    return PMIx_Allocation_request(directive, &info, 1, &results, &count);
}

static pmix_status_t control(const char *directive, const char *id) {
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    PMIX_INFO_LOAD(&info, directive, id, PMIX_STRING);
    return PMIx_Job_control(NULL, 0, &info, 1, &results, &count);
}

static pmix_status_t ask_for(const char *what, const char *value) {
    if (strcmp(what, "extend") == 0) return allocate(PMIX_ALLOC_EXTEND, value);
    if (strcmp(what, "release") == 0) return allocate(PMIX_ALLOC_RELEASE, value);
    if (strcmp(what, "checkpoint") == 0) return control(PMIX_JOB_CTRL_CHECKPOINT, value);
    if (strcmp(what, "restart") == 0) return control(PMIX_JOB_CTRL_RESTART, value);
    expect("request", 0);
    return PMIX_ERROR;
}

/// The words of a refusal.
static void why(char *text, size_t size) {
    pmix_query_t query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    pmix_status_t rc = PMIX_SUCCESS;
    bool yes = true;
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(rc, query.keys, DLROVER_PMIX_REFUSAL);
    PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_QUERY_REFRESH_CACHE, &yes, PMIX_BOOL);
    if (rc == PMIX_SUCCESS) rc = PMIx_Query_info(&query, 1, &found, &count);
    bool told = rc == PMIX_SUCCESS && count == 1 && found[0].value.type == PMIX_STRING;
    snprintf(text, size, "%s", told ? found[0].value.data.string : PMIx_Error_string(rc));
    PMIX_QUERY_DESTRUCT(&query);
    PMIX_INFO_FREE(found, count);
}

/// The answer comes into its place as a whole.
static void answer(const char *folder) {
    char name[4096], made[4096], what[16] = "", value[32] = "", text[1024];
    snprintf(name, sizeof name, "%s/request", folder);
    FILE *file = fopen(name, "r");
    if (file == NULL) return;
    int good = fscanf(file, "%15s %31s", what, value);
    fclose(file);
    remove(name);
    expect("request", good >= 1);
    if (strcmp(what, "why") == 0)
        why(text, sizeof text);
    else
        snprintf(text, sizeof text, "%s", PMIx_Error_string(ask_for(what, value)));
    snprintf(name, sizeof name, "%s/answer", folder);
    snprintf(made, sizeof made, "%s/answer.new", folder);
    file = fopen(made, "w");
    expect("answer", file != NULL);
    fprintf(file, "%s\n", text);
    fclose(file);
    expect("answer", rename(made, name) == 0);
}

static void train(const char *folder) {
    dlrover_context *context;
    uint64_t state[512] = {0}, step = 0;
    expect("open", dlrover_open(&context) == DLROVER_OK);
    uint64_t whole = 512, begin = 0;  // all ranks have the same, however many they are
    expect("protect", dlrover_protect_array(context, 0, "state", state, DLROVER_UINT64, 1, &whole, &begin, &whole) == DLROVER_OK);
    if (dlrover_restart(context) == DLROVER_OK) step = state[0];
    printf("rank %u of %s from step %lu\n", self.rank, getenv("DLROVER_GENERATION"), (unsigned long)step);
    fflush(stdout);
    for (uint64_t last = 0; last == 0 || step < last; last = last_step(folder)) {
        if (self.rank == 0) answer(folder);
        state[0] = ++step;
        usleep(20000);
        if (PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS) leave();
        dlrover_report_step(context, step);
        dlrover_checkpoint(context, step);
    }
    dlrover_close(context);
}

int main(int argc, char **argv) {
    char name[4096];
    sigset_t set;
    if (argc != 2) return 2;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);  // the fence tells, too
    expect("init", PMIx_Init(&self, NULL, 0) == PMIX_SUCCESS);
    gethostname(host, sizeof host);
    snprintf(name, sizeof name, "%s/heard-%u", argv[1], self.rank);
    heard = fopen(name, "a");
    expect("file", heard != NULL);
    for (int i = 0; i < event_count; ++i) {
        pmix_status_t code = events[i].code;
        // The handler's number, from 0 on, or an error.
        expect("register", PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, NULL, NULL) >= 0);
    }
    train(argv[1]);
    if (self.rank == 0) ask();
    PMIx_Finalize(NULL, 0);
    return 0;
}
