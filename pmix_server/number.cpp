// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/number.h"

#include <algorithm>
#include <limits>

namespace dlrover::pmix {
namespace {

std::int64_t clamped(std::uint64_t number) {
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    return static_cast<std::int64_t>(std::min(number, most));
}

}  // namespace

std::optional<std::int64_t> whole_number(const pmix_value_t &value) {
    switch (value.type) {
        case PMIX_INT:
            return value.data.integer;
        case PMIX_INT8:
            return value.data.int8;
        case PMIX_INT16:
            return value.data.int16;
        case PMIX_INT32:
            return value.data.int32;
        case PMIX_INT64:
            return value.data.int64;
        case PMIX_UINT:
            return value.data.uint;
        case PMIX_UINT8:
            return value.data.uint8;
        case PMIX_UINT16:
            return value.data.uint16;
        case PMIX_UINT32:
            return value.data.uint32;
        case PMIX_UINT64:
            return clamped(value.data.uint64);
        case PMIX_SIZE:
            return clamped(value.data.size);
        case PMIX_TIME:
            return value.data.time;
        default:
            return std::nullopt;
    }
}

std::optional<std::chrono::seconds> timeout_in(std::span<const pmix_info_t> infos) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    for (const auto &one : infos) {
        auto number = PMIX_CHECK_KEY(&one, PMIX_TIMEOUT) ? whole_number(one.value) : std::nullopt;
        if (number && *number > 0) return std::chrono::seconds(std::min(*number, most));
    }
    return std::nullopt;
}

}  // namespace dlrover::pmix
