// SPDX-License-Identifier: Apache-2.0
// A helper's connection with its daemon: orders come, answers go, and it comes back for as long as it lives.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "helper/outbox.h"
#include "proto/local_client.h"

namespace dlrover::helper {

inline constexpr std::chrono::milliseconds answer_limit{5000};

/// Called on the session's thread.
struct SessionHooks {
    /// Says who this is, on a new connection, and takes the welcome.
    std::function<Status(proto::LocalClient &client)> greet;
    std::function<void(proto::LocalMessage push)> take;
    /// The connection has ended, or there was none: what was ordered is worth nothing.
    std::function<void()> lost;
};

/// Thread: one. Lives as long as the process.
class Session {
  public:
    Session(std::string socket, proto::local::Role role, Outbox &outbox, SessionHooks hooks)
        : socket_(std::move(socket)), role_(role), outbox_(outbox), hooks_(std::move(hooks)) {}
    [[noreturn]] void run();
    /// Of an order of the present connection.
    Ticket ticket(std::uint64_t order) const { return {connections_, order}; }

  private:
    Status connect();
    void serve();
    void take(proto::LocalMessage push);
    void send_answers();

    const std::string socket_;
    const proto::local::Role role_;
    Outbox &outbox_;
    const SessionHooks hooks_;
    std::optional<proto::LocalClient> client_;
    std::uint64_t connections_ = 0;
};

}  // namespace dlrover::helper
