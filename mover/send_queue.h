// SPDX-License-Identifier: Apache-2.0
// The thread that sends objects, one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "ckpt/mapping.h"
#include "ckpt/object_check.h"
#include "helper/outbox.h"
#include "transport/bulk_sender.h"

namespace dlrover::mover {

struct SendOrder {
    helper::Ticket ticket;
    std::vector<ckpt::SegmentGrant> segments;
    std::uint64_t bytes = 0;
    std::optional<ckpt::KnownObject> object;  ///< what it has to be; none: the other side knows
    transport::BulkJob job;                   ///< all but the memory; can be called off
};

/// Thread of the members: any. Lives as long as the process.
class SendQueue {
  public:
    static constexpr std::size_t max_waiting = 256;

    explicit SendQueue(helper::Outbox &outbox) : outbox_(outbox) {}
    SendQueue(const SendQueue &) = delete;
    SendQueue &operator=(const SendQueue &) = delete;
    void start();

    /// False: too many wait.
    [[nodiscard]] bool submit(SendOrder order);
    /// Ends it wherever it is; a look at this node's own memory goes on to its end. Answered.
    void cancel(const helper::Ticket &ticket);
    /// Not answered: nobody listens.
    void cancel_all();

  private:
    void run();
    SendOrder next();
    void answer(const helper::Ticket &ticket, const Status &status, std::uint64_t time_us,
                bool damaged = false);

    helper::Outbox &outbox_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<SendOrder> waiting_;
    helper::Ticket in_hand_;
    std::shared_ptr<transport::Cancellation> in_hand_cancellation_;
};

}  // namespace dlrover::mover
