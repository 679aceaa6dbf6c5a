// SPDX-License-Identifier: Apache-2.0
// What the programs hear of their group, in the same messages: workers that have subscribed, and the PMIx
// server for its ranks.
#include <algorithm>

#include "daemon/group.h"

namespace dlrover::daemon {

template <typename BodyT>
void Group::push_to_subscribers(const BodyT &body, const GenerationId &first, const GenerationId &last) {
    for (const auto &[connection, worker] : workers_)
        if (worker.subscribed && worker.generation >= first && worker.generation <= last)
            services_.port.push(connection, BodyT(body));
}

std::optional<local::PmixWorldT> Group::membership() const {
    if (!world_) return std::nullopt;
    auto place = place_in(*world_);
    if (!place) return std::nullopt;
    local::PmixWorldT world;
    world.generation = to_proto_ptr(world_->id);
    world.name_space = "dlrover." + key_ + "." + std::to_string(registration().restart_count) + ".g" +
                       std::to_string(world_->id.term.value()) + "-" + std::to_string(world_->id.number);
    world.place = *place;
    for (NodeIndex node : world_->nodes) {
        world.node_names.push_back(node_name(node));
        world.ranks_per_node.push_back(static_cast<std::uint16_t>(ranks_of(node)));
    }
    return world;
}

/// Who the others are it hears at once.
void Group::subscribe(Worker &worker) {
    worker.subscribed = true;
    auto world = membership();
    if (!world) return;
    services_.port.push(worker.client.id, std::move(*world));
    if (job_end_at_)
        services_.port.push(worker.client.id, event_of(local::PmixEventKind::Draining, seconds_left()));
}

/// The same loss is told once.
void Group::tell_losses(const elastic::Losses &losses) {
    using Kind = local::PmixEventKind;
    if (!world_ || losses.of != world_->id) return;
    auto tell_once = [this](Kind kind, std::uint64_t number) {
        if (losses_told_.emplace(kind, number).second) tell(kind, number);
    };
    for (Rank rank : losses.ranks) tell_once(Kind::RankLost, rank.value());
    for (std::uint32_t place = 0; place < world_->nodes.size(); ++place)
        if (std::ranges::find(losses.nodes, world_->nodes[place]) != losses.nodes.end())
            tell_once(Kind::NodeLost, place);
}

local::PmixEventT Group::event_of(local::PmixEventKind kind, std::uint64_t number) const {
    local::PmixEventT event;
    event.generation = to_proto_ptr(world_->id);
    event.kind = kind;
    event.number = number;
    return event;
}

/// About the world in force, best effort.
void Group::tell(local::PmixEventKind kind, std::uint64_t number) {
    auto event = event_of(kind, number);
    push_to_subscribers(event, world_->id, world_->id);
    if (pmix_) pmix_->on_event(std::move(event));
}

/// Workers of this generation and older ones are to end.
void Group::tell_stop(GenerationId generation, const std::string &reason) {
    constexpr std::size_t max_reason_bytes = 1024;
    local::PmixStopT stop;
    stop.generation = to_proto_ptr(generation);
    stop.reason = reason.substr(0, max_reason_bytes);
    push_to_subscribers(stop, {}, generation);
    if (pmix_) pmix_->on_stop(std::move(stop));
}

void Group::act(elastic::StepSafe &action) {
    if (world_) tell(local::PmixEventKind::StepSafe, action.id.step.value());
}

/// By the leader's node, which tells the others.
void Group::watch_job_end() {
    if (!leads() || over()) return job_end_.reset();
    if (job_end_) return;
    auto tell = [this](std::optional<EventLoop::Time> end) { feed_later(elastic::LocalJobEnd{end}); };
    job_end_ = std::make_unique<JobDeadline>(services_.loop, services_.slurm, job(), tell);
}

/// Precondition: job_end_at_.
std::uint64_t Group::seconds_left() const {
    auto left = std::max(*job_end_at_ - services_.loop.now(), EventLoop::Time(0));
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(left).count());
}

void Group::act(elastic::JobEndsSoon &action) {
    job_end_at_.reset();
    if (!action.in) return;
    job_end_at_ = services_.loop.now() + *action.in;
    if (leads())
        add_event(proto::EventKind::Warning,
                  "Slurm ends the job in " + std::to_string(seconds_left()) + " s: its time is over then.");
    if (world_) tell(local::PmixEventKind::Draining, seconds_left());
}

void Group::act(elastic::StepDurable &action) {
    if (world_) tell(local::PmixEventKind::StepDurable, action.id.step.value());
}

}  // namespace dlrover::daemon
