// SPDX-License-Identifier: Apache-2.0
// Whether the daemon's own thread stands still: others take its node for lost then, and nobody there knows
// why.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace dlrover::daemon {

/// What a thread did with its time.
struct ThreadTime {
    std::chrono::microseconds ran{0};     ///< on a processor
    std::chrono::microseconds waited{0};  ///< for one
};

/// The calling thread's, of /proc/thread-self/schedstat; none where the kernel does not say.
std::optional<ThreadTime> own_thread_time();

/// Pure.
class Standstill {
  public:
    using Time = std::chrono::microseconds;
    /// look() is to be called so often.
    static constexpr Time interval = std::chrono::milliseconds(500);

    /// Where the last call was much longer ago: how long, and what held it up. What comes within a minute of
    /// that is told at its end, in one. `now`: of a steady clock.
    std::optional<std::string> look(Time now, std::optional<ThreadTime> used);

  private:
    struct Look {
        Time at;
        std::optional<ThreadTime> used;
    };
    std::optional<std::string> sum_up(Time now);
    std::optional<Look> last_;
    std::optional<Time> told_at_;
    std::uint64_t untold_ = 0;  ///< since then
    Time longest_{0};           ///< of those
    std::string longest_text_;
};

}  // namespace dlrover::daemon
