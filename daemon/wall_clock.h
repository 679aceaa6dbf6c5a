// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace dlrover::daemon {

/// Microseconds since the epoch; for people's eyes, and beside times that Slurm gives; for no other
/// decisions.
inline std::int64_t wall_clock_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

}  // namespace dlrover::daemon
