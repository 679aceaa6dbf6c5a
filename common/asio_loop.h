// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "common/event_loop.h"

namespace dlrover {

/// The real loop, on Boost.Asio's reactor. Thread: run() on one thread; post() and stop() from any.
class AsioLoop final : public EventLoop {
  public:
    AsioLoop();
    ~AsioLoop() override;

    Time now() const override;
    void post(Task task) override;
    Handle after(Time delay, Task task) override;
    Handle when_readable(int fd, Task task) override;
    Handle when_writable(int fd, Task task) override;

    /// Calls `on_signal` on the loop for each arrival of one of `signals`, for the loop's life.
    void on_signals(std::initializer_list<int> signals, std::function<void(int)> on_signal);
    /// Until stop().
    void run();
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace dlrover
