// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/upcalls.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <span>

#include "pmix_server/accept_guard.h"
#include "pmix_server/board.h"
#include "pmix_server/client_watch.h"
#include "pmix_server/dlrover_pmix.h"
#include "pmix_server/number.h"
#include "pmix_server/value_codec.h"

namespace dlrover::pmix {
namespace {

constexpr std::size_t max_text_bytes = 1024;

EventLoop *to_loop;
Upcalls *receiver;

std::string name_space_of(const pmix_proc_t &proc) {
    return std::string(proc.nspace, strnlen(proc.nspace, PMIX_MAX_NSLEN));
}

/// None: ranks of several namespaces.
std::optional<RankSet> rank_set(std::span<const pmix_proc_t> procs) {
    RankSet set;
    for (const auto &proc : procs) {
        std::string name = name_space_of(proc);
        if (!set.name_space.empty() && set.name_space != name) return std::nullopt;
        set.name_space = name;
        if (proc.rank == PMIX_RANK_WILDCARD)
            set.all = true;
        else
            set.ranks.push_back(proc.rank);
    }
    if (set.all) set.ranks.clear();
    std::ranges::sort(set.ranks);
    set.ranks.erase(std::unique(set.ranks.begin(), set.ranks.end()), set.ranks.end());
    return set;
}

/// What the caller has said beside keys and values.
struct Directives {
    std::optional<NoticeRange> range;
    std::optional<std::chrono::seconds> timeout;
    bool brief = false, wait = false;
    std::size_t wanted = 0;
};

std::optional<NoticeRange> range_of(const pmix_value_t &value) {
    if (value.type != PMIX_DATA_RANGE) return std::nullopt;
    switch (value.data.range) {
        case PMIX_RANGE_LOCAL:
            return NoticeRange::Node;
        case PMIX_RANGE_NAMESPACE:
            return NoticeRange::Namespace;
        case PMIX_RANGE_PROC_LOCAL:
            return NoticeRange::Process;
        case PMIX_RANGE_UNDEF:
        case PMIX_RANGE_SESSION:
        case PMIX_RANGE_GLOBAL:
            return NoticeRange::Group;
        default:
            return std::nullopt;
    }
}

/// false: it asks for what there is not.
bool take_persistence(const pmix_value_t &value, Directives &out) {
    out.brief = value.type == PMIX_PERSIST && value.data.persist == PMIX_PERSIST_PROC;
    return value.type == PMIX_PERSIST && value.data.persist != PMIX_PERSIST_FIRST_READ &&
           value.data.persist <= PMIX_PERSIST_SESSION;
}

bool take_directive(const pmix_info_t &info, Directives &out) {
    if (PMIX_CHECK_KEY(&info, PMIX_RANGE)) {
        out.range = range_of(info.value);
        return out.range.has_value();
    }
    if (PMIX_CHECK_KEY(&info, PMIX_PERSISTENCE)) return take_persistence(info.value, out);
    if (auto wanted = PMIX_CHECK_KEY(&info, PMIX_WAIT) ? whole_number(info.value) : std::nullopt) {
        out.wait = true;
        out.wanted = static_cast<std::size_t>(std::max<std::int64_t>(*wanted, 0));
        return true;
    }
    bool known = PMIX_CHECK_KEY(&info, PMIX_TIMEOUT) || PMIX_CHECK_KEY(&info, PMIX_USERID) ||
                 PMIX_CHECK_KEY(&info, PMIX_GRPID);
    return known || (info.flags & PMIX_INFO_REQD) == 0;
}

/// PMIx keeps names with this beginning for itself.
bool is_directive(const pmix_info_t &info) {
    return std::string_view(info.key, strnlen(info.key, PMIX_MAX_KEYLEN)).starts_with("pmix.");
}

std::optional<Directives> directives_in(const pmix_info_t info[], std::size_t count) {
    Directives out;
    out.timeout = timeout_in({info, count});
    for (const auto &one : std::span(info, count))
        if (is_directive(one) && !take_directive(one, out)) return std::nullopt;
    return out;
}

std::vector<std::string> keys_in(char **keys) {
    std::vector<std::string> all;
    for (; keys != nullptr && *keys != nullptr; ++keys)
        all.emplace_back(*keys, strnlen(*keys, PMIX_MAX_KEYLEN));
    return all;
}

/// PMIX_SUCCESS: they are in `change`.
pmix_status_t take_notices(const pmix_info_t info[], std::size_t count, const Directives &how,
                           Change &change) {
    std::size_t bytes = 0;
    for (const auto &one : std::span(info, count)) {
        if (is_directive(one)) continue;
        auto value = pack_value(one.value);
        if (!value || value->empty()) return PMIX_ERR_BAD_PARAM;
        Notice &notice = change.notices.emplace_back();
        notice.key.assign(one.key, strnlen(one.key, PMIX_MAX_KEYLEN));
        notice.range = how.range.value_or(NoticeRange::Group);
        notice.brief = how.brief;
        notice.value = std::move(*value);
        bytes += bytes_of(notice);
        if (notice.key.empty()) return PMIX_ERR_BAD_PARAM;
        if (bytes > Board::max_bytes) return PMIX_ERR_OUT_OF_RESOURCE;
    }
    return change.notices.empty() ? PMIX_ERR_BAD_PARAM : PMIX_SUCCESS;
}

// None of these lets an exception through to PMIx: where memory is at its end, this program is.

/// A libpmix that takes connections in another way than by accept() would take them from everybody.
pmix_status_t on_connected(const pmix_proc_t *proc, void *, pmix_info_t[], std::size_t, pmix_op_cbfunc_t,
                           void *) noexcept {
    if (connections_looked_at() == 0) {
        std::fputs("dlrover-pmixd: this libpmix takes connections in a way that is not guarded\n", stderr);
        std::abort();
    }
    note_connected(proc->rank);
    to_loop->post([] { receiver->on_client(); });
    return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_finalized(const pmix_proc_t *, void *, pmix_op_cbfunc_t, void *) noexcept {
    return PMIX_OPERATION_SUCCEEDED;
}

/// `data` is ours from here on, if we take the fence.
pmix_status_t on_fence(const pmix_proc_t procs[], std::size_t nprocs, const pmix_info_t info[],
                       std::size_t ninfo, char *data, std::size_t ndata, pmix_modex_cbfunc_t function,
                       void *cbdata) noexcept {
    auto who = rank_set({procs, nprocs});
    if (!who) return PMIX_ERR_NOT_SUPPORTED;
    Upcalls::Fence fence{std::move(*who), proto::Bytes(data, data + ndata), timeout_in({info, ninfo})};
    auto done = std::make_shared<DataCompletion>(function, cbdata);
    to_loop->post([fence = std::move(fence), done]() mutable { receiver->on_fence(std::move(fence), done); });
    std::free(data);
    return PMIX_SUCCESS;
}

/// How many bytes of a group's name count.
constexpr std::size_t max_group_name = 512;

bool is_asked(const pmix_info_t &info) {
    return info.value.type == PMIX_UNDEF || (info.value.type == PMIX_BOOL && info.value.data.flag);
}

pmix_status_t on_group(pmix_group_operation_t operation, char name[], const pmix_proc_t procs[],
                       std::size_t nprocs, const pmix_info_t info[], std::size_t ninfo,
                       pmix_info_cbfunc_t function, void *cbdata) noexcept {
    auto who = rank_set({procs, nprocs});
    if (!who || (operation != PMIX_GROUP_CONSTRUCT && operation != PMIX_GROUP_DESTRUCT))
        return PMIX_ERR_NOT_SUPPORTED;
    Upcalls::Group group;
    group.construct = operation == PMIX_GROUP_CONSTRUCT;
    group.id.assign(name, strnlen(name, max_group_name + 1));
    if (group.id.empty() || group.id.size() > max_group_name) return PMIX_ERR_BAD_PARAM;
    group.who = std::move(*who);
    group.timeout = timeout_in({info, ninfo});
    for (const auto &one : std::span(info, ninfo)) {
        if (PMIX_CHECK_KEY(&one, PMIX_GROUP_ASSIGN_CONTEXT_ID)) group.wants_context = is_asked(one);
        if (!PMIX_CHECK_KEY(&one, PMIX_GROUP_ENDPT_DATA) || one.value.type != PMIX_BYTE_OBJECT) continue;
        const auto *bytes = reinterpret_cast<const std::uint8_t *>(one.value.data.bo.bytes);
        group.data.assign(bytes, bytes + one.value.data.bo.size);
    }
    auto done = std::make_shared<QueryCompletion>(function, cbdata);
    to_loop->post([group = std::move(group), done]() mutable { receiver->on_group(std::move(group), done); });
    return PMIX_SUCCESS;
}

pmix_status_t on_modex(const pmix_proc_t *proc, const pmix_info_t info[], std::size_t ninfo,
                       pmix_modex_cbfunc_t function, void *cbdata) noexcept {
    Upcalls::Modex modex{name_space_of(*proc), proc->rank, timeout_in({info, ninfo})};
    auto done = std::make_shared<DataCompletion>(function, cbdata);
    to_loop->post([modex = std::move(modex), done]() mutable { receiver->on_modex(std::move(modex), done); });
    return PMIX_SUCCESS;
}

/// All ranks of the caller's namespace, or nobody by name.
bool is_whole_world(const pmix_proc_t &caller, std::span<const pmix_proc_t> targets) {
    return std::ranges::all_of(targets, [&](const pmix_proc_t &target) {
        return PMIX_CHECK_NSPACE(target.nspace, caller.nspace) && target.rank == PMIX_RANK_WILDCARD;
    });
}

pmix_status_t on_abort(const pmix_proc_t *proc, void *, int status, const char text[], pmix_proc_t targets[],
                       std::size_t ntargets, pmix_op_cbfunc_t function, void *cbdata) noexcept {
    if (!is_whole_world(*proc, std::span(targets, ntargets))) return PMIX_ERR_NOT_SUPPORTED;
    std::string words = text == nullptr ? "" : std::string(text, strnlen(text, max_text_bytes));
    Upcalls::Abort abort{name_space_of(*proc), proc->rank, status, std::move(words)};
    auto done = std::make_shared<Completion>(function, cbdata);
    to_loop->post([abort = std::move(abort), done]() mutable { receiver->on_abort(std::move(abort), done); });
    return PMIX_SUCCESS;
}

void post_publication(Upcalls::Publication publication, pmix_op_cbfunc_t function, void *cbdata) {
    auto done = std::make_shared<Completion>(function, cbdata);
    to_loop->post([publication = std::move(publication), done]() mutable {
        receiver->on_publication(std::move(publication), done);
    });
}

pmix_status_t on_publish(const pmix_proc_t *proc, const pmix_info_t info[], std::size_t ninfo,
                         pmix_op_cbfunc_t function, void *cbdata) noexcept {
    auto how = directives_in(info, ninfo);
    if (!how) return PMIX_ERR_NOT_SUPPORTED;
    Upcalls::Publication publication;
    publication.change.by = {name_space_of(*proc), proc->rank, {}};
    publication.timeout = how->timeout;
    pmix_status_t status = take_notices(info, ninfo, *how, publication.change);
    if (status != PMIX_SUCCESS) return status;
    post_publication(std::move(publication), function, cbdata);
    return PMIX_SUCCESS;
}

pmix_status_t on_unpublish(const pmix_proc_t *proc, char **keys, const pmix_info_t info[], std::size_t ninfo,
                           pmix_op_cbfunc_t function, void *cbdata) noexcept {
    auto how = directives_in(info, ninfo);
    if (!how) return PMIX_ERR_NOT_SUPPORTED;
    Upcalls::Publication publication;
    publication.change.by = {name_space_of(*proc), proc->rank, {}};
    publication.change.take_down = true;
    publication.change.keys = keys_in(keys);
    publication.change.range = how->range;
    publication.timeout = how->timeout;
    post_publication(std::move(publication), function, cbdata);
    return PMIX_SUCCESS;
}

pmix_status_t on_look_up(const pmix_proc_t *proc, char **keys, const pmix_info_t info[], std::size_t ninfo,
                         pmix_lookup_cbfunc_t function, void *cbdata) noexcept {
    auto how = directives_in(info, ninfo);
    if (!how) return PMIX_ERR_NOT_SUPPORTED;
    Upcalls::LookUp look_up;
    look_up.query.by = {name_space_of(*proc), proc->rank, {}};
    look_up.query.keys = keys_in(keys);
    look_up.query.range = how->range.value_or(NoticeRange::Group);
    look_up.query.wait = how->wait;
    look_up.query.wanted = how->wanted;
    look_up.timeout = how->timeout;
    if (look_up.query.keys.empty()) return PMIX_ERR_BAD_PARAM;
    auto done = std::make_shared<LookUpCompletion>(function, cbdata);
    to_loop->post(
        [look_up = std::move(look_up), done]() mutable { receiver->on_look_up(std::move(look_up), done); });
    return PMIX_SUCCESS;
}

bool is_ours(pmix_status_t code) {
    return code >= DLROVER_PMIX_EVENT_FIRST && code <= DLROVER_PMIX_EVENT_LAST;
}

pmix_status_t on_event(pmix_status_t code, const pmix_proc_t *source, pmix_data_range_t range,
                       pmix_info_t info[], std::size_t ninfo, pmix_op_cbfunc_t, void *) noexcept {
    if (range == PMIX_RANGE_LOCAL || range == PMIX_RANGE_PROC_LOCAL) return PMIX_OPERATION_SUCCEEDED;
    if (range == PMIX_RANGE_RM || is_ours(code)) return PMIX_ERR_NOT_SUPPORTED;
    // By this mark PMIx drops what comes back to the server that it came from, and all of ours have one name.
    std::vector<pmix_info_t> kept;
    std::copy_if(info, info + ninfo, std::back_inserter(kept),
                 [](const auto &one) { return !PMIX_CHECK_KEY(&one, PMIX_EVENT_PROXY); });
    auto infos = pack_infos(kept);
    if (!infos) return PMIX_ERR_BAD_PARAM;
    if (infos->size() > max_info_bytes || kept.size() > max_infos) return PMIX_ERR_OUT_OF_RESOURCE;
    Upcalls::Event event{name_space_of(*source),
                         {code, source->rank, range == PMIX_RANGE_CUSTOM,
                          static_cast<std::uint32_t>(kept.size()), std::move(*infos)}};
    // Answered at once: PMIx 4.2.2 does not live through a later answer to this.
    to_loop->post([event = std::move(event)]() mutable { receiver->on_event(std::move(event)); });
    return PMIX_OPERATION_SUCCEEDED;
}

/// false: it asks for what there is not.
bool take_qualifier(const pmix_info_t &qualifier, Upcalls::Query &query) {
    const pmix_value_t &value = qualifier.value;
    // It is about what the client itself remembers of earlier answers.
    if (PMIX_CHECK_KEY(&qualifier, PMIX_QUERY_REFRESH_CACHE)) return true;
    if (PMIX_CHECK_KEY(&qualifier, PMIX_NSPACE) && value.type == PMIX_STRING &&
        value.data.string != nullptr) {
        query.name_spaces.emplace_back(value.data.string, strnlen(value.data.string, PMIX_MAX_NSLEN));
        return true;
    }
    if (PMIX_CHECK_KEY(&qualifier, PMIX_PROCID) && value.type == PMIX_PROC && value.data.proc != nullptr) {
        query.name_spaces.push_back(name_space_of(*value.data.proc));
        return true;
    }
    return false;
}

pmix_status_t post_status_query(proto::AllocationOrder order, pmix_info_cbfunc_t function, void *cbdata) {
    auto done = std::make_shared<QueryCompletion>(function, cbdata);
    to_loop->post(
        [order = std::move(order), done]() mutable { receiver->on_status_query(std::move(order), done); });
    return PMIX_SUCCESS;
}

pmix_status_t on_query(pmix_proc_t *, pmix_query_t *queries, std::size_t count, pmix_info_cbfunc_t function,
                       void *cbdata) noexcept {
    std::optional<proto::AllocationOrder> order;
    if (auto parsed = parse_status_query(std::span(queries, count), order); parsed != PMIX_SUCCESS)
        return parsed;
    if (order) return post_status_query(std::move(*order), function, cbdata);
    Upcalls::Query query;
    for (const auto &one : std::span(queries, count)) {
        for (const auto &qualifier : std::span(one.qualifiers, one.nqual))
            if (!take_qualifier(qualifier, query)) return PMIX_ERR_NOT_SUPPORTED;
        auto keys = keys_in(one.keys);
        query.keys.insert(query.keys.end(), keys.begin(), keys.end());
    }
    auto done = std::make_shared<QueryCompletion>(function, cbdata);
    to_loop->post([query = std::move(query), done]() mutable { receiver->on_query(std::move(query), done); });
    return PMIX_SUCCESS;
}

pmix_status_t on_allocation(const pmix_proc_t *proc, pmix_alloc_directive_t directive,
                            const pmix_info_t infos[], std::size_t count, pmix_info_cbfunc_t function,
                            void *cbdata) noexcept {
    Upcalls::AllocationRequest request{name_space_of(*proc), proc->rank, {}};
    pmix_status_t status = parse_allocation(directive, std::span(infos, count), request.wanted);
    if (status != PMIX_SUCCESS) return status;
    auto done = std::make_shared<QueryCompletion>(function, cbdata);
    to_loop->post([request = std::move(request), done]() mutable {
        receiver->on_allocation(std::move(request), done);
    });
    return PMIX_SUCCESS;
}

pmix_status_t on_control(const pmix_proc_t *proc, const pmix_proc_t targets[], std::size_t ntargets,
                         const pmix_info_t directives[], std::size_t count, pmix_info_cbfunc_t function,
                         void *cbdata) noexcept {
    if (!is_whole_world(*proc, std::span(targets, ntargets))) return PMIX_ERR_NOT_SUPPORTED;
    Upcalls::ControlRequest request{name_space_of(*proc), proc->rank, {}};
    pmix_status_t status = parse_control(std::span(directives, count), request.wanted);
    if (status != PMIX_SUCCESS) return status;
    auto done = std::make_shared<QueryCompletion>(function, cbdata);
    to_loop->post(
        [request = std::move(request), done]() mutable { receiver->on_control(std::move(request), done); });
    return PMIX_SUCCESS;
}

}  // namespace

pmix_server_module_t make_server_module(EventLoop &loop, Upcalls &upcalls) {
    to_loop = &loop;
    receiver = &upcalls;
    pmix_server_module_t module{};
    module.client_connected2 = on_connected;
    module.client_finalized = on_finalized;
    module.abort = on_abort;
    module.fence_nb = on_fence;
    module.direct_modex = on_modex;
    module.publish = on_publish;
    module.lookup = on_look_up;
    module.unpublish = on_unpublish;
    module.notify_event = on_event;
    module.query = on_query;
    module.allocate = on_allocation;
    module.group = on_group;
    module.job_control = on_control;
    return module;
}

}  // namespace dlrover::pmix
