// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/allocation.h"

#include <cstring>
#include <optional>
#include <string_view>

#include "pmix_server/number.h"

namespace dlrover::pmix {
namespace {

constexpr std::int64_t most_nodes = 16384;

/// Of what is to be allocated.
bool is_resource(const pmix_info_t &info) {
    std::string_view key(info.key, strnlen(info.key, PMIX_MAX_KEYLEN));
    return key.starts_with("pmix.alloc.") && key != PMIX_ALLOC_REQ_ID;
}

}  // namespace

pmix_status_t parse_allocation(pmix_alloc_directive_t directive, std::span<const pmix_info_t> infos,
                               Allocation &out) {
    if (directive != PMIX_ALLOC_EXTEND && directive != PMIX_ALLOC_RELEASE) return PMIX_ERR_NOT_SUPPORTED;
    std::optional<std::int64_t> nodes;
    for (const auto &info : infos) {
        if (PMIX_CHECK_KEY(&info, PMIX_ALLOC_NUM_NODES)) {
            nodes = whole_number(info.value);
            if (!nodes) return PMIX_ERR_BAD_PARAM;
        } else if (is_resource(info)) {
            return PMIX_ERR_NOT_SUPPORTED;
        }
    }
    if (!nodes || *nodes <= 0 || *nodes > most_nodes) return PMIX_ERR_BAD_PARAM;
    auto number = static_cast<std::uint32_t>(*nodes);
    out = directive == PMIX_ALLOC_EXTEND ? Allocation{number, 0} : Allocation{0, number};
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

}  // namespace dlrover::pmix
