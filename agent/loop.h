// SPDX-License-Identifier: Apache-2.0
// A small epoll loop: descriptors and timers. Asio would do, but the agent must start in a few milliseconds
// and stay small as a static program.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::agent {

/// Single-threaded. Callbacks may watch, forget, start and cancel timers, and stop the loop.
class Loop {
  public:
    using Clock = std::chrono::steady_clock;
    using Time = Clock::time_point;
    using Duration = std::chrono::milliseconds;
    using OnEvents = std::function<void(std::uint32_t events)>;
    using OnTime = std::function<void()>;
    /// 0 is "no timer".
    using Timer = std::uint64_t;

    static Result<std::unique_ptr<Loop>> create();

    /// Level-triggered. Of descriptors ready together, the one watched first is served first.
    Status watch(int fd, std::uint32_t events, OnEvents on_events);
    void change(int fd, std::uint32_t events);
    /// Before the descriptor is closed. Unknown descriptors are ignored.
    void forget(int fd);

    Timer after(Duration delay, OnTime on_time);
    /// Sets to 0. A timer that has fired, or 0, is ignored.
    void cancel(Timer &timer);

    static Time now() { return Clock::now(); }
    /// Before the last look this process did not run for a second or more, or a handler took that long: what
    /// others have sent may still be on its way.
    bool stood_still() const noexcept { return stood_still_; }
    void run();
    void stop() { running_ = false; }

  private:
    struct Watch {
        std::uint64_t order;
        OnEvents on_events;
    };
    explicit Loop(UniqueFd epoll) : epoll_(std::move(epoll)) {}
    int wait_ms() const;
    void run_timers();
    void serve();

    UniqueFd epoll_;
    std::unordered_map<int, std::shared_ptr<Watch>> watches_;
    std::map<std::pair<Time, Timer>, OnTime> timers_;
    std::map<Timer, Time> due_;
    std::uint64_t next_ = 1;
    Time looked_{};  ///< when the descriptors that are ready were last looked for
    bool stood_still_ = false;
    bool running_ = false;
};

}  // namespace dlrover::agent
