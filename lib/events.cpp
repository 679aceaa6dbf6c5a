// SPDX-License-Identifier: Apache-2.0
#include "lib/events.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "base/count_of.h"

#include <algorithm>
#include <cstdio>

namespace dlrover::lib {
namespace {

using namespace std::chrono_literals;
namespace local = proto::local;
constexpr auto reconnect_pause = 250ms;

/// Of the time line. Losses all ranks are told in another way.
std::uint32_t kind_of(proto::EventKind kind) {
    switch (kind) {
        case proto::EventKind::WorldPublished:
            return DLROVER_EVENT_NEW_GENERATION;
        case proto::EventKind::CheckpointComplete:
            return DLROVER_EVENT_CHECKPOINT_COMPLETE;
        case proto::EventKind::GroupFinished:
        case proto::EventKind::GaveUp:
            return DLROVER_EVENT_ENDING;
        default:
            return DLROVER_EVENT_OTHER;
    }
}

/// It may come back.
bool is_away(Code code) {
    return code == Code::unavailable || code == Code::timeout || code == Code::system;
}

template <std::size_t Size>
void set_text(char (&out)[Size], const std::string &text) {
    std::snprintf(out, Size, "%s", text.c_str());
}

dlrover_event make_event(std::uint32_t kind, const std::unique_ptr<proto::Generation> &generation) {
    dlrover_event out{};
    out.kind = kind;
    if (generation) {
        out.generation_term = generation->term();
        out.generation_number = generation->number();
    }
    out.rank = out.train_step = -1;
    auto now = std::chrono::system_clock::now().time_since_epoch();
    out.time_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    return out;
}

dlrover_event of_time_line(const proto::EventT &event) {
    auto out = make_event(kind_of(event.kind), event.generation);
    out.rank = event.rank;
    out.train_step = event.train_step;
    out.time_us = event.time_us;
    set_text(out.text, event.text);
    set_text(out.node, event.node);
    return out;
}

dlrover_event of_stop(const local::PmixStopT &stop) {
    auto out = make_event(DLROVER_EVENT_GENERATION_ENDS, stop.generation);
    set_text(out.text, stop.reason);
    return out;
}

/// Empty: of no rank of this world.
std::string node_of(const local::PmixWorldT &world, std::uint64_t rank) {
    std::uint64_t end = 0;
    std::size_t known = std::min(world.ranks_per_node.size(), world.node_names.size());
    for (std::size_t place = 0; place < known; ++place)
        if (end += world.ranks_per_node[place]; rank < end) return world.node_names[place];
    return "";
}

dlrover_event of_rank(const local::PmixWorldT &world, const local::PmixEventT &event) {
    auto out = make_event(DLROVER_EVENT_RANK_LOST, event.generation);
    out.rank = static_cast<std::int64_t>(event.number);
    set_text(out.node, node_of(world, event.number));
    set_text(out.text, "rank " + std::to_string(event.number) + " is lost");
    return out;
}

std::optional<dlrover_event> of_node(const local::PmixWorldT &world, const local::PmixEventT &event) {
    if (event.number >= world.node_names.size()) return std::nullopt;
    auto out = make_event(DLROVER_EVENT_NODE_LOST, event.generation);
    set_text(out.node, world.node_names[event.number]);
    set_text(out.text, "node " + world.node_names[event.number] + " is lost");
    return out;
}

dlrover_event of_step(std::uint32_t kind, const local::PmixEventT &event, const char *how) {
    auto out = make_event(kind, event.generation);
    out.train_step = static_cast<std::int64_t>(event.number);
    set_text(out.text, "the checkpoint of step " + std::to_string(event.number) + " is " + how);
    return out;
}

dlrover_event of_allocation(const local::PmixEventT &event) {
    auto out = make_event(DLROVER_EVENT_ALLOCATION_CHANGED, event.generation);
    set_text(out.text, "the group has " + count_of(event.number, "node") + " now");
    return out;
}

dlrover_event of_job_end(const local::PmixEventT &event) {
    auto out = make_event(DLROVER_EVENT_DRAINING, event.generation);
    set_text(out.text, "Slurm ends the job in " + std::to_string(event.number) + " s");
    return out;
}

std::optional<dlrover_event> of_group(const local::PmixWorldT &world, const local::PmixEventT &event) {
    switch (event.kind) {
        case local::PmixEventKind::None:
            return std::nullopt;
        case local::PmixEventKind::RankLost:
            return of_rank(world, event);
        case local::PmixEventKind::NodeLost:
            return of_node(world, event);
        case local::PmixEventKind::StepSafe:
            return of_step(DLROVER_EVENT_CHECKPOINT_SAFE, event, "safe on other nodes");
        case local::PmixEventKind::StepDurable:
            return of_step(DLROVER_EVENT_CHECKPOINT_DURABLE, event, "on storage");
        case local::PmixEventKind::AllocationChanged:
            return of_allocation(event);
        case local::PmixEventKind::Draining:
            return of_job_end(event);
    }
    return std::nullopt;
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
    // Where the daemon is away the descriptor is readable when it is time to look for it again.
    if (Status s = subscribe(); !s.ok() && !is_away(s.code())) return s;
    return epoll_.get();
}

void Events::refresh() {
    if (!wanted_) return;
    if (link_.push_pending()) return arm(0ms);
    if (!link_.connected() || link_.connections() != subscribed_on_) arm(reconnect_pause);
}

std::optional<dlrover_event> Events::to_event(const proto::LocalMessage &push) {
    const auto &body = push.message.body;
    if (const auto *world = body.AsPmixWorld()) world_ = *world;
    if (const auto *event = body.AsPmixEvent()) return of_group(world_, *event);
    if (const auto *stop = body.AsPmixStop()) return of_stop(*stop);
    const auto *line = body.AsMembershipEvent();
    return line != nullptr && line->event ? std::optional(of_time_line(*line->event)) : std::nullopt;
}

Result<dlrover_event> Events::next() {
    if (!epoll_) DLROVER_TRY(start());
    wanted_ = true;
    std::uint64_t expired;
    (void)!::read(timer_.get(), &expired, sizeof expired);
    Status s = link_.connect(DaemonLink::Clock::now());
    if (s.ok()) s = subscribe();
    if (is_away(s.code())) return Status(Code::not_found, "the daemon is away: " + s.message());
    if (!s.ok()) return s;
    for (;;) {
        auto push = link_.next_push();
        if (!push.ok()) {
            if (push.status().code() == Code::stale) return push.take_status();
            return Status(Code::not_found, "no event");
        }
        if (auto event = to_event(*push)) return *event;
    }
}

}  // namespace dlrover::lib
