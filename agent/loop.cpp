// SPDX-License-Identifier: Apache-2.0
#include "agent/loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <vector>

namespace dlrover::agent {

namespace {

constexpr Loop::Duration still{1000};

}  // namespace

Result<std::unique_ptr<Loop>> Loop::create() {
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll) return Status::from_errno("epoll_create1");
    return std::unique_ptr<Loop>(new Loop(std::move(epoll)));
}

Status Loop::watch(int fd, std::uint32_t events, OnEvents on_events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return Status::from_errno("epoll_ctl");
    watches_[fd] = std::make_shared<Watch>(Watch{next_++, std::move(on_events)});
    return {};
}

void Loop::change(int fd, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Loop::forget(int fd) {
    if (watches_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Loop::Timer Loop::after(Duration delay, OnTime on_time) {
    Timer timer = next_++;
    Time at = now() + delay;
    timers_.emplace(std::pair(at, timer), std::move(on_time));
    due_.emplace(timer, at);
    return timer;
}

void Loop::cancel(Timer &timer) {
    auto at = due_.find(std::exchange(timer, 0));
    if (at == due_.end()) return;
    timers_.erase({at->second, at->first});
    due_.erase(at);
}

int Loop::wait_ms() const {
    if (timers_.empty()) return -1;
    auto left = std::chrono::ceil<Duration>(timers_.begin()->first.first - now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 60000));
}

/// What came in before a timer's time is served before it, also where this process has stood still meanwhile
/// (stopped by a signal, or in a handler that took long).
void Loop::run_timers() {
    while (running_ && !timers_.empty() && timers_.begin()->first.first <= looked_) {
        auto node = timers_.extract(timers_.begin());
        due_.erase(node.key().second);
        node.mapped()();
    }
}

void Loop::serve() {
    epoll_event events[64];
    int wait = wait_ms();
    Time begun = now();
    int n = ::epoll_wait(epoll_.get(), events, 64, wait);
    if (n < 0) return;  // a signal: nobody has looked
    bool slept_too_long = wait >= 0 && now() - begun >= Duration(wait) + still;
    stood_still_ = slept_too_long || (looked_ != Time() && begun - looked_ >= still);
    looked_ = now();
    std::vector<std::tuple<std::uint64_t, int, std::uint32_t>> ready;
    for (int i = 0; i < n; ++i)
        if (auto at = watches_.find(events[i].data.fd); at != watches_.end())
            ready.emplace_back(at->second->order, at->first, std::uint32_t{events[i].events});
    std::sort(ready.begin(), ready.end());
    for (auto [order, fd, what] : ready) {
        auto at = watches_.find(fd);
        if (!running_ || at == watches_.end() || at->second->order != order) continue;
        auto held = at->second;  // the callback may forget itself
        held->on_events(what);
    }
}

void Loop::run() {
    running_ = true;
    while (running_) {
        serve();
        run_timers();
    }
}

}  // namespace dlrover::agent
