// SPDX-License-Identifier: Apache-2.0
#include "agent/log_plan.h"

#include <algorithm>

#include "base/units.h"

namespace dlrover::agent {
namespace {

constexpr unsigned most_local_ranks = 65535;

}  // namespace

Result<StdMask> StdMask::parse(std::string_view text) {
    StdMask mask;
    if (text.find(':') == std::string_view::npos) {
        auto all = parse_uint(text, 0, 3);
        if (!all) return all.take_status();
        mask.all_ = static_cast<unsigned>(*all);
        return mask;
    }
    while (!text.empty()) {
        std::string_view item = text.substr(0, text.find(','));
        text.remove_prefix(std::min(item.size() + 1, text.size()));
        std::size_t colon = item.find(':');
        auto rank = parse_uint(item.substr(0, colon), 0, most_local_ranks);
        if (!rank) return rank.take_status();
        auto bits = parse_uint(colon == std::string_view::npos ? "" : item.substr(colon + 1), 0, 3);
        if (!bits) return bits.take_status();
        mask.by_rank_[static_cast<unsigned>(*rank)] = static_cast<unsigned>(*bits);
    }
    return mask;
}

unsigned StdMask::of(LocalRank rank) const {
    auto at = by_rank_.find(rank.value());
    return at == by_rank_.end() ? all_ : at->second;
}

bool StdMask::any() const {
    return all_ != 0 ||
           std::any_of(by_rank_.begin(), by_rank_.end(), [](const auto &entry) { return entry.second != 0; });
}

}  // namespace dlrover::agent
