// SPDX-License-Identifier: Apache-2.0
// The agent's connection to its daemon: made again as long as it takes, never waited for.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "agent/loop.h"
#include "proto/local_client.h"

namespace dlrover::agent {

/// Says Hello and AgentHello, then passes messages both ways. Thread: the loop's.
class Link {
  public:
    struct Events {
        /// The AgentHello to say on a new connection.
        std::function<proto::local::AgentHelloT()> greeting;
        std::function<void(const proto::local::AgentWelcomeT &)> up;
        /// The connection is lost, or could not be made; it will be tried again. Once for each reason in a
        /// row.
        std::function<void(const Status &)> down;
        /// What the daemon sends on its own.
        std::function<void(proto::LocalMessage)> message;
    };
    Link(Loop &loop, std::string socket_path, Events events);
    ~Link();
    Link(const Link &) = delete;
    Link &operator=(const Link &) = delete;

    void open();
    void close();
    bool up() const noexcept { return state_ == State::up; }
    /// One-way message; dropped when the link is not up (the agent tells everything again after Events::up).
    template <typename BodyT>
    void send(BodyT body) {
        if (up()) send_message(proto::make_local(0, std::move(body)));
    }
    /// Sends what is queued, waiting at most this long.
    void flush(Loop::Duration limit);
    const std::string &node() const noexcept { return node_; }

  private:
    enum class State { closed, waiting, greeting, joining, up };
    Status connect();
    void try_connect();
    void retry(Status why);
    void send_message(const proto::local::MessageT &message);
    Status write_queued();
    void on_events(std::uint32_t events);
    Status read_all();
    Status take_messages();
    Status on_message(proto::LocalMessage message);
    Status on_reply(const proto::local::MessageT &message);

    Loop &loop_;
    std::string path_;
    Events events_;
    State state_ = State::closed;
    UniqueFd socket_;
    proto::FrameReader reader_;
    std::deque<UniqueFd> fds_;  ///< received, of messages that are not whole yet
    std::string queued_;
    std::string last_reason_, node_;
    Loop::Timer timer_ = 0;  // next attempt, or the end of patience with the greeting
    unsigned attempts_ = 0;
};

}  // namespace dlrover::agent
