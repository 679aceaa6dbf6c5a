// SPDX-License-Identifier: Apache-2.0
// How long storage has owed this node's writer an answer. What is slow still says that it answers.
#pragma once

#include <functional>
#include <optional>

#include "common/event_loop.h"

namespace dlrover::daemon {

/// Thread: the event loop's.
class StorageSilence {
  public:
    /// After `limit`, and with `over` when storage answers again: once each. Never from inside a call.
    using Tell = std::function<void(EventLoop::Time lasted, bool over)>;

    StorageSilence(EventLoop &loop, EventLoop::Time limit, Tell tell)
        : loop_(loop), limit_(limit), tell_(std::move(tell)) {}

    /// Whether the writer has orders. Nobody says that storage answers only because they were withdrawn.
    void set_owed(bool owed);
    /// A word of the writer: a call into storage has returned.
    void on_answer();
    std::optional<EventLoop::Time> since() const { return since_; }
    EventLoop::Time lasted() const;
    bool is_long() const { return since_ && lasted() >= limit_; }

  private:
    void watch();
    void tell_later(EventLoop::Time lasted, bool over);

    EventLoop &loop_;
    EventLoop::Time limit_;
    Tell tell_;
    std::optional<EventLoop::Time> since_;  ///< owed since then, or heard
    std::optional<EventLoop::Time> told_;   ///< of the silence since then, which is not over
    EventLoop::Handle timer_, telling_;
};

}  // namespace dlrover::daemon
