// SPDX-License-Identifier: Apache-2.0
// Ranks for which others wait: whether they still do something. One that computes, or writes, is only late.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

namespace dlrover::daemon {

class IdleRanks {
  public:
    using Time = std::chrono::microseconds;
    /// How long this rank has done nothing by now, as far as it was looked at. processor: what it and its
    /// descendants have used of the processor; none: it is gone. Less than a twentieth of the time is
    /// nothing: threads that look around now and then.
    Time idle_for(std::uint32_t local_rank, std::optional<Time> processor, Time now);
    void clear() { since_.clear(); }

  private:
    struct Since {
        Time at, processor;
    };
    std::map<std::uint32_t, Since> since_;
};

}  // namespace dlrover::daemon
