// SPDX-License-Identifier: Apache-2.0
// Which nodes objects go to and come from by UCX: not those with which it has failed lately (no memory may be
// locked, say, or the fabric is broken while TCP is not). Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "base/ids.h"

namespace dlrover::daemon {

class UcxTrust {
  public:
    using Time = std::chrono::microseconds;
    static constexpr std::uint32_t failures_in_a_row = 2;
    static constexpr Time pause = std::chrono::minutes(10);

    bool trusts(NodeIndex node, Time now) const {
        auto it = nodes_.find(node);
        return it == nodes_.end() || it->second.failures < failures_in_a_row || now >= it->second.until;
    }
    void worked(NodeIndex node) { nodes_.erase(node); }
    /// True: from now on that node is not trusted, for a pause; after it one more failure begins the next.
    bool failed(NodeIndex node, Time now) {
        Trouble &trouble = nodes_[node];
        if (++trouble.failures < failures_in_a_row || now < trouble.until) return false;
        trouble.until = now + pause;
        return true;
    }

  private:
    struct Trouble {
        std::uint32_t failures = 0;
        Time until{0};
    };
    std::map<NodeIndex, Trouble> nodes_;
};

}  // namespace dlrover::daemon
