// SPDX-License-Identifier: Apache-2.0
// Calls that may hang, as those into a file system do whose server is away, made beside the loop.
#pragma once

#include <functional>
#include <memory>

#include "agent/loop.h"

namespace dlrover::agent {

/// Makes calls one after the other on a thread of its own, which begins with the first: the loop, which has
/// to end workers in time, never waits for a file. What a call uses it owns: one that hangs is left behind
/// with its thread when this object ends. Thread: the loop's. Callers bound what they ask for.
class Aside {
  public:
    using Call = std::function<void()>;
    explicit Aside(Loop &loop) : loop_(loop) {}
    /// Calls that were asked for are still made, while this process lives.
    ~Aside();
    Aside(const Aside &) = delete;
    Aside &operator=(const Aside &) = delete;

    /// `done`, if any, follows on the loop, unless this object ends before. Where no thread is to be had the
    /// call is made here and now.
    void run(Call call, Loop::OnTime done = {});
    /// Has its thread now, and not with the first call: later there may be none to be had.
    void start_early() {
        if (!state_) (void)begin();
    }
    /// A call, or the `done` of one, is still to come.
    bool busy() const;
    /// Waits for all calls, and calls their `done`. False: not over by then.
    bool wait(Loop::Time deadline);
    /// Waits for the calls of all objects of this process, also of those that have ended; calls no `done`.
    static bool wait_for_all(Loop::Time deadline);

  private:
    struct State;
    Status begin();
    void on_ready();

    Loop &loop_;
    std::shared_ptr<State> state_;  ///< null before the first call
    std::size_t open_ = 0;          ///< calls whose `done` was not called yet
};

}  // namespace dlrover::agent
