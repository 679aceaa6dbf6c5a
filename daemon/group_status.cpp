// SPDX-License-Identifier: Apache-2.0
// What a group tells people: its time line and its state.
#include <algorithm>
#include <cctype>

#include "common/log.h"
#include "daemon/group.h"
#include "daemon/registration.h"
#include "daemon/summary.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time events_delay = std::chrono::milliseconds(500);

proto::EventKind kind_of(elastic::Note::Kind kind) {
    using From = elastic::Note::Kind;
    using To = proto::EventKind;
    switch (kind) {
        case From::none:
            return To::None;
        case From::group_started:
            return To::GroupStarted;
        case From::node_ready:
            return To::NodeReady;
        case From::world_published:
            return To::WorldPublished;
        case From::worker_failed:
            return To::WorkerFailed;
        case From::worker_finished:
            return To::WorkerFinished;
        case From::incident_opened:
            return To::IncidentOpened;
        case From::incident_closed:
            return To::IncidentClosed;
        case From::restore_planned:
            return To::RestorePlanned;
        case From::checkpoint_complete:
            return To::CheckpointComplete;
        case From::leader_elected:
            return To::LeaderElected;
        case From::leader_lost:
            return To::LeaderLost;
        case From::gave_up:
            return To::GaveUp;
        case From::group_finished:
            return To::GroupFinished;
        case From::warning:
            return To::Warning;
        case From::node_joined:
            return To::NodeJoined;
    }
    return To::None;
}

}  // namespace

void Group::act(elastic::Note &note) {
    add_event(kind_of(note.kind), std::move(note.text), note.generation,
              note.rank ? static_cast<std::int32_t>(note.rank->value()) : -1,
              note.step ? static_cast<std::int64_t>(note.step->value()) : -1,
              note.duration ? note.duration->count() : -1,
              note.node ? node_name(*note.node) : services_.node);
}

void Group::act(elastic::Tell &action) {
    std::string text = action.text + ".";
    say_on_terminal(text);
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    add_event(proto::EventKind::Warning, std::move(text));
}

/// By one agent: they all write to the same.
void Group::say_on_terminal(const std::string &text) {
    if (agents_.empty()) return;
    local::NoticeT notice;
    notice.text = text;
    services_.port.push(agents_.begin()->second.connection, std::move(notice));
}

void Group::tell_standstill(const std::string &text) {
    if (record_.workers == 0 || over()) return;
    add_event(proto::EventKind::Warning,
              "dlroverd of " + services_.node + " " + text + ": others may have taken this node for lost.");
}

void Group::add_event(proto::EventKind kind, std::string text, GenerationId generation, std::int32_t rank,
                      std::int64_t step, std::int64_t duration_us, const std::string &node) {
    proto::EventT event;
    event.time_us = wall_clock_us();
    event.kind = kind;
    event.node = node.empty() ? services_.node : node;
    event.generation = to_proto_ptr(generation);
    event.rank = rank;
    event.train_step = step;
    event.duration_us = duration_us;
    event.text = std::move(text);
    using Kind = proto::EventKind;
    // What opens an incident is told by the worker's failure.
    bool routine =
        kind == Kind::CheckpointComplete || kind == Kind::WorkerStarted || kind == Kind::IncidentOpened;
    log::write(routine ? log::Level::debug : log::Level::info, log::Job{this->job(), this->step()},
               event.text);
    push_event(event);
    events_.add(std::move(event));
    if (!events_timer_) events_timer_ = services_.loop.after(events_delay, [this] { save_events(); });
}

void Group::push_event(const proto::EventT &event) {
    for (const auto &[connection, worker] : workers_) {
        if (!worker.subscribed) continue;
        local::MembershipEventT push;
        push.event = std::make_unique<proto::EventT>(event);
        services_.port.push(connection, std::move(push));
    }
}

std::unique_ptr<local::GroupEventsT> Group::events(std::size_t &room) const {
    auto out = std::make_unique<local::GroupEventsT>();
    out->job_id = registration().job_id;
    out->step_id = registration().step_id;
    out->lineage = record_.lineage;
    auto newest = events_.newest(room);
    out->dropped = events_.dropped() + (events_.events().size() - newest.size());
    for (const auto *event : newest) out->events.push_back(std::make_unique<proto::EventT>(*event));
    return out;
}

local::GroupState Group::state(const elastic::MemberView &view) const {
    if (record_.ended)
        return record_.exit_code == 0 ? local::GroupState::Finished : local::GroupState::Failed;
    if (record_.ending) return local::GroupState::Ending;
    if (!view.world) return local::GroupState::Starting;
    if (view.ended) return local::GroupState::Ending;
    return view.recovering ? local::GroupState::Recovering : local::GroupState::Running;
}

std::vector<std::unique_ptr<local::RankStatusT>> Group::rank_statuses() const {
    std::vector<std::unique_ptr<local::RankStatusT>> out;
    if (!world_) return out;
    for (std::uint32_t place = 0; place < world_->nodes.size(); ++place) {
        NodeIndex node = world_->nodes[place];
        for (std::uint32_t i = 0; i < ranks_of(node); ++i) {
            auto rank = std::make_unique<local::RankStatusT>();
            rank->rank = first_rank(*world_, place) + i;
            rank->node = node_name(node);
            if (node == self()) describe_local_rank(*rank, i);
            out.push_back(std::move(rank));
        }
    }
    return out;
}

void Group::describe_local_rank(local::RankStatusT &out, std::uint32_t local_rank) const {
    auto state = rank_states_.find(Rank(out.rank));
    out.state = state == rank_states_.end() ? "starting" : state->second;
    out.restarts = world_->restart_count;
    for (const auto &[task, agent] : agents_) {
        auto pid = agent.pids.find(local_rank);
        if (pid != agent.pids.end()) out.pid = static_cast<std::uint32_t>(pid->second);
    }
    for (const auto &progress : progress_)
        if (progress.rank.value() == out.rank && progress.step)
            out.train_step = static_cast<std::int64_t>(progress.step->value());
    out.connected = std::any_of(workers_.begin(), workers_.end(), [&](const auto &entry) {
        return entry.second.rank.value() == out.rank && entry.second.generation == world_->id;
    });
}

std::vector<std::unique_ptr<local::CheckpointStatusT>> Group::checkpoint_statuses(
    const elastic::MemberView &view) const {
    std::map<TrainStep, std::uint32_t> sealed_here;
    for (const auto &seal : arena_.seals()) ++sealed_here[seal.step];
    std::vector<std::unique_ptr<local::CheckpointStatusT>> out;
    for (const auto &[train_step, count] : sealed_here) {
        if (complete_ && train_step < *complete_) continue;  // its slot waits to be used again
        auto entry = std::make_unique<local::CheckpointStatusT>();
        entry->train_step = train_step.value();
        entry->ranks = world_ ? world_size(*world_) : 0;
        entry->complete = complete_ == train_step ||
                          std::find(view.complete_steps.begin(), view.complete_steps.end(), train_step) !=
                              view.complete_steps.end();
        entry->ranks_sealed = entry->complete ? entry->ranks : count;
        entry->bytes = arena_.sealed_bytes(train_step).first;
        if (auto time = arena_.sealed_time_us(train_step)) entry->age_us = wall_clock_us() - *time;
        out.push_back(std::move(entry));
    }
    return out;
}

std::unique_ptr<local::CopiesStatusT> Group::copies_status(const elastic::MemberView &view) const {
    auto out = std::make_unique<local::CopiesStatusT>();
    if (world_)
        for (NodeIndex node : part_in(*world_).partners) {
            out->partners.push_back(node_name(node));
            out->switches.push_back(switch_of(out->partners.back()));
            std::string own = switch_of(services_.node);
            if (!own.empty() && out->switches.back() == own) out->same_switch = 1;
        }
    if (view.safe) out->safe_step = static_cast<std::int64_t>(view.safe->step.value());
    if (view.protecting) out->target_step = static_cast<std::int64_t>(view.protecting->step.value());
    out->copied = static_cast<std::uint32_t>(copies_->copied());
    out->to_copy = static_cast<std::uint32_t>(copies_->to_copy());
    out->text = copies_->trouble();
    out->parities = static_cast<std::uint32_t>(arena_.parities().size());
    out->parity_bytes = arena_.parity_bytes();
    out->arrived_bytes = copies_->arrived().bytes;
    out->spared_bytes = copies_->arrived().spared_bytes;
    if (!out->text.empty()) out->in_trouble.push_back(services_.node);
    return out;
}

/// None: nothing has been compared here.
std::unique_ptr<local::VerifiedStatusT> Group::verified_status() const {
    const auto &totals = verify_.totals();
    if (totals.agent_objects + totals.rank_objects + totals.damaged == 0) return nullptr;
    auto out = std::make_unique<local::VerifiedStatusT>();
    out->agent_objects = totals.agent_objects;
    out->agent_bytes = totals.agent_bytes;
    out->rank_objects = totals.rank_objects;
    out->rank_bytes = totals.rank_bytes;
    out->damaged = totals.damaged;
    return out;
}

/// "n5 (by expansion)", "n6 (job 58)"
std::string Group::joined_text(std::uint32_t index) const {
    JobId by = joined_by(registration(), index - own_nodes()).first;
    std::string how = by == job() ? "by expansion" : "job " + std::to_string(by.value());
    return node_name(NodeIndex(index)) + " (" + how + ")";
}

std::unique_ptr<local::GroupStatusT> Group::status() const {
    auto view = member_ ? member_->view() : elastic::MemberView{};
    const auto &r = registration();
    auto out = std::make_unique<local::GroupStatusT>();
    out->job_id = r.job_id;
    out->step_id = r.step_id;
    out->uid = r.uid;
    out->user = record_.user;
    out->lineage = record_.lineage;
    out->restart_count = r.restart_count;
    out->state = state(view);
    out->generation = to_proto_ptr(world_ ? world_->id : GenerationId{});
    if (view.leader) out->leader = node_name(*view.leader);
    out->node = services_.node;
    out->world_size = world_ ? world_size(*world_) : 0;
    out->nodes = r.node_names;
    for (std::uint32_t i = own_nodes(); i < node_count(); ++i)
        if (!is_removed(NodeIndex(i))) out->joined.push_back(joined_text(i));
    out->ready_nodes = view.ready_nodes;
    out->min_nodes = r.options->min_nodes;
    out->max_nodes = r.options->max_nodes;
    out->world_nodes = world_ ? static_cast<std::uint32_t>(world_->nodes.size()) : 0;
    out->wanted_nodes = view.wanted_nodes;
    out->wanted_text = view.not_yet;
    out->spares = r.options->spares;
    out->restarts_left = view.restarts_left;
    out->max_restarts = r.options->max_restarts;
    out->ranks = rank_statuses();
    out->checkpoints = checkpoint_statuses(view);
    auto memory = arena_.memory();
    out->arena_bytes = memory.bytes;
    out->arena_ready_bytes = memory.ready_bytes;
    out->prefault_us = static_cast<std::uint64_t>(memory.prefault_time.count());
    out->arena_charge = record_.charge_job ? "job" : "node";
    out->memory_need_bytes = memory.need_bytes;
    out->memory_slots = static_cast<std::uint16_t>(memory.slots);
    if (!memory_refused_.empty()) out->memory_refused = memory_refused_.begin()->second;
    out->redundancy = r.options->redundancy;
    out->goodput = std::make_unique<local::GoodputT>(to_proto(final_goodput_.value_or(view.goodput)));
    out->note = record_.end_message;
    if (storage_) out->storage = storage_->status();
    if (has_mover()) {
        out->mover = mover_ ? mover_->status() : std::make_unique<local::MoverStatusT>();
        out->mover->node = services_.node;
    }
    if (copies_) out->copies = copies_status(view);
    out->verified = verified_status();
    if (pmix_) out->pmix = pmix_->status();
    for (const elastic::Suspect &suspect : world_ ? world_->suspects : std::vector<elastic::Suspect>{}) {
        auto entry = std::make_unique<local::SuspectStepT>();
        entry->train_step = suspect.id.step.value();
        entry->generation = to_proto_ptr(suspect.id.generation);
        entry->back_to = suspect.back_to.value();
        entry->by_person = suspect.by_person;
        entry->since = to_proto_ptr(suspect.since);
        out->suspects.push_back(std::move(entry));
    }
    if (world_ && world_->restore_step)
        out->restore_step = static_cast<std::int64_t>(world_->restore_step->value());
    out->started_us = record_.started_us;
    if (is_kept())
        out->kept_us = static_cast<std::uint64_t>(
            std::max(kept_until_us() - services_.loop.now().count(), std::int64_t{1}));
    return out;
}

}  // namespace dlrover::daemon
