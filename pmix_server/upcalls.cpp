// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/upcalls.h"

#include <algorithm>
#include <cstdlib>
#include <span>

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

std::optional<std::chrono::seconds> timeout_in(const pmix_info_t info[], std::size_t count) {
    for (const auto &one : std::span(info, count))
        if (PMIX_CHECK_KEY(&one, PMIX_TIMEOUT) && one.value.type == PMIX_INT && one.value.data.integer > 0)
            return std::chrono::seconds(one.value.data.integer);
    return std::nullopt;
}

// None of these lets an exception through to PMIx: where memory is at its end, this program is.

pmix_status_t on_connected(const pmix_proc_t *, void *, pmix_info_t[], std::size_t, pmix_op_cbfunc_t,
                           void *) noexcept {
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
    Upcalls::Fence fence{std::move(*who), proto::Bytes(data, data + ndata), timeout_in(info, ninfo)};
    auto done = std::make_shared<DataCompletion>(function, cbdata);
    to_loop->post([fence = std::move(fence), done]() mutable { receiver->on_fence(std::move(fence), done); });
    std::free(data);
    return PMIX_SUCCESS;
}

pmix_status_t on_modex(const pmix_proc_t *proc, const pmix_info_t info[], std::size_t ninfo,
                       pmix_modex_cbfunc_t function, void *cbdata) noexcept {
    Upcalls::Modex modex{name_space_of(*proc), proc->rank, timeout_in(info, ninfo)};
    auto done = std::make_shared<DataCompletion>(function, cbdata);
    to_loop->post([modex = std::move(modex), done]() mutable { receiver->on_modex(std::move(modex), done); });
    return PMIX_SUCCESS;
}

pmix_status_t on_abort(const pmix_proc_t *proc, void *, int status, const char text[], pmix_proc_t[],
                       std::size_t, pmix_op_cbfunc_t function, void *cbdata) noexcept {
    std::string words = text == nullptr ? "" : std::string(text, strnlen(text, max_text_bytes));
    Upcalls::Abort abort{name_space_of(*proc), proc->rank, status, std::move(words)};
    auto done = std::make_shared<Completion>(function, cbdata);
    to_loop->post([abort = std::move(abort), done]() mutable { receiver->on_abort(std::move(abort), done); });
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
    return module;
}

}  // namespace dlrover::pmix
