// SPDX-License-Identifier: Apache-2.0
// The connection of one worker to its node's daemon. Survives restarts of the daemon: a call that meets a
// broken connection connects again, says WorkerHello again and repeats its request until its deadline.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "lib/environment.h"
#include "proto/local_client.h"

namespace dlrover::lib {

/// Serialised by the context's lock.
class DaemonLink {
  public:
    using Clock = std::chrono::steady_clock;
    /// Called after every WorkerHello that was answered, with the progress page. May tell(), not call.
    using Welcome = std::function<Status(const proto::local::WorkerWelcomeT &, UniqueFd page)>;

    DaemonLink(const Environment &environment, Welcome welcome);

    /// One attempt if the deadline has passed already. stale from a greeting is final: every later call says
    /// so too.
    Status connect(Clock::time_point deadline);
    /// Request and answer. Repeated after a lost connection or a NotReady, so: only for requests that may
    /// come twice.
    template <typename BodyT>
    Result<proto::LocalMessage> call(const BodyT &body, Clock::time_point deadline) {
        return retry(deadline, [&](auto timeout) { return client_->call(BodyT(body), timeout); });
    }
    /// On the present connection only; unavailable when there is none or it broke meanwhile.
    template <typename BodyT>
    Result<proto::LocalMessage> call_once(const BodyT &body, Clock::time_point deadline) {
        if (!connected()) return Status(Code::unavailable, "the connection to the daemon is closed");
        auto reply = client_->call(BodyT(body), left(deadline));
        note();
        return reply;
    }
    /// Without answer; on the present connection only.
    template <typename BodyT>
    void tell(const BodyT &body) {
        if (!connected()) return;
        (void)client_->send(BodyT(body), std::chrono::seconds(1)).ok();
        note();
    }
    /// Next push that is there already; timeout: none.
    Result<proto::LocalMessage> next_push();
    bool push_pending() const { return client_ && client_->pending(); }
    bool connected() const { return client_ && client_->connected(); }
    void disconnect();
    /// Rises with every connection.
    std::uint64_t connections() const { return connections_; }
    Clock::time_point deadline() const { return Clock::now() + environment_.timeout; }
    /// The socket, -1 without; for the child of a fork and for poll.
    int fd() const { return fd_.load(std::memory_order_relaxed); }

  private:
    using Attempt = std::function<Result<proto::LocalMessage>(std::chrono::milliseconds)>;
    Result<proto::LocalMessage> retry(Clock::time_point deadline, const Attempt &attempt);
    Status connect_once(std::chrono::milliseconds timeout);
    Status say_hello(std::chrono::milliseconds timeout);
    /// After every exchange: the socket may be gone.
    void note();
    static std::chrono::milliseconds left(Clock::time_point deadline);

    const Environment &environment_;
    Welcome welcome_;
    std::optional<proto::LocalClient> client_;
    std::atomic<int> fd_{-1};
    std::uint64_t connections_ = 0;
    std::string stale_;  ///< not empty: the daemon said that our generation is over
};

}  // namespace dlrover::lib
