// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/event_loop.h"
#include "daemon/random_bytes.h"

namespace dlrover::daemon {

/// Until what failed is tried again: twice as long each time, and not when all other nodes do.
class Backoff {
  public:
    Backoff(EventLoop::Time shortest, EventLoop::Time longest) : shortest_(shortest), longest_(longest) {}
    /// Half to one and a half times the pause that is due.
    EventLoop::Time next() {
        pause_ = failing() ? std::min(2 * pause_, longest_) : shortest_;
        std::uint64_t random = 0;
        if (auto bytes = random_bytes(sizeof random); !bytes.empty())
            std::memcpy(&random, bytes.data(), sizeof random);
        auto span = static_cast<std::uint64_t>(pause_.count()) + 1;
        return pause_ / 2 + EventLoop::Time(static_cast<EventLoop::Time::rep>(random % span));
    }
    bool failing() const { return pause_ != EventLoop::Time(0); }
    void reset() { pause_ = EventLoop::Time(0); }

  private:
    EventLoop::Time shortest_, longest_, pause_{0};
};

}  // namespace dlrover::daemon
