// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/status.h"

namespace dlrover::daemon {

/// How much arena memory each user holds, and what the node can still give.
class MemoryBudget {
  public:
    struct Limits {
        std::uint64_t user_quota_bytes = 0;
        std::uint64_t floor_bytes = 0;  ///< of MemAvailable
    };
    /// `available_bytes`: MemAvailable, read anew at each call.
    MemoryBudget(Limits limits, std::function<std::uint64_t()> available_bytes)
        : limits_(limits), available_bytes_(std::move(available_bytes)) {}

    /// resource_exhausted: beyond the quota, or the node would fall below its floor; the text says what is
    /// needed and what there is.
    Status check(std::uint32_t uid, std::uint64_t bytes) const;
    /// Without a check: also what a former daemon granted counts. `without_pages`: not in MemAvailable yet.
    void add(std::uint32_t uid, std::uint64_t bytes, bool without_pages);
    void pages_ready(std::uint64_t bytes);
    void remove(std::uint32_t uid, std::uint64_t bytes, std::uint64_t without_pages_bytes);
    std::uint64_t held_bytes(std::uint32_t uid) const;

  private:
    Limits limits_;
    std::function<std::uint64_t()> available_bytes_;
    std::map<std::uint32_t, std::uint64_t> held_;
    std::uint64_t without_pages_ = 0;
};

}  // namespace dlrover::daemon
