// SPDX-License-Identifier: Apache-2.0
// What a node can do in a moment: arithmetic whose outcome is known, and bytes for another node.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "ckpt/mapping.h"
#include "helper/outbox.h"

namespace dlrover::mover {

struct MeasureOrder {
    helper::Ticket ticket;
    std::vector<ckpt::SegmentGrant> into;  ///< filled with bytes that look random
    std::uint64_t bytes = 0;
    bool work = false;
    std::chrono::steady_clock::time_point deadline;
};

/// Products of matrices of a fixed size, on this thread: some 100 ms. corrupt: the processor has
/// miscalculated.
Result<std::chrono::microseconds> do_work(std::chrono::steady_clock::time_point deadline);

/// One at a time, on a thread of its own, which its end waits for.
class Measurer {
  public:
    explicit Measurer(helper::Outbox &outbox) : outbox_(outbox) {}
    /// NodeMeasured follows once.
    void begin(MeasureOrder order);

  private:
    void answer(const helper::Ticket &ticket, const Result<std::uint64_t> &xxh3,
                std::chrono::microseconds work);
    helper::Outbox &outbox_;
    std::atomic<bool> busy_{false};
    std::jthread thread_;
};

}  // namespace dlrover::mover
