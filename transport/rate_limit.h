// SPDX-License-Identifier: Apache-2.0
// How many bytes a second may go, of all that share a limit. Thread of the members: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace dlrover::transport {

class RateLimit {
  public:
    using Time = std::chrono::steady_clock::time_point;
    /// 0: no limit. A pause does not save up for a burst.
    explicit RateLimit(std::uint64_t bytes_per_second) : rate_(bytes_per_second) {}
    RateLimit(const RateLimit &) = delete;
    RateLimit &operator=(const RateLimit &) = delete;

    /// When `bytes` may be sent that are asked for now; they count as sent.
    Time take(std::uint64_t bytes, Time now);

  private:
    const std::uint64_t rate_;
    std::mutex mutex_;
    Time free_{};  ///< when what was taken so far has been sent
};

}  // namespace dlrover::transport
