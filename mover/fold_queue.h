// SPDX-License-Identifier: Apache-2.0
// The thread that adds parts of a code up: to parities, and to objects that nobody has any more.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "ckpt/mapping.h"
#include "ckpt/object_check.h"
#include "helper/outbox.h"

namespace dlrover::mover {

struct FoldOrder {
    helper::Ticket ticket;
    std::vector<ckpt::SegmentGrant> into, from;
    std::uint64_t sum_bytes = 0;  ///< of `into` hold the sum so far
    std::uint64_t bytes = 0;      ///< of `from`
    std::uint8_t factor = 0;
    bool last = false;  ///< the sum is told, or is this object
    std::optional<ckpt::KnownObject> object;
    std::chrono::steady_clock::time_point deadline;
};

/// Adds one part. `stop`: as soon as may be. The checksum of the sum, if it was the last part and no object.
Result<std::uint64_t> fold_part(FoldOrder order, const std::atomic<bool> &stop);

/// Thread of the members: any. Lives as long as the process.
class FoldQueue {
  public:
    static constexpr std::size_t max_waiting = 256;

    explicit FoldQueue(helper::Outbox &outbox) : outbox_(outbox) {}
    FoldQueue(const FoldQueue &) = delete;
    FoldQueue &operator=(const FoldQueue &) = delete;
    void start();

    /// False: too many wait.
    [[nodiscard]] bool submit(FoldOrder order);
    /// Ends it wherever it is. Answered.
    void cancel(const helper::Ticket &ticket);
    /// Nobody listens to the answers. Returns when nothing is written any more: the memory may be another's
    /// then.
    void cancel_all();

  private:
    void run();
    FoldOrder next();
    void answer(const helper::Ticket &ticket, const Result<std::uint64_t> &sum, std::uint64_t time_us);

    helper::Outbox &outbox_;
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    std::deque<FoldOrder> waiting_;
    helper::Ticket in_hand_;
    bool busy_ = false;
    std::atomic<bool> stop_{false};  ///< what is in hand
};

}  // namespace dlrover::mover
