// SPDX-License-Identifier: Apache-2.0
// Ranks for which others wait: whether they still do something. One that computes, reads or writes is only
// late.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "base/process_tree.h"

namespace dlrover::daemon {

class IdleRanks {
  public:
    using Time = std::chrono::microseconds;
    /// How long this rank has done nothing by now, as far as it was looked at: with its descendants it has
    /// used less than a hundredth of a processor and read and written less than 64 KiB a second, which
    /// threads that look around now and then do, and none sleeps in the kernel.
    Time idle_for(std::uint32_t local_rank, const Activity &activity, Time now);
    /// What was seen of others is worth nothing when they are looked at again.
    void keep_only(const std::vector<std::uint16_t> &local_ranks);
    void clear() { since_.clear(); }

  private:
    struct Since {
        Time at;
        Activity done;
    };
    std::map<std::uint32_t, Since> since_;
};

}  // namespace dlrover::daemon
