// SPDX-License-Identifier: Apache-2.0
// Answers on their way from the threads that work to the one that speaks with the daemon.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

namespace dlrover::helper {

/// An order's number counts for the connection that it came on: a daemon that has been restarted begins anew.
struct Ticket {
    std::uint64_t connection = 0, order = 0;
    friend bool operator==(const Ticket &, const Ticket &) = default;
};

/// Thread: any. Bounded by the orders there may be.
class Outbox {
  public:
    struct Answer {
        std::uint64_t connection = 0;
        proto::local::MessageT message;
    };
    static Result<Outbox> create();

    /// Nobody listens to an answer whose connection is gone: it is dropped when its turn comes.
    template <typename BodyT>
    void put(const Ticket &ticket, BodyT body) {
        body.order = ticket.order;
        push({ticket.connection, proto::make_local(0, std::move(body))});
    }
    std::vector<Answer> take();
    /// Readable while there are answers.
    int fd() const noexcept { return wake_.get(); }

  private:
    explicit Outbox(UniqueFd wake) : wake_(std::move(wake)), mutex_(std::make_unique<std::mutex>()) {}
    void push(Answer answer);

    UniqueFd wake_;
    std::unique_ptr<std::mutex> mutex_;
    std::vector<Answer> answers_;
};

}  // namespace dlrover::helper
