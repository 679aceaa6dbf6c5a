// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace dlrover::agent {

/// How often the kernel killed for memory in this process's cgroup (v2 or v1).
class OomCounter {
  public:
    /// Counts from now on.
    OomCounter();
    /// Kills since the last call.
    std::uint64_t newly_killed();

  private:
    std::uint64_t read() const;
    std::string path_;  // empty: no such cgroup
    std::uint64_t seen_ = 0;
};

}  // namespace dlrover::agent
