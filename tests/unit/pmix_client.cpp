// SPDX-License-Identifier: Apache-2.0
// A program that speaks PMIx, for pmixd_process_test: does the one thing that its argument names; exit code
// 0: all came as it should. What a call that fails says goes to stdout.
#include <pmix.h>
#include <pmix_tool.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pmix_server/dlrover_pmix.h"

namespace {

constexpr const char *key = "dlrover.test";
pmix_proc_t self;

/// The same in every version: PMIx_Error_string is not.
const char *words_for(pmix_status_t status) {
    switch (status) {
        case PMIX_ERR_NOT_SUPPORTED:
            return "not supported";
        case PMIX_ERR_TIMEOUT:
            return "timeout";
        case PMIX_ERR_LOST_CONNECTION:
            return "lost connection";
        case PMIX_ERR_NOT_FOUND:
            return "not found";
        case PMIX_ERR_BAD_PARAM:
            return "bad parameter";
        case PMIX_ERR_DUPLICATE_KEY:
            return "duplicate key";
        case PMIX_ERR_OUT_OF_RESOURCE:
            return "out of resource";
        case PMIX_ERR_RESOURCE_BUSY:
            return "busy";
        case PMIX_ERR_NO_PERMISSIONS:
            return "no permissions";
        case PMIX_ERR_JOB_ALLOC_FAILED:
            return "refused";
        default:
            return PMIx_Error_string(status);
    }
}

bool good(const char *what, pmix_status_t status) {
    if (status != PMIX_SUCCESS) std::printf("%s: %s\n", what, words_for(status));
    return status == PMIX_SUCCESS;
}

pmix_proc_t other(pmix_rank_t rank) {
    pmix_proc_t proc{};
    PMIX_LOAD_PROCID(&proc, self.nspace, rank);
    return proc;
}

bool get(pmix_rank_t rank, const char *name, std::uint32_t wanted) {
    pmix_proc_t proc = other(rank);
    pmix_value_t *value = nullptr;
    if (!good(name, PMIx_Get(&proc, name, nullptr, 0, &value))) return false;
    bool same = value->type == PMIX_UINT32 && value->data.uint32 == wanted;
    if (!same) std::printf("%s of rank %u is another\n", name, rank);
    PMIX_VALUE_RELEASE(value);
    return same;
}

/// timeout_s: as a number of that type.
bool fence(bool collect, std::uint64_t timeout_s = 0, pmix_data_type_t type = PMIX_INT) {
    pmix_info_t info[2];
    std::size_t count = 0;
    if (collect) PMIX_INFO_LOAD(&info[count++], PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    if (timeout_s > 0) PMIX_INFO_LOAD(&info[count++], PMIX_TIMEOUT, &timeout_s, type);
    return good("fence", PMIx_Fence(nullptr, 0, info, count));
}

/// Of this rank and one of another namespace.
bool foreign_fence() {
    pmix_proc_t both[2] = {self, {}};
    PMIX_LOAD_PROCID(&both[1], "dlrover.other", 0);
    return good("fence", PMIx_Fence(both, 2, nullptr, 0));
}

/// One after the other, each of another type: all in vain.
bool wait_seconds() {
    for (pmix_data_type_t type : {PMIX_INT, PMIX_UINT16, PMIX_UINT32, PMIX_UINT64, PMIX_SIZE}) {
        pmix_info_t info;
        std::uint64_t second = 1;
        PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &second, type);
        pmix_status_t status = PMIx_Fence(nullptr, 0, &info, 1);
        if (status == PMIX_ERR_TIMEOUT) continue;
        std::printf("fence: %s\n", words_for(status));
        return false;
    }
    return true;
}

/// Every rank has what every rank has put.
bool exchange(bool collect) {
    pmix_value_t mine;
    std::uint32_t number = 100 + self.rank;
    PMIX_VALUE_LOAD(&mine, &number, PMIX_UINT32);
    if (!good("put", PMIx_Put(PMIX_GLOBAL, key, &mine)) || !good("commit", PMIx_Commit())) return false;
    if (!fence(collect) || !get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, 4)) return false;
    for (pmix_rank_t rank = 0; rank < 4; ++rank)
        if (!get(rank, key, 100 + rank)) return false;
    return fence(false);  // or one that ends could not be asked any more
}

bool publish_one(const std::string &name, std::uint32_t number,
                 pmix_persistence_t persistence = PMIX_PERSIST_APP) {
    pmix_info_t info[2];
    PMIX_INFO_LOAD(&info[0], name.c_str(), &number, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[1], PMIX_PERSISTENCE, &persistence, PMIX_PERSIST);
    return good("publish", PMIx_Publish(info, 2));
}

bool look_up(const std::string &name, std::uint32_t wanted, bool wait) {
    pmix_pdata_t data;
    PMIX_PDATA_CONSTRUCT(&data);
    PMIX_LOAD_KEY(data.key, name.c_str());
    int all = 0;
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_WAIT, &all, PMIX_INT);
    if (!good("look up", PMIx_Lookup(&data, 1, &info, wait ? 1 : 0))) return false;
    bool same = data.value.type == PMIX_UINT32 && data.value.data.uint32 == wanted;
    if (!same) std::printf("%s is another\n", name.c_str());
    PMIX_PDATA_DESTRUCT(&data);
    return same;
}

std::string name_of(pmix_rank_t rank) {
    return "dlrover.of-" + std::to_string(rank);
}

/// Every rank finds what every rank has published, by a fence and without one, and nothing any more
/// afterwards.
bool published_by_each() {
    if (!publish_one(name_of(self.rank), self.rank) || !fence(false)) return false;
    for (pmix_rank_t rank = 0; rank < 4; ++rank)
        if (!look_up(name_of(rank), rank, false)) return false;
    if (self.rank == 3 && !publish_one("dlrover.late", 7)) return false;
    if (!look_up("dlrover.late", 7, true) || !fence(false)) return false;
    std::string name = name_of(self.rank);
    char *keys[] = {name.data(), nullptr};
    if (!good("unpublish", PMIx_Unpublish(keys, nullptr, 0)) || !fence(false)) return false;
    pmix_pdata_t data;
    PMIX_PDATA_CONSTRUCT(&data);
    PMIX_LOAD_KEY(data.key, name_of((self.rank + 1) % 4).c_str());
    return PMIx_Lookup(&data, 1, nullptr, 0) == PMIX_ERR_NOT_FOUND && fence(false);
}

bool unpublish() {
    std::string name = "dlrover.lasts";
    char *keys[] = {name.data(), nullptr};
    return good("unpublish", PMIx_Unpublish(keys, nullptr, 0));
}

bool publish_much() {
    std::string text(200000, 'x');
    for (int i = 0; i < 10; ++i) {
        pmix_info_t info;
        PMIX_INFO_LOAD(&info, ("dlrover.much-" + std::to_string(i)).c_str(), text.c_str(), PMIX_STRING);
        bool done = good("publish", PMIx_Publish(&info, 1));
        PMIX_INFO_DESTRUCT(&info);
        if (!done) return false;
    }
    return true;
}

std::atomic<int> heard{0};
std::atomic<std::uint32_t> heard_word{0};
std::string heard_text;  ///< before `heard` counts it
std::atomic<pmix_rank_t> affected{PMIX_RANK_UNDEF};
constexpr pmix_status_t code = -5001;

void on_event(std::size_t, pmix_status_t, const pmix_proc_t *, pmix_info_t info[], std::size_t ninfo,
              pmix_info_t *, std::size_t, pmix_event_notification_cbfunc_fn_t done, void *data) {
    for (std::size_t i = 0; i < ninfo; ++i) {
        if (PMIX_CHECK_KEY(&info[i], key)) heard_word = info[i].value.data.uint32;
        if (PMIX_CHECK_KEY(&info[i], DLROVER_PMIX_GENERATION))
            heard_word = std::string(info[i].value.data.string) == "1:1" ? 1 : 2;
        if (PMIX_CHECK_KEY(&info[i], DLROVER_PMIX_RANK)) heard_word = info[i].value.data.uint32;
        for (const char *name : {DLROVER_PMIX_NODE_COUNT, DLROVER_PMIX_SECONDS})
            if (PMIX_CHECK_KEY(&info[i], name)) heard_word = info[i].value.data.uint32;
        if (PMIX_CHECK_KEY(&info[i], DLROVER_PMIX_STEP))
            heard_word = static_cast<std::uint32_t>(info[i].value.data.uint64);
        if (PMIX_CHECK_KEY(&info[i], PMIX_EVENT_AFFECTED_PROC)) affected = info[i].value.data.proc->rank;
        if (PMIX_CHECK_KEY(&info[i], DLROVER_PMIX_NODE) || PMIX_CHECK_KEY(&info[i], DLROVER_PMIX_REASON))
            heard_text = info[i].value.data.string;
    }
    ++heard;
    if (done != nullptr) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, data);
}

bool hears(pmix_status_t which) {
    pmix_status_t handler = PMIx_Register_event_handler(&which, 1, nullptr, 0, on_event, nullptr, nullptr);
    return handler >= 0 || good("register", handler);
}

bool await_event(std::uint32_t word) {
    for (int i = 0; heard == 0 && i < 20000; ++i) ::usleep(1000);
    ::usleep(300000);  // a second one would be wrong
    if (heard == 1 && heard_word == word) return true;
    std::printf("heard %d times, %u\n", heard.load(), heard_word.load());
    return false;
}

/// `steps` safe steps, and the end of the generation: each of them.
bool story(int steps) {
    if (!hears(DLROVER_PMIX_EVENT_STEP_SAFE) || !hears(DLROVER_PMIX_EVENT_GENERATION)) return false;
    for (int i = 0; heard <= steps && i < 5000; ++i) ::usleep(1000);
    if (heard == steps + 1) return true;
    std::printf("heard %d times\n", heard.load());
    return false;
}

/// Of our own.
bool news(pmix_status_t which, std::uint32_t word, const std::string &text) {
    if (!hears(which) || !await_event(word)) return false;
    if (heard_text == text) return true;
    std::printf("heard of %s\n", heard_text.c_str());
    return false;
}

/// Rank 3 sends what the server does not take: no rank of the other node hears it.
bool unserved_event(pmix_status_t which, pmix_data_range_t range) {
    if (!hears(which) || !fence(false)) return false;
    if (self.rank == 3 &&
        !good("notify", PMIx_Notify_event(which, &self, range, nullptr, 0, nullptr, nullptr)))
        return false;
    ::usleep(300000);
    std::printf("heard %d times\n", heard.load());
    return fence(false) && (heard == 0 || self.rank >= 2);
}

/// Rank 3 tells all, or rank 0 alone.
bool event(bool custom) {
    if (!hears(code) || !fence(false)) return false;
    if (self.rank == 3) {
        pmix_info_t info[2];
        std::uint32_t word = 42;
        pmix_proc_t to = other(0);
        PMIX_INFO_LOAD(&info[0], key, &word, PMIX_UINT32);
        PMIX_INFO_LOAD(&info[1], PMIX_EVENT_CUSTOM_RANGE, &to, PMIX_PROC);
        auto range = custom ? PMIX_RANGE_CUSTOM : PMIX_RANGE_NAMESPACE;
        if (!good("notify", PMIx_Notify_event(code, &self, range, info, custom ? 2 : 1, nullptr, nullptr)))
            return false;
    }
    bool right = self.rank == 0 || (!custom && self.rank != 3) ? await_event(42) : true;
    if (!fence(false)) return false;
    // On the sender's node PMIx 4.2.2 itself tells all ranks, the sender among them.
    bool strange = custom && self.rank == 1 && heard > 0;
    if (strange) std::printf("heard what was not for it\n");
    return right && !strange;
}

std::string text_of(const pmix_value_t &value) {
    if (value.type == PMIX_STRING) return value.data.string;
    if (value.type == PMIX_DOUBLE) return std::to_string(value.data.dval);
    return std::to_string(value.type == PMIX_UINT64 ? value.data.uint64 : value.data.uint32);
}

/// Of that namespace, if one is named. fresh: not what an earlier answer has left in this process.
bool query(std::initializer_list<const char *> names, const std::string &wanted,
           const char *name_space = nullptr, bool fresh = false) {
    pmix_query_t query;
    PMIX_QUERY_CONSTRUCT(&query);
    pmix_status_t rc = PMIX_SUCCESS;
    for (const char *name : names) PMIX_ARGV_APPEND(rc, query.keys, name);
    if (fresh || name_space != nullptr) PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
    if (fresh) PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_QUERY_REFRESH_CACHE, nullptr, PMIX_BOOL);
    if (name_space != nullptr) PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_NSPACE, name_space, PMIX_STRING);
    pmix_info_t *found = nullptr;
    std::size_t count = 0;
    if (!good("names", rc) || !good("query", PMIx_Query_info(&query, 1, &found, &count))) return false;
    std::string text;
    for (std::size_t i = 0; i < count; ++i)
        text += std::string(found[i].key) + "=" + text_of(found[i].value) + ";";
    PMIX_INFO_FREE(found, count);
    PMIX_QUERY_DESTRUCT(&query);
    if (text == wanted) return true;
    std::printf("query: %s\n", text.c_str());
    return false;
}

/// The daemon says another step each time.
bool query_state() {
    auto names = {DLROVER_PMIX_SAFE_STEP, DLROVER_PMIX_DURABLE_STEP, DLROVER_PMIX_GOODPUT};
    std::string rest = "dlrover.step.durable=7;dlrover.goodput=0.750000;";
    return query(names, "dlrover.step.safe=40;" + rest, nullptr, true) &&
           query(names, "dlrover.step.safe=41;" + rest, nullptr, true);
}

/// Prints what comes back.
bool allocate(pmix_alloc_directive_t directive, std::vector<pmix_info_t> infos) {
    pmix_info_t *results = nullptr;
    std::size_t count = 0;
    bool done =
        good("allocate", PMIx_Allocation_request(directive, infos.data(), infos.size(), &results, &count));
    for (std::size_t i = 0; i < count; ++i)
        std::printf("%s=%s\n", results[i].key, text_of(results[i].value).c_str());
    if (results != nullptr) PMIX_INFO_FREE(results, count);
    return done;
}

bool allocate(pmix_alloc_directive_t directive, std::uint64_t nodes) {
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_ALLOC_NUM_NODES, &nodes, PMIX_UINT64);
    return allocate(directive, {info});
}

pmix_info_t text_info(const char *name, const char *text) {
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, name, text, PMIX_STRING);
    return info;
}

bool allocate_with_terms() {
    std::vector<pmix_info_t> infos{text_info(PMIX_ALLOC_QUEUE, "long"),
                                   text_info(PMIX_ALLOC_REQ_ID, "the tests")};
    std::uint64_t nodes = 2;
    std::uint32_t seconds = 90;
    PMIX_INFO_LOAD(&infos.emplace_back(), PMIX_ALLOC_NUM_NODES, &nodes, PMIX_UINT64);
    PMIX_INFO_LOAD(&infos.emplace_back(), PMIX_ALLOC_TIME, &seconds, PMIX_UINT32);
    return allocate(PMIX_ALLOC_NEW, std::move(infos));
}

/// id: none where it is null.
bool query_allocation(const char *id) {
    pmix_query_t query;
    PMIX_QUERY_CONSTRUCT(&query);
    pmix_status_t rc = PMIX_SUCCESS;
    PMIX_ARGV_APPEND(rc, query.keys, PMIX_QUERY_ALLOC_STATUS);
    bool yes = true;
    PMIX_QUERY_QUALIFIERS_CREATE(&query, id != nullptr ? 2 : 1);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_QUERY_REFRESH_CACHE, &yes, PMIX_BOOL);
    if (id != nullptr) PMIX_INFO_LOAD(&query.qualifiers[1], PMIX_ALLOC_ID, id, PMIX_STRING);
    pmix_info_t *found = nullptr;
    std::size_t count = 0;
    bool done = good("names", rc) && good("query", PMIx_Query_info(&query, 1, &found, &count));
    for (std::size_t i = 0; i < count; ++i)
        std::printf("%s=%s\n", found[i].key, text_of(found[i].value).c_str());
    PMIX_QUERY_DESTRUCT(&query);
    return done;
}

/// Of these ranks, this one among them. Says the number that it gets.
bool construct(const std::string &name, const std::vector<pmix_rank_t> &ranks, int timeout_s = 0) {
    std::vector<pmix_proc_t> procs;
    for (pmix_rank_t rank : ranks) procs.push_back(other(rank));
    pmix_info_t infos[2], *results = nullptr;
    bool yes = true;
    PMIX_INFO_LOAD(&infos[0], PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &timeout_s, PMIX_INT);
    std::size_t count = 0, context = 0;
    if (!good("construct", PMIx_Group_construct(name.c_str(), procs.data(), procs.size(), infos,
                                                timeout_s > 0 ? 2 : 1, &results, &count)))
        return false;
    for (std::size_t i = 0; i < count; ++i)
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID)) context = results[i].value.data.size;
    PMIX_INFO_FREE(results, count);
    std::printf("%s %zu\n", name.c_str(), context);
    return context != 0;
}

bool destruct(const std::string &name) {
    return good("destruct", PMIx_Group_destruct(name.c_str(), nullptr, 0));
}

/// Groups of all ranks, of two nodes' inner ones, and again; what the members had put they have then.
bool groups() {
    pmix_value_t mine;
    std::uint32_t number = 100 + self.rank;
    PMIX_VALUE_LOAD(&mine, &number, PMIX_UINT32);
    if (!good("put", PMIx_Put(PMIX_GLOBAL, key, &mine)) || !good("commit", PMIx_Commit())) return false;
    if (!construct("four", {0, 1, 2, 3})) return false;
    for (pmix_rank_t rank = 0; rank < 4; ++rank)
        if (!get(rank, key, 100 + rank)) return false;
    bool inner = self.rank == 1 || self.rank == 2;
    if (inner && (!construct("two", {1, 2}) || !destruct("two") || !construct("two", {2, 1}))) return false;
    return destruct("four") && (!inner || destruct("two")) && fence(false);
}

bool control(const char *directive, const char *id) {
    pmix_info_t info, *results = nullptr;
    std::size_t count = 0;
    PMIX_INFO_LOAD(&info, directive, id, PMIX_STRING);
    bool done = good("control", PMIx_Job_control(nullptr, 0, &info, 1, &results, &count));
    PMIX_INFO_DESTRUCT(&info);
    return done;
}

bool log(const char *channel) {
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, channel, "to nobody\n", PMIX_STRING);
    bool done = good("log", PMIx_Log(&info, 1, nullptr, 0));
    PMIX_INFO_DESTRUCT(&info);
    return done;
}

bool spawn() {
    pmix_app_t app;
    PMIX_APP_CONSTRUCT(&app);
    app.cmd = ::strdup("/bin/true");
    app.maxprocs = 1;
    pmix_nspace_t made;
    bool answered = good("spawn", PMIx_Spawn(nullptr, 0, &app, 1, made));
    PMIX_APP_DESTRUCT(&app);
    return answered;
}

bool abort_one() {
    pmix_proc_t one = other(0);
    return good("abort", PMIx_Abort(5, "that one", &one, 1));
}

bool credential() {
    pmix_byte_object_t made{};
    return good("credential", PMIx_Get_credential(nullptr, 0, &made));
}

bool validate() {
    std::string bytes = "nobody's";
    pmix_byte_object_t shown{bytes.data(), bytes.size()};
    pmix_info_t *results = nullptr;
    std::size_t count = 0;
    return good("validate", PMIx_Validate_credential(&shown, nullptr, 0, &results, &count));
}

std::vector<pmix_proc_t> ranks_here() {
    pmix_rank_t first = self.rank / 2 * 2;
    return {other(first), other(first + 1)};
}

bool pull_output() {
    pmix_proc_t one = other(0);
    pmix_status_t handler =
        PMIx_IOF_pull(&one, 1, nullptr, 0, PMIX_FWD_STDOUT_CHANNEL, nullptr, nullptr, nullptr);
    return handler >= 0 || good("pull", handler);
}

bool monitor(const char *what, const char *value, const char *how) {
    pmix_info_t info, directives[2], *results = nullptr;
    std::size_t count = 0;
    std::uint32_t often = 60;
    bool yes = true;
    PMIX_INFO_LOAD(&info, what, value, value == nullptr ? PMIX_POINTER : PMIX_STRING);
    PMIX_INFO_LOAD(&directives[0], how, &often, PMIX_UINT32);
    PMIX_INFO_LOAD(&directives[1], PMIX_MONITOR_FILE_SIZE, &yes, PMIX_BOOL);
    return good("monitor", PMIx_Process_monitor(&info, PMIX_MONITOR_FILE_ALERT, directives,
                                                value == nullptr ? 1 : 2, &results, &count));
}

bool register_fabric() {
    pmix_fabric_t fabric;
    PMIX_FABRIC_CONSTRUCT(&fabric);
    return good("register", PMIx_Fabric_register(&fabric, nullptr, 0));
}

bool update_fabric() {
    pmix_fabric_t fabric;
    PMIX_FABRIC_CONSTRUCT(&fabric);
    return good("update", PMIx_Fabric_update(&fabric));
}

/// From here to the node's devices, of which there may be none.
bool compute_distances() {
    pmix_topology_t topology;
    pmix_cpuset_t here;
    PMIX_TOPOLOGY_CONSTRUCT(&topology);
    PMIX_CPUSET_CONSTRUCT(&here);
    if (!good("topology", PMIx_Load_topology(&topology))) return false;
    if (!good("cpuset", PMIx_Get_cpuset(&here, PMIX_CPUBIND_PROCESS))) return false;
    pmix_device_distance_t *found = nullptr;
    std::size_t count = 0;
    pmix_status_t status = PMIx_Compute_distances(&topology, &here, nullptr, 0, &found, &count);
    return status == PMIX_ERR_NOT_FOUND || good("distances", status);
}

bool resolve() {
    char *nodes = nullptr;
    if (!good("nodes", PMIx_Resolve_nodes(self.nspace, &nodes))) return false;
    std::string said = nodes;
    for (const char *node : {"n0", "n1"}) {
        pmix_proc_t *found = nullptr;
        std::size_t count = 0;
        if (!good("peers", PMIx_Resolve_peers(node, self.nspace, &found, &count))) return false;
        said += ";";
        for (std::size_t i = 0; i < count; ++i) said += " " + std::to_string(found[i].rank);
    }
    std::printf("%s\n", said.c_str());
    return said == "n0,n1; 0 1; 2 3";
}

/// By what there is not.
bool query_qualified() {
    pmix_query_t query;
    PMIX_QUERY_CONSTRUCT(&query);
    pmix_status_t rc = PMIX_SUCCESS;
    PMIX_ARGV_APPEND(rc, query.keys, DLROVER_PMIX_WORLD_SIZE);
    PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
    PMIX_INFO_LOAD(&query.qualifiers[0], "dlrover.nothing", "x", PMIX_STRING);
    pmix_info_t *found = nullptr;
    std::size_t count = 0;
    bool done = good("names", rc) && good("query", PMIx_Query_info(&query, 1, &found, &count));
    PMIX_QUERY_DESTRUCT(&query);
    return done;
}

/// Rank 3 wants all to save.
bool checkpoint() {
    if (!hears(PMIX_JCTRL_CHECKPOINT) || !fence(false)) return false;
    if (self.rank == 3 && !control(PMIX_JOB_CTRL_CHECKPOINT, "tonight")) return false;
    return await_event(0) && fence(false);
}

/// What the server has no part in.
bool run_unserved(const std::string &what) {
    auto here = ranks_here();
    if (what == "leave") return good("leave", PMIx_Group_leave("four", nullptr, 0));
    if (what == "credential") return credential();
    if (what == "validate") return validate();
    if (what == "spawn") return spawn();
    if (what == "pull") return pull_output();
    if (what == "fabric update") return update_fabric();
    if (what == "log") return log(PMIX_LOG_STDERR);
    if (what == "clean up") return control(PMIX_REGISTER_CLEANUP, "/tmp/dlrover-test-nothing");
    if (what == "file") return monitor(PMIX_MONITOR_FILE, "/etc/passwd", PMIX_MONITOR_FILE_CHECK_TIME);
    if (what == "heartbeat") return monitor(PMIX_MONITOR_HEARTBEAT, nullptr, PMIX_MONITOR_HEARTBEAT_TIME);
    if (what == "fabric") return register_fabric();
    if (what == "distances") return compute_distances();
    if (what == "resolve") return resolve();
    if (what == "event for the manager") return unserved_event(code, PMIX_RANGE_RM);
    if (what == "event of an end") return unserved_event(DLROVER_PMIX_EVENT_GENERATION, PMIX_RANGE_NAMESPACE);
    if (what == "connect") return good("connect", PMIx_Connect(here.data(), here.size(), nullptr, 0));
    if (what == "disconnect")
        return good("disconnect", PMIx_Disconnect(here.data(), here.size(), nullptr, 0));
    std::printf("%s: what is that?\n", what.c_str());
    return false;
}

bool run(const std::string &what) {
    if (what == "collect") return exchange(true);
    if (what == "modex") return exchange(false);
    if (what == "wait") return fence(false);
    if (what == "wait seconds") return wait_seconds();
    if (what == "wait for a stranger") return foreign_fence();
    if (what == "wait for ages") return fence(false, UINT64_MAX, PMIX_UINT64);
    if (what == "get of rank 2") return get(2, key, 102);
    if (what == "in") return true;
    if (what == "abort") return good("abort", PMIx_Abort(5, "no more", nullptr, 0));
    if (what == "abort of one") return abort_one();
    if (what == "sleep") return ::sleep(3600) == 0;
    if (what == "publish") return publish_one("dlrover.lasts", 1);
    if (what == "look up") return look_up("dlrover.lasts", 1, false);
    if (what == "look up, and wait") return look_up("dlrover.lasts", 1, true);
    if (what == "unpublish") return unpublish();
    if (what == "published") return published_by_each();
    if (what == "publish again") return publish_one("dlrover.again", 1) && publish_one("dlrover.again", 2);
    if (what == "publish too much") return publish_much();
    if (what == "event") return event(false);
    if (what == "event for one") return event(true);
    if (what == "end") return news(DLROVER_PMIX_EVENT_GENERATION, 1, "rank 3 failed");
    if (what == "story") return story(100);
    if (what == "rank lost") return news(DLROVER_PMIX_EVENT_RANK_LOST, 3, "n1") && affected == 3;
    if (what == "node lost") return news(DLROVER_PMIX_EVENT_NODE_LOST, 0, "n1");
    if (what == "safe") return news(DLROVER_PMIX_EVENT_STEP_SAFE, 40, "");
    if (what == "durable") return news(DLROVER_PMIX_EVENT_STEP_DURABLE, 30, "");
    if (what == "draining") return news(DLROVER_PMIX_EVENT_DRAINING, 90, "");
    if (what == "query")
        return query({DLROVER_PMIX_GENERATION, DLROVER_PMIX_NODES, DLROVER_PMIX_WORLD_SIZE},
                     "dlrover.generation=1:1;dlrover.nodes=n0,n1;dlrover.world.size=4;");
    if (what == "query namespace")
        return query({DLROVER_PMIX_WORLD_SIZE}, "dlrover.world.size=4;", self.nspace);
    if (what == "query another") return query({DLROVER_PMIX_WORLD_SIZE}, "", "dlrover.other");
    if (what == "group") return groups();
    if (what == "group in a second") return construct("late", {0, 1, 2, 3}, 2);
    if (what == "checkpoint") return checkpoint();
    if (what == "restart") return control(PMIX_JOB_CTRL_RESTART, "30");
    if (what == "restart newest") return control(PMIX_JOB_CTRL_RESTART, "");
    if (what == "restart never") return control(PMIX_JOB_CTRL_RESTART, "never");
    if (what == "kill") return control(PMIX_JOB_CTRL_KILL, "");
    if (what == "query unknown") return query({"dlrover.nothing"}, "");
    if (what == "query state") return query_state();
    if (what == "query safe") return query({DLROVER_PMIX_SAFE_STEP}, "");
    if (what == "query qualified") return query_qualified();
    if (what == "query refusal") return query({DLROVER_PMIX_REFUSAL}, "");
    if (what == "extend, and why not")
        return !allocate(PMIX_ALLOC_EXTEND, 2) &&
               query({DLROVER_PMIX_REFUSAL}, "dlrover.refusal=there is no room;");
    if (what == "refused") return query({DLROVER_PMIX_REFUSAL}, "dlrover.refusal=there is no room;");
    if (what == "extend") return allocate(PMIX_ALLOC_EXTEND, 2);
    if (what == "release") return allocate(PMIX_ALLOC_RELEASE, 1);
    if (what == "new") return allocate(PMIX_ALLOC_NEW, 1);
    if (what == "new, and why not") return allocate(PMIX_ALLOC_NEW, 1) || query({DLROVER_PMIX_REFUSAL}, "?");
    if (what == "new with terms") return allocate_with_terms();
    if (what == "release 58") return allocate(PMIX_ALLOC_RELEASE, {text_info(PMIX_ALLOC_ID, "58")});
    if (what == "status of 58") return query_allocation("58");
    if (what == "status of none") return query_allocation(nullptr);
    if (what == "changed") return news(DLROVER_PMIX_EVENT_ALLOCATION_CHANGED, 5, "");
    if (what == "first read") return publish_one("dlrover.once", 1, PMIX_PERSIST_FIRST_READ);
    if (what == "pause") return control(PMIX_JOB_CTRL_PAUSE, "");
    return run_unserved(what);
}

/// Attaches to a rank's server, as nobody's rank.
int run_tool() {
    const char *server = std::getenv("PMIX_SERVER_URI41");
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_SERVER_URI, server, PMIX_STRING);
    if (server == nullptr || !good("attach", PMIx_tool_init(&self, &info, 1))) return 1;
    return good("finalize", PMIx_tool_finalize()) ? 0 : 3;
}

}  // namespace

/// PMIx's own security takes the process's word for this; a hostile one may say what it likes.
extern "C" __attribute__((visibility("default"))) uid_t geteuid() noexcept;
extern "C" uid_t geteuid() noexcept {
    const char *claimed = std::getenv("DLROVER_TEST_CLAIMED_UID");
    return claimed != nullptr ? static_cast<uid_t>(std::atoi(claimed)) : ::getuid();
}
extern "C" __attribute__((visibility("default"))) gid_t getegid() noexcept;
extern "C" gid_t getegid() noexcept {
    const char *claimed = std::getenv("DLROVER_TEST_CLAIMED_GID");
    return claimed != nullptr ? static_cast<gid_t>(std::atoi(claimed)) : ::getgid();
}

/// For LeakSanitizer, where this is built with it: what PMIx's client library forgets at its end is not ours,
/// nor the sets of processors that it has from hwloc (through code without frames).
extern "C" __attribute__((visibility("default"))) const char *__lsan_default_suppressions();
extern "C" const char *__lsan_default_suppressions() {
    return "leak:libpmix.so\nleak:hwloc_bitmap_alloc\n";
}

int main(int argc, char **argv) {
    if (argc == 2 && std::string(argv[1]) == "tool") return run_tool();
    if (argc != 2 || !good("init", PMIx_Init(&self, nullptr, 0))) return 2;
    bool done = run(argv[1]);
    std::fflush(stdout);
    if (!done) return 1;
    return good("finalize", PMIx_Finalize(nullptr, 0)) ? 0 : 3;
}
