// SPDX-License-Identifier: Apache-2.0
// The agents of a group on this node.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

/// Of one group on one node: keeps tables, records and answers small.
constexpr std::uint32_t max_workers_here = 1024;

}  // namespace
namespace {

constexpr std::size_t max_error_bytes = 8u << 10;
constexpr std::size_t max_early_inputs = 2048;

}  // namespace

void Group::on_agent_message(const Client &from, local::MessageT message) {
    auto &body = message.body;
    if (auto *hello = body.AsAgentHello()) return on_agent_hello(from, message.id, *hello);
    Agent *agent = agent_of(from.id);
    if (!agent)
        return services_.port.fail(from.id, message.id, local::Refusal::BadMessage, "say AgentHello first");
    if (auto *started = body.AsWorkerStarted())
        on_worker_started(*agent, *started);
    else if (auto *exited = body.AsWorkerExited())
        on_worker_exited(*agent, *exited);
    else if (auto *stopped = body.AsWorkersStopped())
        on_workers_stopped(*agent, *stopped);
    else if (auto *signal = body.AsAgentSignal())
        feed(elastic::LocalSignal{signal->signal});
    else if (auto *filled = body.AsSegmentFilled())
        on_segment_filled(*filled);
    else if (auto *verified = body.AsObjectVerified())
        verify_.on_answer(from.id, *verified);
    else if (auto *seen = body.AsRanksSeen())
        on_ranks_seen(*agent, *seen);
    else if (auto *ended = body.AsStepEnded())
        on_step_ended_there(*ended);
    else if (body.type == local::Body::AgentBye)
        on_agent_gone(agent->task);
    else
        return services_.port.fail(from.id, message.id, local::Refusal::BadMessage,
                                   "an agent has no such message");
    if (message.id != 0) services_.port.done(from.id, message.id);
}

std::optional<std::string> Group::refusal_of(const local::AgentHelloT &hello) const {
    if (hello.task >= tasks_here())
        return "the step has " + std::to_string(tasks_here()) + " tasks on this node, there is no task " +
               std::to_string(hello.task);
    if (hello.workers == 0 || std::uint64_t{hello.workers} * tasks_here() > max_workers_here)
        return "a node runs 1 to " + std::to_string(max_workers_here) + " workers of a group";
    if (record_.workers != 0 && hello.workers != record_.workers)
        return "every agent of a group runs the same number of workers (" + std::to_string(record_.workers) +
               ")";
    if (agents_.contains(hello.task)) return "this task has an agent already";
    return std::nullopt;
}

void Group::on_agent_hello(const Client &from, std::uint32_t id, const local::AgentHelloT &hello) {
    if (agent_of(from.id))
        return services_.port.fail(from.id, id, local::Refusal::BadMessage, "AgentHello was said already");
    if (auto refusal = refusal_of(hello))
        return services_.port.fail(from.id, id, local::Refusal::BadMessage, *refusal);
    if (record_.workers == 0) {
        record_.workers = hello.workers;
        save();
    }
    local::AgentWelcomeT welcome;
    const auto &timing = services_.settings.timing;
    welcome.lease_ms = static_cast<std::uint32_t>(agent_lease().count() / 1000);
    welcome.stop_grace_ms = static_cast<std::uint32_t>(timing.stop_grace.count() / 1000);
    welcome.tasks_here = static_cast<std::uint16_t>(tasks_here());
    welcome.first_local_rank = static_cast<std::uint16_t>(hello.task * record_.workers);
    welcome.lineage = record_.lineage;
    welcome.job_id = job().value();
    welcome.step_id = step().value();
    services_.port.answer(from.id, id, std::move(welcome));
    Agent &agent = agents_[hello.task];
    agent.connection = from.id;
    agent.task = hello.task;
    agent.pid = from.pid;
    agent.verifies = hello.verifies;
    agent.looks = hello.looks;
    agent.running = from_proto(hello.resumed_generation);
    if (hello.staying) {
        agent.leaving = agent.running;
        await_stayers();
    }
    if (agent.running == GenerationId{}) agent.stopped = stopping_;
    if (record_.ended) return push_end(agent);
    if (record_.ending) return push_ending(agent);
    if (!member_) {
        create_member();
        feed(objects_here());  // kept since the job's last run
    }
    if (pmix_ && world_ && agent.running == world_->id) pmix_->on_resumed();
    if (agent.running != GenerationId{} && agent.running <= stopping_) push_stop(agent, "an old generation");
    if (world_ && world_->id > stopping_) push_world(agent);
    push_unfilled(agent);
    note_left();  // who has left may be back before its agent is
    report_readiness();
    report_stopped();
}

Group::Agent *Group::agent_of(ConnectionId connection) {
    auto it = std::find_if(agents_.begin(), agents_.end(),
                           [&](const auto &entry) { return entry.second.connection == connection; });
    return it == agents_.end() ? nullptr : &it->second;
}

bool Group::is_local_rank_of(const Agent &agent, std::uint32_t local_rank) const {
    std::uint32_t first = std::uint32_t{agent.task} * record_.workers;
    return local_rank >= first && local_rank < first + record_.workers;
}

void Group::on_worker_started(Agent &agent, const local::WorkerStartedT &started) {
    auto rank = rank_of(started.local_rank);
    GenerationId generation = from_proto(started.generation);
    if (!world_ || generation != world_->id || !rank || !is_local_rank_of(agent, started.local_rank)) return;
    agent.pids[started.local_rank] = static_cast<std::int32_t>(started.pid);
    rank_states_[*rank] = "running";
    add_event(proto::EventKind::WorkerStarted,
              (started.stayed ? "Worker goes on with pid " : "Worker started with pid ") +
                  std::to_string(started.pid) + ".",
              generation, static_cast<std::int32_t>(rank->value()));
    if (started.stayed)
        on_stayed(started.local_rank, generation, started.variables);
    else
        stayed_.erase(started.local_rank);
}

void Group::on_worker_exited(Agent &agent, const local::WorkerExitedT &exited) {
    auto rank = rank_of(exited.local_rank);
    GenerationId generation = from_proto(exited.generation);
    if (!world_ || generation != world_->id || !rank || !is_local_rank_of(agent, exited.local_rank)) return;
    agent.pids.erase(exited.local_rank);
    if (exited.stopped_by_us) {
        rank_states_[*rank] = "stopped";
        return;
    }
    tell_progress();
    if (exited.wait_status == 0) {
        rank_states_[*rank] = "finished";
        return feed_when_ready(elastic::LocalFinished{generation, *rank});
    }
    rank_states_[*rank] = "failed";
    elastic::WorkerExit exit;
    exit.generation = generation;
    exit.rank = *rank;
    exit.wait_status = exited.wait_status;
    exit.wall_time_us = exited.time_us;
    exit.signature = exited.signature;
    exit.oom = exited.oom;
    exit.error_text = exited.error_text.substr(0, max_error_bytes);
    feed_when_ready(elastic::LocalExit{std::move(exit)});
}

/// The member listens to workers of a generation that it knows to run here; after the daemon's restart that
/// is when all agents are back.
void Group::feed_when_ready(elastic::Input input) {
    if (ready_told_) return feed(input);
    if (early_.size() < max_early_inputs) early_.push_back(std::move(input));
}

void Group::on_workers_stopped(Agent &agent, const local::WorkersStoppedT &stopped) {
    GenerationId generation = from_proto(stopped.generation);
    agent.stopped = std::max(agent.stopped, generation);
    if (agent.running <= generation) {
        agent.running = agent.leaving = {};
        agent.pids.clear();
        rest_stayers();
        if (world_ && world_->id > stopping_)
            push_world(agent);  // where it waited for those who were to leave
        report_readiness_soon();
    }
    report_stopped();
}

void Group::report_stopped() {
    if (!member_ || agents_.size() < tasks_here()) return;
    GenerationId all = stopping_;
    for (const auto &[task, agent] : agents_) all = std::min(all, agent.stopped);
    if (all <= stopped_told_) return;
    stopped_told_ = all;
    feed(elastic::LocalStopped{all});
    verify_restore_point();
}

void Group::on_agent_gone(std::uint16_t task) {
    if (auto agent = agents_.find(task); agent != agents_.end())
        verify_.on_agent_gone(agent->second.connection);
    agents_.erase(task);
    report_readiness();
}

void Group::report_readiness() {
    if (!member_ || over()) return;
    bool ready = agents_.size() >= tasks_here();
    GenerationId running;
    for (const auto &[task, agent] : agents_) running = std::max(running, agent.running);
    if (!ready && !ready_told_) return;
    ready_told_ = ready;
    feed(elastic::LocalReady{ready, ready ? running : GenerationId{}});
    if (!ready) return;
    for (const auto &input : std::exchange(early_, {})) feed(input);
}

/// After a world that was pushed late: the member, which may have begun after that world was on record, does
/// not know that it runs here. What only ends is no news: the member would have it ended once more.
void Group::report_readiness_soon() {
    services_.loop.post([this, alive = alive_] {
        if (!*alive) return;
        bool begun = std::ranges::any_of(
            agents_, [this](const auto &entry) { return entry.second.running > stopping_; });
        if (begun) report_readiness();
    });
}

void Group::push_world(Agent &agent) {
    if (agent.running == world_->id || agent.leaving != GenerationId{}) return;
    local::WorldPublishedT world = describe_world(*world_);
    if (!add_pmix(world)) return;
    world.at_us = services_.loop.now().count();
    bool active = world.active;
    if (active) agent.running = world_->id;
    services_.port.push(agent.connection, std::move(world));
    if (active) verify_restore_point();  // it may have waited for its PMIx server
}

void Group::push_stop(Agent &agent, const std::string &reason, bool may_stay) {
    local::StopWorkersT stop;
    stop.generation = to_proto_ptr(stopping_);
    stop.reason = reason;
    stop.stays = may_stay && all_stay(agent);
    agent.leaving = stop.stays ? agent.running : GenerationId{};
    if (stop.stays) await_stayers();
    services_.port.push(agent.connection, std::move(stop));
}

void Group::push_end(const Agent &agent) {
    local::GroupEndedT end;
    // How the group ended is the main job's to tell; a companion has done what it was for.
    end.exit_code = own_step() && !dismissed_ ? 0 : record_.exit_code;
    auto place = world_ ? place_in(*world_) : std::nullopt;
    bool first_node = place ? *place == 0 : !world_ && self() == NodeIndex(0);
    end.print = (first_node || dismissed_) && agent.task == 0;
    if (end.print) {
        end.message = record_.end_message;
        end.summary = record_.summary;
    }
    services_.port.push(agent.connection, std::move(end));
}

}  // namespace dlrover::daemon
