// SPDX-License-Identifier: Apache-2.0
#include "daemon/daemon.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/units.h"
#include "common/log.h"
#include "daemon/registration.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time ready_interval = std::chrono::seconds(5);
constexpr EventLoop::Time longest_sweep_pause = std::chrono::seconds(15);
constexpr EventLoop::Time idle_limit = std::chrono::seconds(60);

local::Refusal refusal_for(const Status &status) {
    if (status.code() == Code::unavailable || status.code() == Code::timeout) return local::Refusal::NotReady;
    if (status.code() == Code::invalid_argument) return local::Refusal::BadMessage;
    if (status.code() == Code::resource_exhausted) return local::Refusal::NoMemory;
    if (status.code() == Code::stale) return local::Refusal::Stale;
    return local::Refusal::NotPermitted;
}

}  // namespace

Daemon::Daemon(EventLoop &loop, Options options, const Settings &settings, RecordKeeper &keeper,
               ckpt::Prefaulter &prefaulter, MemoryBudget &budget, SlurmClient &slurm,
               transport::PeerNetwork &peers, std::function<std::uint16_t()> free_port)
    : loop_(loop),
      options_(std::move(options)),
      settings_(settings),
      keeper_(keeper),
      prefaulter_(prefaulter),
      budget_(budget),
      slurm_(slurm),
      peers_(peers),
      free_port_(std::move(free_port)) {}

Daemon::~Daemon() {
    *alive_ = false;
    budget_.use_kept(nullptr);
}

GroupServices Daemon::services() {
    return {loop_,
            *port_,
            keeper_,
            prefaulter_,
            budget_,
            slurm_,
            peers_,
            settings_,
            options_.node,
            free_port_,
            options_.numa_node_of,
            !options_.standalone,
            &site_};
}

void Daemon::start(std::vector<KeptRecord> kept, LocalPort &port) {
    port_ = &port;
    peers_.set_callbacks({[this](const std::string &node, transport::PeerEnvelope envelope) {
                              on_peer(node, std::move(envelope));
                          },
                          [this](const std::string &node, bool up) {
                              relay_.on_link(node, up);
                              joiner_.on_link(node, up);
                              for (auto &[key, group] : groups_) group->on_peer_link(node, up);
                          }});
    find_memory_spec();
    site_.start();
    slurm_.on_return([this, alive = alive_] {
        if (!*alive) return;
        for (auto &[key, group] : groups_) group->on_slurm_return();
    });
    budget_.use_kept(this);
    restore(std::move(kept));
    sweep();
    watch_floor();
    watch_own_time();
    say_ready();
}

void Daemon::say_ready() {
    keeper_.ready();
    ready_timer_ = loop_.after(ready_interval, [this] { say_ready(); });
}

void Daemon::watch_own_time() {
    if (auto text = standstill_.look(loop_.now(), own_thread_time())) {
        log::warning("this daemon " + *text);
        for (auto &[key, group] : groups_) group->tell_standstill(*text);
    }
    own_timer_ = loop_.after(Standstill::interval, [this] { watch_own_time(); });
}

// ---- after a restart ----

void Daemon::restore(std::vector<KeptRecord> kept) {
    std::map<std::string, Group *> by_name;
    for (auto &record : kept) {
        auto name = parse_record_name(record.name);
        auto decoded = decode_record(record.value);
        auto *group = decoded.ok() ? decoded->body.AsGroupRecord() : nullptr;
        if (!name || name->kind != "group" || !group || !group->registration) continue;
        if (!check_registration(*group->registration, options_.node).ok()) continue;
        auto made = std::make_unique<Group>(services(), std::move(*group));
        by_name[made->key()] = made.get();
        if (made->own_step()) aliases_[*made->own_step()] = {made->job(), made->step()};
        groups_[{made->job(), made->step()}] = std::move(made);
    }
    for (auto &record : kept) {
        auto name = parse_record_name(record.name);
        if (name && name->kind == "group" && by_name.contains(name->group)) continue;
        auto group = name ? by_name.find(name->group) : by_name.end();
        if (group == by_name.end()) {
            log::warning("a record of no group is dropped: " + record.name);
            keeper_.drop(record.name);
            continue;
        }
        group->second->restore(*name, record.value, std::move(record.fd));
    }
    for (auto &[key, group] : groups_) group->resume();
    if (!groups_.empty()) log::info(std::to_string(groups_.size()) + " groups were taken over");
}

// ---- messages of this node ----

void Daemon::on_message(const Client &from, local::MessageT message) {
    switch (from.role) {
        case local::Role::Spank:
            if (auto *step = message.body.AsRegisterStep())
                return on_register(from, message.id, std::move(*step));
            if (auto *end = message.body.AsEndStep()) return on_end_step(from, message.id, *end);
            break;
        case local::Role::Agent:
            return on_agent(from, std::move(message));
        case local::Role::Worker:
            return on_worker(from, std::move(message));
        case local::Role::Writer:
            return on_writer(from, message);
        case local::Role::Cli:
            return on_query(from, std::move(message));
        case local::Role::Mover:
            return on_mover(from, message);
        case local::Role::Pmix:
            return on_pmix(from, message);
        case local::Role::None:
            break;
    }
    port_->fail(from.id, message.id, local::Refusal::BadMessage, "this role has no such message");
}

void Daemon::on_closed(const Client &client) {
    if (Group *group = group_of(client.id)) group->on_closed(client);
    members_.erase(client.id);
}

Group *Daemon::find(std::uint32_t job_id, std::uint32_t step_id) {
    Key key(JobId{job_id}, StepId{step_id});
    auto alias = aliases_.find(key);
    auto it = groups_.find(alias == aliases_.end() ? key : alias->second);
    return it == groups_.end() ? nullptr : it->second.get();
}

Group *Daemon::group_of(ConnectionId connection) {
    auto it = members_.find(connection);
    if (it == members_.end()) return nullptr;
    auto group = groups_.find(it->second);
    return group == groups_.end() ? nullptr : group->second.get();
}

Group *Daemon::admit(const Client &from, std::uint32_t id, std::uint32_t job_id, std::uint32_t step_id) {
    Group *group = find(job_id, step_id);
    Status joins = group ? Status() : joiner_.state({JobId(job_id), StepId(step_id)}, from.uid);
    if (!joins.ok()) {
        auto refusal =
            joins.code() == Code::unavailable ? local::Refusal::NotReady : local::Refusal::NoSuchGroup;
        port_->fail(from.id, id, refusal, joins.message());
        return nullptr;
    }
    // Somebody else's group does not exist for the asker.
    if (!group || group->uid() != from.uid) {
        port_->fail(from.id, id, local::Refusal::NoSuchGroup,
                    "node " + options_.node + " knows no elastic step " + std::to_string(job_id) + "." +
                        std::to_string(step_id) + " of yours");
        return nullptr;
    }
    Key key(group->job(), group->step());
    auto [it, fresh] = members_.emplace(from.id, key);
    if (!fresh && it->second != key) {
        port_->fail(from.id, id, local::Refusal::BadMessage, "this connection belongs to another step");
        return nullptr;
    }
    return group;
}

template <typename HelloT>
Group *Daemon::group_for(const Client &from, std::uint32_t id, const HelloT *hello, const char *name) {
    if (hello) return admit(from, id, hello->job_id, hello->step_id);
    Group *group = group_of(from.id);
    if (!group) port_->fail(from.id, id, local::Refusal::BadMessage, "say " + std::string(name) + " first");
    return group;
}

void Daemon::on_agent(const Client &from, local::MessageT message) {
    Group *group = group_for(from, message.id, message.body.AsAgentHello(), "AgentHello");
    if (!group) return;
    port_->hold(from.id);
    group->on_agent_message(from, std::move(message));
    pace(from.id);
}

void Daemon::on_worker(const Client &from, local::MessageT message) {
    const auto *leave = message.body.AsLeaveGeneration();
    Group *group = leave ? admit(from, message.id, leave->job_id, leave->step_id)
                         : group_for(from, message.id, message.body.AsWorkerHello(), "WorkerHello");
    if (!group) return;
    port_->hold(from.id);
    group->on_worker_message(from, std::move(message));
    pace(from.id);
}

void Daemon::on_writer(const Client &from, const local::MessageT &message) {
    Group *group = group_for(from, message.id, message.body.AsWriterHello(), "WriterHello");
    if (group) group->on_writer_message(from, message);
}

void Daemon::on_mover(const Client &from, const local::MessageT &message) {
    Group *group = group_for(from, message.id, message.body.AsMoverHello(), "MoverHello");
    if (group) group->on_mover_message(from, message);
}

void Daemon::on_pmix(const Client &from, const local::MessageT &message) {
    Group *group = group_for(from, message.id, message.body.AsPmixHello(), "PmixHello");
    if (group) group->on_pmix_message(from, message);
}

void Daemon::pace(ConnectionId connection) {
    keeper_.when_stored([this, alive = alive_, connection] {
        if (*alive) port_->release(connection);
    });
}

// ---- registration ----

bool Daemon::may_register(const Client &client) const {
    return client.uid == 0 || (options_.standalone && client.uid == options_.own_uid);
}

void Daemon::on_register(const Client &from, std::uint32_t id, local::RegisterStepT message) {
    if (!may_register(from))
        return port_->fail(from.id, id, local::Refusal::NotPermitted, "only root may register a step");
    if (!message.step) return port_->fail(from.id, id, local::Refusal::BadMessage, "the step is missing");
    auto step = std::make_shared<proto::StepRegistrationT>(std::move(*message.step));
    Status status = check_registration(*step, options_.node);
    if (options_.standalone && step->uid != options_.own_uid)
        status = Status(Code::permission_denied, "a daemon in standalone mode serves its own user only");
    if (status.ok() && !step->companion_jobs.empty())
        status = Status(Code::invalid_argument, "a new step has its own nodes only");
    if (!status.ok()) return port_->fail(from.id, id, refusal_for(status), status.message());
    if (options_.standalone) return accept_step(from.id, id, std::move(*step), {}, nullptr);
    if (!memory_spec_known_) find_memory_spec();
    if (message.join)
        return on_register_joiner(from.id, id, std::move(*step), std::move(message.launch), *message.join);
    auto launch = std::make_shared<Launch>(std::move(message.launch));
    slurm_.load_step(JobId(step->job_id), StepId(step->step_id),
                     [this, alive = alive_, to = from.id, id, step, launch](Result<SlurmStep> slurm) {
                         if (!*alive) return;
                         Status checked = slurm.ok() ? check_with_slurm(*step, *slurm) : slurm.take_status();
                         if (checked.ok())
                             return accept_step(to, id, std::move(*step), slurm->job.user,
                                                std::move(*launch));
                         log::warning({JobId(step->job_id), StepId(step->step_id)},
                                      "the step is refused: " + checked.message());
                         port_->fail(to, id, refusal_for(checked), checked.message());
                     });
}

/// Asked before the step's own question: answers come in order, so it is known when a step is accepted.
void Daemon::find_memory_spec() {
    if (options_.standalone || settings_.memory.arena_charge == ArenaCharge::job) return;
    slurm_.load_addresses({options_.node}, [this, alive = alive_](Result<std::vector<NodeAddress>> found) {
        if (!*alive) return;
        memory_spec_known_ = found.ok() || found.status().code() == Code::not_found;
        if (!memory_spec_known_)
            return log::warning("whether this node has a MemSpecLimit: " + found.status().message());
        if (found.ok()) memory_spec_bytes_ = found->front().memory_spec_bytes;
        budget_.limit_node(memory_spec_bytes_);
    });
}

bool Daemon::charges_jobs() const {
    ArenaCharge charge = settings_.memory.arena_charge;
    if (charge != ArenaCharge::automatic) return charge == ArenaCharge::job;
    return !options_.standalone && memory_spec_bytes_ == 0;
}

std::string Daemon::charge_in_words() const {
    if (charges_jobs()) return "their jobs";
    std::string text = "the daemon";
    if (memory_spec_bytes_ > 0) text += " (MemSpecLimit " + format_size_bytes(memory_spec_bytes_) + ")";
    return text;
}

/// Those that have not ended.
std::size_t Daemon::groups_of(std::uint32_t uid) const {
    return static_cast<std::size_t>(std::count_if(groups_.begin(), groups_.end(), [&](const auto &entry) {
        return entry.second->uid() == uid && !entry.second->ended();
    }));
}

Status Daemon::room_for(std::uint32_t uid) {
    if (groups_.size() >= settings_.limits.groups) forget_oldest_ended();
    if (groups_.size() >= settings_.limits.groups)
        return Status(Code::resource_exhausted, "this node has " + std::to_string(groups_.size()) +
                                                    " groups, more are not allowed (limits.groups)");
    if (std::size_t mine = groups_of(uid); mine >= settings_.limits.groups_per_user)
        return Status(Code::resource_exhausted,
                      "you have " + std::to_string(mine) +
                          " elastic steps on this node, more are not allowed (limits.groups_per_user): "
                          "start fewer at a time");
    return {};
}

void Daemon::accept_step(ConnectionId to, std::uint32_t id, proto::StepRegistrationT step, std::string user,
                         Launch launch) {
    Key key(JobId(step.job_id), StepId(step.step_id));
    auto known = groups_.find(key);
    if (known != groups_.end()) {
        const Group &group = *known->second;
        bool same = !group.ended() && group.uid() == step.uid &&
                    group.registration().restart_count == step.restart_count;
        if (same) return port_->done(to, id);
    }
    std::string lineage = lineage_of(step);
    auto before = take_kept(key, step, lineage);
    if (Status room = room_for(step.uid); !room.ok()) {
        if (before) before->drop_all();
        return port_->fail(to, id, local::Refusal::NoMemory, room.message());
    }
    records::GroupRecordT record;
    record.lineage = lineage;
    shorten(step);
    record.registration = std::make_unique<proto::StepRegistrationT>(std::move(step));
    record.user = std::move(user);
    // A group keeps its charge for life, and what it takes over has one.
    record.charge_job = before ? before->charges_job() : charges_jobs();
    record.started_us = wall_clock_us();
    auto group = std::make_unique<Group>(services(), std::move(record));
    if (before) group->adopt(*before);
    group->keep_launch(usable(std::move(launch)));
    group->save([this, alive = alive_, to, id, key](Status stored) {
        if (!*alive) return;
        if (stored.ok()) return port_->done(to, id);
        forget(key);
        log::error("a step is not on record: " + stored.message());
        port_->fail(to, id, local::Refusal::Internal, "the step could not be put on record");
    });
    log::info({key.first, key.second}, "registered, lineage " + log::one_line(group->lineage()));
    group->find_addresses();
    groups_[key] = std::move(group);
}

void Daemon::on_end_step(const Client &from, std::uint32_t id, const local::EndStepT &end) {
    if (!may_register(from))
        return port_->fail(from.id, id, local::Refusal::NotPermitted, "only root may end a step");
    Group *group = find(end.job_id, end.step_id);
    if (!group) joiner_.forget({JobId(end.job_id), StepId(end.step_id)});
    if (!group) return port_->fail(from.id, id, local::Refusal::NoSuchGroup, "no such step here");
    group->on_step_ended();
    port_->done(from.id, id);
    check_step({group->job(), group->step()});
}

// ---- peers ----

void Daemon::on_peer(const std::string &node, transport::PeerEnvelope envelope) {
    if (envelope.kind == transport::PeerEnvelope::Kind::request) return on_peer_request(node, envelope);
    if (envelope.kind == transport::PeerEnvelope::Kind::reply) return relay_.on_reply(node, envelope);
    if (envelope.kind == transport::PeerEnvelope::Kind::join) return on_join_word(node, envelope);
    Group *group = find(envelope.job_id, envelope.step_id);
    if (!group || group->registration().restart_count != envelope.restart_count) return;
    if (envelope.kind == transport::PeerEnvelope::Kind::flush)
        return group->on_flush_word(node, envelope.payload);
    if (envelope.kind == transport::PeerEnvelope::Kind::move)
        return group->on_move_word(node, envelope.payload);
    if (envelope.kind == transport::PeerEnvelope::Kind::pmix)
        return group->on_pmix_word(node, envelope.payload);
    group->on_peer_message(node, envelope.payload);
}

// ---- the dead ----

void Daemon::sweep() {
    std::vector<Key> dead, doubtful;
    for (const auto &[key, group] : groups_) {
        EventLoop::Time idle = group->idle_time();
        if (group->ended() && !group->is_kept() && idle > settings_.memory.dead_group_ttl)
            dead.push_back(key);
        if (!group->ended() && idle > idle_limit) doubtful.push_back(key);
    }
    for (Key key : dead) forget(key);
    for (Key key : doubtful) check_step(key);
    check_kept();
    schedule_sweep();
}

/// Often enough to forget dead groups about when they are due.
void Daemon::schedule_sweep() {
    auto pause = std::clamp<EventLoop::Time>(settings_.memory.dead_group_ttl / 2, std::chrono::seconds(1),
                                             longest_sweep_pause);
    sweep_timer_ = loop_.after(pause, [this] { sweep(); });
}

/// A group without processes here: does Slurm still know its step?
void Daemon::check_step(Key key) {
    auto it = groups_.find(key);
    if (it == groups_.end() || it->second->ended()) return;
    const char *over = "The step ended before its group did.";
    if (options_.standalone) return it->second->end_here(1, over);
    // A node that has joined has a step of its own.
    auto own = it->second->own_step();
    auto [job, number] = own.value_or(key);
    bool is_own = job != key.first;
    slurm_.load_step(job, number, [this, alive = alive_, key, over, is_own](Result<SlurmStep> step) {
        if (!*alive) return;
        auto group = groups_.find(key);
        if (group == groups_.end()) return;
        std::uint32_t run = is_own ? 0 : group->second->registration().restart_count;
        bool gone = step.ok() ? !step->job.running || step->job.restart_count != run
                              : step.status().code() == Code::not_found;
        if (gone) group->second->end_here(1, over, proto::NextRun::Perhaps);
    });
}

/// Running groups need the room more than the time lines of ended ones. What is kept in memory for a job's
/// next run goes last, and of the user first who has most of it: who keeps more drops nobody else's.
void Daemon::forget_oldest_ended() {
    std::map<std::uint32_t, std::size_t> kept_of;
    for (const auto &[key, group] : groups_)
        if (group->is_kept()) ++kept_of[group->uid()];
    auto rank = [&](const Group &group) {
        std::size_t kept = group.is_kept() ? kept_of[group.uid()] : 0;
        return std::tuple(!group.is_kept(), kept, group.idle_time());
    };
    auto oldest = groups_.end();
    for (auto it = groups_.begin(); it != groups_.end(); ++it)
        if (it->second->ended() && (oldest == groups_.end() || rank(*it->second) > rank(*oldest->second)))
            oldest = it;
    if (oldest == groups_.end()) return;
    if (oldest->second->is_kept())
        log::warning(
            {oldest->first.first, oldest->first.second},
            "the checkpoints kept in memory for the job's next run are dropped: there is no room for "
            "more groups (limits.groups)");
    forget(oldest->first);
}

void Daemon::forget(Key key) {
    auto it = groups_.find(key);
    if (it == groups_.end()) return;
    it->second->drop_all();
    release_key(key);
}

void Daemon::release_key(Key key) {
    groups_.erase(key);
    std::erase_if(aliases_, [&](const auto &entry) { return entry.second == key; });
    std::erase_if(members_, [&](const auto &entry) { return entry.second == key; });
}

}  // namespace dlrover::daemon
