// SPDX-License-Identifier: Apache-2.0
// The thread that puts objects on storage, one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "helper/outbox.h"
#include "writer/store_order.h"

namespace dlrover::writer {

using helper::Outbox;

/// Thread of the members: any. Lives as long as the process: a call into storage that hangs is not waited
/// for.
class StoreQueue {
  public:
    static constexpr std::size_t max_waiting = 256;
    static constexpr std::uint64_t max_frame_bytes = 48u << 20;  ///< kept for the next checkpoint

    explicit StoreQueue(Outbox &outbox) : outbox_(outbox) {}
    StoreQueue(const StoreQueue &) = delete;
    StoreQueue &operator=(const StoreQueue &) = delete;
    void start();

    /// False: too many wait.
    [[nodiscard]] bool submit(StoreOrder order);
    /// What is not begun is not done; what is begun leaves no file, unless that is there already. Answered.
    void cancel(const Ticket &ticket);
    /// Not answered: nobody listens.
    void cancel_all();

  private:
    void run();
    StoreOrder next();
    void answer(const StoreOrder &order, const Result<std::uint64_t> &stored, std::uint64_t time_us);

    Outbox &outbox_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<StoreOrder> waiting_;
    Ticket in_hand_;
    std::shared_ptr<std::atomic<bool>> in_hand_cancelled_;
};

}  // namespace dlrover::writer
