// SPDX-License-Identifier: Apache-2.0
// Tells the daemon how much of one object storage has taken.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/ids.h"
#include "helper/outbox.h"

namespace dlrover::writer {

/// Thread of add(): any.
class ObjectProgress {
  public:
    static constexpr std::chrono::milliseconds pause{250};  ///< between two words

    /// Of an object of so many bytes.
    ObjectProgress(helper::Outbox &outbox, helper::Ticket ticket, Rank rank, std::uint64_t bytes)
        : outbox_(outbox), ticket_(ticket), rank_(rank), bytes_(bytes), told_(Clock::now()) {}
    ObjectProgress(const ObjectProgress &) = delete;
    ObjectProgress &operator=(const ObjectProgress &) = delete;

    void add(std::uint64_t bytes);

  private:
    using Clock = std::chrono::steady_clock;

    helper::Outbox &outbox_;
    const helper::Ticket ticket_;
    const Rank rank_;
    const std::uint64_t bytes_;
    std::atomic<std::uint64_t> written_{0};
    std::atomic<Clock::time_point> told_;
};

}  // namespace dlrover::writer
