// SPDX-License-Identifier: Apache-2.0
// A helper program (dlrover-writer, dlrover-mover, dlrover-pmixd), and a daemon for it that does what the
// test says, in the test's thread.
#pragma once

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

namespace dlrover::test {

namespace local = proto::local;

/// A node: the daemon's socket, and the program as its client.
class HelperNode {
  public:
    HelperNode(std::string program, local::Role role);
    virtual ~HelperNode();
    HelperNode(const HelperNode &) = delete;
    HelperNode &operator=(const HelperNode &) = delete;

    std::uint32_t job = 7, step = 0;

    /// `set_up`: in the new process, before the program runs there.
    void start(const std::function<void()> &set_up = {});
    pid_t pid() const { return pid_; }
    void signal(int number) const;
    /// Waits for the program's end, or (untraced) for its stop; the wait status.
    int wait(bool untraced = false);
    /// Takes the program's next connection and greets it.
    void greet();
    /// Nobody listens until greet().
    void stop_daemon();
    /// A whole message.
    void push(local::MessageT message, const std::vector<int> &fds = {});
    /// The next message of this kind, which must come; others before it are kept.
    local::MessageT wait_for(local::Body kind);
    /// The oldest message, where there is one in time.
    std::optional<local::MessageT> take_within(std::chrono::milliseconds time);
    void push_cancel(std::uint64_t order);

    std::uint64_t next_order = 1;

  protected:
    /// What comes after Hello: checks the program's own greeting and answers it.
    virtual void welcome() = 0;
    local::MessageT greeting(local::Body kind);
    void answer(std::uint32_t id, local::MessageT message);

  private:
    void listen();
    void receive();

    const std::string program_;
    const local::Role role_;
    std::string dir_;
    UniqueFd listener_, connection_;
    proto::FrameReader reader_;
    std::vector<local::MessageT> received_;
    pid_t pid_ = -1;
};

}  // namespace dlrover::test
