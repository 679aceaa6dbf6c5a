// SPDX-License-Identifier: Apache-2.0
#include "daemon/idle_ranks.h"

namespace dlrover::daemon {

IdleRanks::Time IdleRanks::idle_for(std::uint32_t local_rank, std::optional<Time> processor, Time now) {
    constexpr int least_share = 20;
    Time used = processor.value_or(Time(0));
    auto [it, is_new] = since_.try_emplace(local_rank, Since{now, used});
    Since &since = it->second;
    bool works = (used - since.processor) * least_share > now - since.at;
    if (works || used < since.processor) since = {now, used};
    return now - since.at;
}

}  // namespace dlrover::daemon
