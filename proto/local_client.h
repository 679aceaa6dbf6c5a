// SPDX-License-Identifier: Apache-2.0
// A blocking client of the local protocol with a deadline on everything. For the module, the command line,
// the library; no threads of its own.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

namespace dlrover::proto {

/// A message and the descriptors that came with it.
struct LocalMessage {
    local::MessageT message;
    std::vector<UniqueFd> fds;
};

/// Thread: one at a time (the owner locks). After a failure other than timeout of receive() the connection is
/// closed and every call says so.
class LocalClient {
  public:
    using Timeout = std::chrono::milliseconds;

    /// Connects and says Hello as `role`. unavailable: nobody listens there; timeout; unsupported: no common
    /// protocol version.
    static Result<LocalClient> connect(const std::string &socket_path, local::Role role, Timeout timeout);
    /// The one request of somebody who has no other, sent along with the greeting. timeout: a daemon that is
    /// held up finds it later, though nobody waits for its answer any more.
    template <typename BodyT>
    static Result<LocalMessage> ask_once(const std::string &socket_path, local::Role role, BodyT body,
                                         Timeout timeout) {
        return ask_message(socket_path, role, make_local(second_id, std::move(body)), timeout);
    }

    /// Sends `body` as a request and waits for its answer; pushes that come meanwhile are kept for receive().
    /// A Failure answer becomes a Status whose message is the daemon's sentence.
    template <typename BodyT>
    Result<LocalMessage> call(BodyT body, Timeout timeout) {
        return call_message(make_local(next_id_++, std::move(body)), timeout);
    }
    /// Sends without waiting for an answer (id 0).
    template <typename BodyT>
    Status send(BodyT body, Timeout timeout) {
        return send_message(make_local(0, std::move(body)), timeout);
    }
    /// The same, of a message that was made before.
    Status send_made(const local::MessageT &message, Timeout timeout) {
        return send_message(message, timeout);
    }
    /// Next push; timeout when none came (0: only what is there already).
    Result<LocalMessage> receive(Timeout timeout);

    /// For poll(); readable when receive(0) may have something. Pushes kept by call() do not make it
    /// readable: ask pending() first.
    int fd() const noexcept { return socket_.get(); }
    bool pending() const noexcept { return !pushes_.empty(); }
    bool connected() const noexcept { return static_cast<bool>(socket_); }
    const local::HelloReplyT &server() const noexcept { return server_; }
    void close() noexcept { socket_.reset(); }

  private:
    static constexpr std::uint32_t first_id = 1, second_id = 2;

    static Result<LocalClient> open(const std::string &socket_path, std::chrono::steady_clock::time_point);
    static Result<LocalMessage> ask_message(const std::string &socket_path, local::Role role,
                                            const local::MessageT &message, Timeout timeout);
    Result<LocalMessage> await_answer(std::uint32_t id, std::chrono::steady_clock::time_point deadline);
    Result<LocalMessage> call_message(const local::MessageT &message, Timeout timeout);
    Status send_message(const local::MessageT &message, Timeout timeout);
    Result<LocalMessage> next_message(std::chrono::steady_clock::time_point deadline);
    Status fail(Status status);

    UniqueFd socket_;
    FrameReader reader_;
    std::deque<UniqueFd> fds_;
    std::deque<LocalMessage> pushes_;
    local::HelloReplyT server_;
    std::uint32_t next_id_ = first_id;
};

/// How many descriptors travel with this message (SlotGranted, Prepared, RestorePlan, StoreObject,
/// ExpectObject, SendObject, VerifyObject: the segments with fd set; WorkerWelcome, FillSegment: 1).
std::size_t fds_of(const local::MessageT &message);

/// The Status a Failure message stands for.
Status to_status(const local::FailureT &failure);

}  // namespace dlrover::proto
