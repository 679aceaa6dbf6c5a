// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/allocation.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/units.h"
#include "pmix_server/number.h"

namespace dlrover::pmix {
namespace {

using proto::AllocationOrder;
using proto::AllocationState;

constexpr std::int64_t most_nodes = proto::most_allocated_nodes;
constexpr std::size_t longest_text = 1024;

/// What may be said of an allocation, as it was said.
struct Terms {
    std::optional<std::int64_t> nodes, seconds;
    std::optional<std::string> id, label, queue;
    bool others = false;  ///< of which nothing is known here
};

std::optional<std::string> text_in(const pmix_value_t &value) {
    if (value.type != PMIX_STRING || value.data.string == nullptr) return std::nullopt;
    return std::string(value.data.string, strnlen(value.data.string, longest_text));
}

/// Of what is to be allocated.
bool is_resource(const pmix_info_t &info) {
    return std::string_view(info.key, strnlen(info.key, PMIX_MAX_KEYLEN)).starts_with("pmix.alloc.");
}

/// false: a value is of another kind.
bool take_term(const pmix_info_t &info, Terms &out) {
    auto take = [&info](auto &term, auto value) { return (term = value(info.value)).has_value(); };
    if (PMIX_CHECK_KEY(&info, PMIX_ALLOC_NUM_NODES)) return take(out.nodes, whole_number);
    if (PMIX_CHECK_KEY(&info, PMIX_ALLOC_TIME)) return take(out.seconds, whole_number);
    if (PMIX_CHECK_KEY(&info, PMIX_ALLOC_ID)) return take(out.id, text_in);
    if (PMIX_CHECK_KEY(&info, PMIX_ALLOC_REQ_ID)) return take(out.label, text_in);
    if (PMIX_CHECK_KEY(&info, PMIX_ALLOC_QUEUE)) return take(out.queue, text_in);
    out.others = out.others || is_resource(info);
    return true;
}

bool is_number_of_nodes(const std::optional<std::int64_t> &nodes) {
    return nodes && *nodes > 0 && *nodes <= most_nodes;
}

std::optional<AllocationOrder> order_about(AllocationOrder::Verb verb, const std::string &id) {
    auto number = parse_uint(id, 1, UINT32_MAX - 2);
    if (!number) return std::nullopt;
    AllocationOrder order;
    order.verb = verb;
    order.allocation = JobId(static_cast<std::uint32_t>(*number));
    return order;
}

pmix_status_t parse_new(const Terms &terms, Allocation &out) {
    if (terms.others || terms.id) return PMIX_ERR_NOT_SUPPORTED;
    bool timed = terms.seconds.value_or(1) > 0;
    bool named = (!terms.label || proto::is_allocation_label(*terms.label)) &&
                 (!terms.queue || proto::is_partition(*terms.queue));
    if (!is_number_of_nodes(terms.nodes) || !timed || !named) return PMIX_ERR_BAD_PARAM;
    AllocationOrder order;
    order.nodes = static_cast<std::uint32_t>(*terms.nodes);
    if (terms.seconds)
        order.seconds = static_cast<std::uint32_t>(std::min<std::int64_t>(*terms.seconds, UINT32_MAX));
    order.partition = terms.queue.value_or("");
    order.label = terms.label.value_or("");
    out = {0, 0, std::move(order)};
    return PMIX_SUCCESS;
}

pmix_status_t parse_release(const Terms &terms, Allocation &out) {
    if (terms.nodes) return PMIX_ERR_BAD_PARAM;
    auto order = order_about(AllocationOrder::Verb::release, *terms.id);
    if (!order) return PMIX_ERR_BAD_PARAM;
    out = {0, 0, std::move(order)};
    return PMIX_SUCCESS;
}

bool asks_for_status(const pmix_query_t &query) {
    for (char **key = query.keys; key != nullptr && *key != nullptr; ++key)
        if (std::string_view(*key) == PMIX_QUERY_ALLOC_STATUS) return true;
    return false;
}

std::string describe(const AllocationState &state) {
    using Stage = AllocationState::Stage;
    switch (state.stage) {
        case Stage::waiting:
            return state.words.empty() ? "waiting" : "waiting: " + state.words;
        case Stage::running:
            return "running: " + state.words;
        case Stage::ended:
            return "ended";
    }
    return {};
}

}  // namespace

pmix_status_t parse_allocation(pmix_alloc_directive_t directive, std::span<const pmix_info_t> infos,
                               Allocation &out) {
    bool makes = directive == PMIX_ALLOC_NEW, fewer = directive == PMIX_ALLOC_RELEASE;
    if (!makes && !fewer && directive != PMIX_ALLOC_EXTEND) return PMIX_ERR_NOT_SUPPORTED;
    Terms terms;
    for (const auto &info : infos)
        if (!take_term(info, terms)) return PMIX_ERR_BAD_PARAM;
    if (makes) return parse_new(terms, out);
    if (terms.others || terms.seconds || terms.queue) return PMIX_ERR_NOT_SUPPORTED;
    if (terms.id) return fewer ? parse_release(terms, out) : PMIX_ERR_NOT_SUPPORTED;
    if (!is_number_of_nodes(terms.nodes)) return PMIX_ERR_BAD_PARAM;
    auto number = static_cast<std::uint32_t>(*terms.nodes);
    out = fewer ? Allocation{0, number} : Allocation{number, 0};
    return PMIX_SUCCESS;
}

pmix_status_t allocation_status(proto::local::ScaleState state, const Allocation &asked) {
    using State = proto::local::ScaleState;
    switch (state) {
        case State::Taken:
            return PMIX_SUCCESS;
        case State::OutOfLimits:
            return asked.more > 0 ? PMIX_ERR_OUT_OF_RESOURCE : PMIX_ERR_BAD_PARAM;
        case State::Unable:
            return PMIX_ERR_NOT_SUPPORTED;
        case State::NotNow:
        case State::Unknown:
            return PMIX_ERR_RESOURCE_BUSY;
    }
    return PMIX_ERROR;
}

pmix_status_t parse_status_query(std::span<const pmix_query_t> queries,
                                 std::optional<proto::AllocationOrder> &out) {
    if (std::ranges::none_of(queries, asks_for_status)) return PMIX_SUCCESS;
    const pmix_query_t &query = queries.front();
    if (queries.size() != 1 || query.keys[1] != nullptr) return PMIX_ERR_NOT_SUPPORTED;
    std::optional<std::string> id;
    for (const auto &one : std::span(query.qualifiers, query.nqual)) {
        if (PMIX_CHECK_KEY(&one, PMIX_ALLOC_ID))
            id = text_in(one.value).value_or("");
        else if (!PMIX_CHECK_KEY(&one, PMIX_QUERY_REFRESH_CACHE))
            return PMIX_ERR_NOT_SUPPORTED;
    }
    out = order_about(AllocationOrder::Verb::status, id.value_or(""));
    return out ? PMIX_SUCCESS : PMIX_ERR_BAD_PARAM;
}

pmix_status_t refusal_status(Code code) {
    switch (code) {
        case Code::ok:
            return PMIX_SUCCESS;
        case Code::invalid_argument:
        case Code::already_exists:
        case Code::stale:
            return PMIX_ERR_JOB_ALLOC_FAILED;
        case Code::not_found:
            return PMIX_ERR_NOT_FOUND;
        case Code::permission_denied:
            return PMIX_ERR_NO_PERMISSIONS;
        case Code::unavailable:
            return PMIX_ERR_RESOURCE_BUSY;
        case Code::timeout:
            return PMIX_ERR_TIMEOUT;
        case Code::resource_exhausted:
            return PMIX_ERR_OUT_OF_RESOURCE;
        case Code::unsupported:
            return PMIX_ERR_NOT_SUPPORTED;
        case Code::corrupt:
        case Code::system:
        case Code::internal:
            return PMIX_ERROR;
    }
    return PMIX_ERROR;
}

InfoList answer_of(const proto::AllocationOrder &order, const proto::AllocationState &state) {
    InfoList infos;
    if (order.verb == AllocationOrder::Verb::status) infos.add(PMIX_QUERY_ALLOC_STATUS, describe(state));
    if (order.verb != AllocationOrder::Verb::create) return infos;
    infos.add(PMIX_ALLOC_ID, std::to_string(state.job.value()));
    if (!order.label.empty()) infos.add(PMIX_ALLOC_REQ_ID, order.label);
    if (state.stage == AllocationState::Stage::running) infos.add(PMIX_ALLOC_NODE_LIST, state.words);
    return infos;
}

}  // namespace dlrover::pmix
