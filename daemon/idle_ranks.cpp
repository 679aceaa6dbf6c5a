// SPDX-License-Identifier: Apache-2.0
#include "daemon/idle_ranks.h"

#include <algorithm>

namespace dlrover::daemon {
namespace {

constexpr int least_share = 100;
constexpr double least_bytes_a_second = 64 << 10;

bool works(const Activity &before, const Activity &now, IdleRanks::Time passed) {
    double bytes = static_cast<double>(now.bytes) - static_cast<double>(before.bytes);
    return now.in_kernel || (now.processor - before.processor) * least_share > passed ||
           bytes > least_bytes_a_second * std::chrono::duration<double>(passed).count();
}

}  // namespace

IdleRanks::Time IdleRanks::idle_for(std::uint32_t local_rank, const Activity &activity, Time now) {
    auto [it, is_new] = since_.try_emplace(local_rank, Since{now, activity});
    Since &since = it->second;
    bool is_other = activity.processor < since.done.processor;  // another process
    if (is_new || is_other || works(since.done, activity, now - since.at)) since = {now, activity};
    return now - since.at;
}

void IdleRanks::keep_only(const std::vector<std::uint16_t> &local_ranks) {
    std::erase_if(since_, [&](const auto &one) {
        return std::ranges::find(local_ranks, one.first) == local_ranks.end();
    });
}

}  // namespace dlrover::daemon
