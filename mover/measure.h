// SPDX-License-Identifier: Apache-2.0
// What a node can do in a moment: arithmetic whose outcome is known, and bytes for another node.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ckpt/mapping.h"
#include "helper/outbox.h"

namespace dlrover::mover {

struct MeasureOrder {
    helper::Ticket ticket;
    std::vector<ckpt::SegmentGrant> into;  ///< filled with bytes that look random
    std::uint64_t bytes = 0;
    bool work = false, gpus = false;
    std::chrono::steady_clock::time_point deadline;
};

/// Products of matrices of a fixed size, on this thread: some 100 ms. corrupt: the processor has
/// miscalculated.
Result<std::chrono::microseconds> do_work(std::chrono::steady_clock::time_point deadline);

struct WorkDone {
    std::chrono::microseconds time{0};
    std::string note;  ///< of GPUs; may be empty
};
/// do_work(), and then, if asked for, that of the step's GPUs (gpu_check.h). The time is the processor's:
/// GPUs of different nodes may be of different kinds. corrupt: this node is not to be used.
Result<WorkDone> do_all_work(bool gpus, std::chrono::steady_clock::time_point deadline);

/// One at a time, on a thread of its own, which its end waits for; one more waits for that, the newest.
class Measurer {
  public:
    explicit Measurer(helper::Outbox &outbox) : outbox_(outbox) {}
    /// NodeMeasured follows once.
    void begin(MeasureOrder order);

  private:
    void work(MeasureOrder order);
    void measure(MeasureOrder &order);
    void refuse(const helper::Ticket &ticket, Status why, bool unfit = false);

    helper::Outbox &outbox_;
    std::mutex mutex_;
    // Guarded by mutex_:
    bool busy_ = false;
    std::optional<MeasureOrder> next_;

    std::jthread thread_;
};

}  // namespace dlrover::mover
