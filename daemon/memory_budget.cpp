// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory_budget.h"

#include <algorithm>

#include "base/units.h"

namespace dlrover::daemon {

std::uint64_t MemoryBudget::held_bytes(std::uint32_t uid) const {
    auto it = held_.find(uid);
    return it == held_.end() ? 0 : it->second;
}

Status MemoryBudget::check(std::uint32_t uid, std::uint64_t bytes) const {
    std::uint64_t held = held_bytes(uid);
    if (bytes > limits_.user_quota_bytes || held > limits_.user_quota_bytes - bytes)
        return Status(Code::resource_exhausted,
                      "checkpoints need " + format_size_bytes(bytes) + " more on this node, you hold " +
                          format_size_bytes(held) + " of your quota of " +
                          format_size_bytes(limits_.user_quota_bytes) + " (memory.user_quota)");
    std::uint64_t available = available_bytes_();
    std::uint64_t taken = limits_.floor_bytes + without_pages_;
    std::uint64_t free = available > taken ? available - taken : 0;
    if (bytes > free)
        return Status(Code::resource_exhausted, "checkpoints need " + format_size_bytes(bytes) +
                                                    " more on this node, which can give " +
                                                    format_size_bytes(free) + " (memory.available_floor)");
    return {};
}

void MemoryBudget::add(std::uint32_t uid, std::uint64_t bytes, bool without_pages) {
    held_[uid] += bytes;
    if (without_pages) without_pages_ += bytes;
}

void MemoryBudget::pages_ready(std::uint64_t bytes) {
    without_pages_ -= std::min(without_pages_, bytes);
}

void MemoryBudget::remove(std::uint32_t uid, std::uint64_t bytes, std::uint64_t without_pages_bytes) {
    pages_ready(without_pages_bytes);
    auto it = held_.find(uid);
    if (it == held_.end()) return;
    it->second -= std::min(it->second, bytes);
    if (it->second == 0) held_.erase(it);
}

}  // namespace dlrover::daemon
