// SPDX-License-Identifier: Apache-2.0
#include "ckpt/retention.h"

#include <algorithm>

namespace dlrover::ckpt {

std::vector<CheckpointId> checkpoints_to_remove(const RetentionPolicy &policy,
                                                std::span<const CheckpointId> complete,
                                                std::span<const CheckpointId> incomplete,
                                                std::span<const CheckpointId> in_use) {
    std::vector<CheckpointId> newest_first(complete.begin(), complete.end()), removed;
    if (newest_first.empty()) return removed;
    std::sort(newest_first.rbegin(), newest_first.rend());
    auto used = [&](const CheckpointId &id) {
        return std::find(in_use.begin(), in_use.end(), id) != in_use.end();
    };
    auto wanted = [&](const CheckpointId &id) {
        return policy.keep_every != 0 && id.step.value() % policy.keep_every == 0;
    };
    for (std::size_t i = policy.keep_last; i < newest_first.size() && policy.keep_last != 0; ++i)
        if (!wanted(newest_first[i]) && !used(newest_first[i])) removed.push_back(newest_first[i]);
    for (const CheckpointId &id : incomplete)
        if (id < newest_first.front() && !used(id)) removed.push_back(id);
    std::sort(removed.begin(), removed.end());
    return removed;
}

}  // namespace dlrover::ckpt
