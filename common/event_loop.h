// SPDX-License-Identifier: Apache-2.0
// The one loop that owns a daemon's state. An interface, so that tests drive time by hand
// (common/manual_loop.h); the real one stands on Boost.Asio (common/asio_loop.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace dlrover {

class EventLoop {
  public:
    using Task = std::function<void()>;
    using Time = std::chrono::microseconds;  ///< CLOCK_MONOTONIC

    /// A timer or a watch in force; its end cancels it. May be dropped inside its own callback.
    class Registration {
      public:
        virtual ~Registration() = default;
    };
    using Handle = std::unique_ptr<Registration>;

    virtual ~EventLoop() = default;
    virtual Time now() const = 0;
    /// Runs `task` on the loop, later. The only member that other threads may call.
    virtual void post(Task task) = 0;
    /// Once, after `delay`. Dropping the handle cancels; keep it.
    [[nodiscard]] virtual Handle after(Time delay, Task task) = 0;
    /// Calls `task` whenever `fd` is readable (level-triggered) until the handle is dropped. The fd stays the
    /// caller's and must outlive the handle.
    [[nodiscard]] virtual Handle when_readable(int fd, Task task) = 0;
    [[nodiscard]] virtual Handle when_writable(int fd, Task task) = 0;
};

}  // namespace dlrover
