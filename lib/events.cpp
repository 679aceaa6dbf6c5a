// SPDX-License-Identifier: Apache-2.0
#include "lib/events.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdio>

namespace dlrover::lib {
namespace {

using namespace std::chrono_literals;
namespace local = proto::local;
constexpr auto reconnect_pause = 250ms;

std::uint32_t kind_of(proto::EventKind kind) {
    switch (kind) {
        case proto::EventKind::WorldPublished:
            return DLROVER_EVENT_NEW_GENERATION;
        case proto::EventKind::WorkerFailed:
            return DLROVER_EVENT_RANK_LOST;
        case proto::EventKind::CheckpointComplete:
            return DLROVER_EVENT_CHECKPOINT_COMPLETE;
        case proto::EventKind::GroupFinished:
        case proto::EventKind::GaveUp:
            return DLROVER_EVENT_ENDING;
        default:
            return DLROVER_EVENT_OTHER;
    }
}

dlrover_event to_event(const proto::EventT &event) {
    dlrover_event out{};
    out.kind = kind_of(event.kind);
    if (event.generation) {
        out.generation_term = event.generation->term();
        out.generation_number = event.generation->number();
    }
    out.rank = event.rank;
    out.train_step = event.train_step;
    out.time_us = event.time_us;
    std::snprintf(out.text, sizeof out.text, "%s", event.text.c_str());
    return out;
}

}  // namespace

Status Events::start() {
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!epoll_ || !timer_) return Status::from_errno("descriptors for events");
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = timer_.get();
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &e) != 0)
        return Status::from_errno("epoll_ctl");
    return {};
}

Status Events::subscribe() {
    if (subscribed_on_ == link_.connections() && link_.connected()) return {};
    auto reply = link_.call(local::SubscribeT{}, link_.deadline());
    if (!reply) return reply.take_status();
    subscribed_on_ = link_.connections();
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = link_.fd();
    // A closed socket has left the set by itself.
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link_.fd(), &e) != 0 && errno != EEXIST)
        return Status::from_errno("epoll_ctl");
    return {};
}

void Events::arm(std::chrono::milliseconds delay) {
    itimerspec when{};
    when.it_value.tv_sec = delay.count() / 1000;
    when.it_value.tv_nsec = delay.count() % 1000 * 1000000 + 1;
    ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

Result<int> Events::fd() {
    if (!epoll_) DLROVER_TRY(start());
    wanted_ = true;
    DLROVER_TRY(subscribe());
    return epoll_.get();
}

void Events::refresh() {
    if (!wanted_) return;
    if (link_.push_pending()) return arm(0ms);
    if (!link_.connected() || link_.connections() != subscribed_on_) arm(reconnect_pause);
}

Result<dlrover_event> Events::next() {
    if (!epoll_) DLROVER_TRY(start());
    wanted_ = true;
    std::uint64_t expired;
    (void)!::read(timer_.get(), &expired, sizeof expired);
    if (Status s = link_.connect(DaemonLink::Clock::now()); !s.ok()) {
        if (s.code() == Code::stale) return s;
        return Status(Code::not_found, "the daemon is away: " + s.message());
    }
    DLROVER_TRY(subscribe());
    for (;;) {
        auto push = link_.next_push();
        if (!push.ok()) {
            if (push.status().code() == Code::stale) return push.take_status();
            return Status(Code::not_found, "no event");
        }
        auto *event = push->message.body.AsMembershipEvent();
        if (event != nullptr && event->event) return to_event(*event->event);
    }
}

}  // namespace dlrover::lib
