// SPDX-License-Identifier: Apache-2.0
#include "daemon/group.h"

#include <algorithm>

#include "base/fault.h"
#include "common/log.h"
#include "daemon/registration.h"
#include "daemon/summary.h"
#include "daemon/wall_clock.h"
#include "elastic/large_group.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time farewell = std::chrono::seconds(30);
/// The member does not wait for the answer.
constexpr std::uint64_t no_request = 0;

ArenaOptions arena_options(const GroupServices &services, const records::GroupRecordT &record,
                           const std::string &key) {
    const auto &memory = services.settings.memory;
    return {key,
            record.registration->uid,
            static_cast<std::uint32_t>(memory.slots),
            memory.huge_pages == HugePages::try_first,
            copies_of(record) > 0,
            record.registration->restart_count};
}

/// Only the leader notes it, before it tells the members.
bool counts_step(const std::vector<elastic::Action> &actions) {
    return std::ranges::any_of(actions, [](const elastic::Action &action) {
        auto *note = std::get_if<elastic::Note>(&action);
        return note && note->kind == elastic::Note::Kind::checkpoint_complete;
    });
}

std::string key_of(const records::GroupRecordT &record) {
    return group_key(JobId(record.registration->job_id), StepId(record.registration->step_id));
}

}  // namespace

Group::Group(GroupServices services, records::GroupRecordT record)
    : services_(std::move(services)),
      record_(std::move(record)),
      key_(key_of(record_)),
      arena_({services_.loop, services_.keeper, services_.prefaulter, services_.budget,
              record_.charge_job ? this : nullptr},
             arena_options(services_, record_, key_)),
      verify_({services_.loop, services_.port, arena_}, verify_hooks()),
      pages_(services_.keeper, services_.budget, key_, record_.registration->uid),
      events_(services_.settings.limits.events_kept),
      last_seen_(services_.loop.now()) {}

Group::~Group() {
    *alive_ = false;
    for (const auto &[node, address] : addresses_)
        if (node != services_.node) services_.peers.release(node);
}

// ---- records ----

void Group::restore(const RecordName &name, std::span<const std::uint8_t> value, UniqueFd fd) {
    if (name.kind == "promise") return restore_promise(value);
    auto record = decode_record(value);
    if (!record) return log::error({job(), step()}, "record " + name.kind + ": " + record.status().message());
    auto &body = record->body;
    if (auto *world = body.AsWorldRecord()) {
        world_ = from_record(*world);
        if (world->complete_step >= 0)
            complete_ = TrainStep(static_cast<std::uint64_t>(world->complete_step));
        sums_ = std::move(world->sums);
        if (world->damaged) damaged_ = from_record(*world->damaged);
    } else if (auto *page = body.AsPageRecord())
        pages_.restore(name, *page, std::move(fd));
    else if (auto *events = body.AsEventsRecord())
        events_.load(std::move(*events));
    else if (auto *piece = body.AsLaunchRecord())
        restore_launch(name, std::move(*piece));
    else
        arena_.restore(name, *record, std::move(fd));
}

void Group::restore_promise(std::span<const std::uint8_t> value) {
    auto promise = decode_promise(value, elastic::max_table);
    if (promise.ok())
        promise_ = std::move(*promise);
    else
        log::error({job(), step()}, "the promise on record: " + promise.status().message());
}

void Group::resume() {
    put_together_launch();
    arena_.finish_restore();
    use_recorded_addresses();
    find_addresses();
    // Where copies are kept, the leader says anew what is free.
    if (world_ && complete_ && !has_copies()) {
        // The record does not say whether what the world goes on from was saved again by all: then both stay.
        bool from = complete_ == world_->restore_step;
        arena_.complete({from ? world_->restore_generation : world_->id, *complete_});
    }
    // A generation promised after the one in force: the workers of that one were told to stop.
    if (promise_ && world_ && promise_->generation > world_->id) stopping_ = world_->id;
    add_event(proto::EventKind::DaemonRestarted, "The daemon was started again; training went on.");
    resume_requeue();
    if (record_.ended) watch_job();
    if (record_.ended || record_.workers == 0) return;
    if (record_.ending) {
        create_storage();
        return storage_ ? begin_ending() : finish_end();
    }
    create_member();
    tell_storage_of_world();
    tell_pmix_of_world();
    if (world_ && copies_) {
        auto part = part_in(*world_);
        arena_.drop_guest_grants(part.ranks.empty() ? Rank(0) : part.ranks.front(),
                                 static_cast<std::uint32_t>(part.ranks.size()));
        arena_.release_grants_before(world_->id);
        tell_copies_of_world();
    }
    tell_arena_of_world();
    if (auto damaged = std::exchange(damaged_, std::nullopt)) feed(elastic::LocalDamaged{*damaged});
    feed(objects_here());
}

void Group::save_events() {
    events_timer_.reset();
    services_.keeper.put(record_name("events", key_), encode_record(events_.save()));
    fault_point("daemon_events_on_record");
}

// ---- the member ----

elastic::GroupConfig Group::config() const {
    const auto &r = registration();
    elastic::GroupConfig c;
    c.self = self();
    for (std::uint32_t i = 0; i < r.node_names.size(); ++i) {
        c.nodes.push_back({static_cast<std::uint16_t>(ranks_of(NodeIndex(i))), r.node_names[i]});
        if (i >= own_nodes()) {
            auto [by, step] = joined_by(r, i - own_nodes());
            by == job() ? void(c.nodes.back().step = step) : void(c.nodes.back().companion = by);
        }
        if (r.node_names[i] == r.batch_host && i < own_nodes()) c.batch_host = NodeIndex(i);
    }
    c.step_nodes = own_nodes();
    const auto &allowed = services_.settings.slurm;
    c.replacements =
        services_.requeues && (allowed.companion_jobs || allowed.expansion) && r.options->companions;
    c.expansion = allowed.expansion;
    c.min_nodes = r.options->min_nodes;
    c.max_nodes = r.options->max_nodes;
    c.spares = r.options->spares;
    c.node_unit = r.options->node_unit;
    c.max_restarts = r.options->max_restarts;
    c.requeues_without_host = r.options->requeue_without_host;
    c.slurm_restart_count = r.restart_count;
    c.storage = !r.options->ckpt_dir.empty();
    c.copies = copies();
    if (Redundancy redundancy = redundancy_of(record_); redundancy.data > 0)
        c.code = {redundancy.data, redundancy.copies};
    c.checks = has_mover() && services_.requeues;
    c.lost_before = r.lost_before;
    c.any_size = c.copies > 0;  // each object is on a node that is left, whichever rank it is of
    const auto &t = services_.settings.timing;
    c.timings = {t.heartbeat, t.leader_silence,  t.election,   t.election_step, t.agent_lease,
                 t.join,      t.incident_window, t.fence_wait, t.without_slurm};
    elastic::suit_size(c);
    return c;
}

/// Its agents', which grows with a large group.
EventLoop::Time Group::agent_lease() const {
    const auto &t = services_.settings.timing;
    elastic::Timings set;
    set.heartbeat = t.heartbeat;
    set.leader_silence = t.leader_silence;
    set.agent_lease = t.agent_lease;
    return elastic::suited(set, own_nodes()).agent_lease;
}

void Group::create_member() {
    create_storage();
    create_copies();
    create_pmix();
    leader_heard_ = services_.loop.now();
    watch_for_leader();
    note_removed();
    member_ = std::make_unique<elastic::Member>(config(), promise_, services_.loop.now());
    if (sums_) member_->resume(from_record(*sums_), elastic::Time(sums_->at_us));
    sums_.reset();
    if (storage_ && storage_->stored()) feed_later(elastic::LocalDurable{*storage_->stored()});
    tell_switches();
    schedule();
}

void Group::feed(const elastic::Input &input) {
    if (!member_) return;
    auto actions = member_->step(services_.loop.now(), input);
    bool counted = counts_step(actions);
    if (counted) fault_point("daemon_step_counted");
    for (auto &action : actions) perform(action);
    if (counted) fault_point("daemon_step_told");
    watch_job_end();
    schedule();
}

void Group::feed_later(elastic::Input input) {
    services_.loop.post([this, alive = alive_, input = std::move(input)] {
        if (*alive) feed(input);
    });
}

void Group::schedule() {
    auto wait = std::max(member_->next_deadline() - services_.loop.now(), EventLoop::Time(0));
    member_timer_ = services_.loop.after(std::min<EventLoop::Time>(wait, std::chrono::hours(1)),
                                         [this] { feed(elastic::Tick{}); });
}

void Group::perform(elastic::Action &action) {
    std::visit([this](auto &a) { act(a); }, action);
}

void Group::act(elastic::SendMessage &action) {
    proto::Bytes bytes = encode_message(action.message);
    action.also.insert(action.also.begin(), action.to);
    for (NodeIndex to : action.also)
        send_envelope(node_name(to), transport::PeerEnvelope::Kind::group, bytes);
}

void Group::send_to(const std::string &node, const elastic::Message &message) {
    send_envelope(node, transport::PeerEnvelope::Kind::group, encode_message(message));
}

void Group::send_envelope(const std::string &node, transport::PeerEnvelope::Kind kind, proto::Bytes payload) {
    transport::PeerEnvelope envelope;
    envelope.kind = kind;
    envelope.job_id = registration().job_id;
    envelope.step_id = registration().step_id;
    envelope.restart_count = registration().restart_count;
    envelope.payload = std::move(payload);
    services_.peers.send(node, std::move(envelope));
}

void Group::act(elastic::Store &action) {
    std::uint16_t port = 0;
    // Never the same twice in a row: the former one may still be held by a process that is ending.
    for (int i = 0; action.want_port && (port == 0 || port == last_port_) && i < 16; ++i)
        port = services_.free_port();
    if (action.want_port) last_port_ = port;
    promise_ = action.promise;
    note_removed();
    services_.keeper.put(
        record_name("promise", key_), encode_promise(action.promise), -1,
        [this, alive = alive_, sequence = action.sequence, port](Status stored) {
            if (!*alive) return;
            // Without the record this node must not answer: it keeps silent.
            if (!stored.ok())
                return log::error({job(), step()}, "a promise is not on record: " + stored.message());
            feed(elastic::Stored{sequence, port});
        });
}

void Group::act(elastic::Publish &action) {
    // After a restart of the daemon the member may know less of this world than the record.
    bool again = world_ && world_->id == action.world.id;
    if (!again) {
        world_ = std::move(action.world);
        complete_ = world_->restore_step;
        if (record_.requeued && !record_.ended) {
            forget_requeue();
            save();
        }
        fault_point("daemon_before_world_record");
        save_world();
        fault_point("daemon_world_on_record");
        std::optional<CheckpointId> from;
        if (world_->restore_step) from = CheckpointId{world_->restore_generation, *world_->restore_step};
        arena_.rewind(from, world_->id);
        fault_point("daemon_slots_rewound");
        // What there is then: slots may be given up before.
        services_.loop.post([this, alive = alive_] {
            if (*alive) feed(objects_here());
        });
        rank_states_.clear();
        losses_told_.clear();
        progress_.clear();
        tell_storage_of_world();
        tell_copies_of_world();
        tell_pmix_of_world();
        tell_arena_of_world();
        give_back_strangers();
    }
    for (auto &[task, agent] : agents_) push_world(agent);
    note_left();
    if (!again) verify_restore_point();
}

void Group::act(elastic::StopWorkers &action) {
    if (action.generation == GenerationId{}) return;
    stopping_ = std::max(stopping_, action.generation);
    // Programs hear why before their agents, once they know, end them.
    tell_losses(action.losses);
    tell_stop(stopping_, action.reason);
    verify_.stop();
    GenerationId next{action.generation.term, action.generation.number + 1};
    arena_.release_grants_before(next);
    // Who runs nothing has nothing to end.
    for (auto &[task, agent] : agents_)
        if (agent.running == GenerationId{})
            agent.stopped = std::max(agent.stopped, stopping_);
        else
            push_stop(agent, action.reason);
    note_left();
    if (copies_ && world_ && stopping_ >= world_->id) {
        copies_->stop();
        tables_->on_world(std::nullopt);
    }
    services_.loop.post([this, alive = alive_] {
        if (*alive) report_stopped();
    });
}

void Group::act(elastic::RenewLease &) {
    auto now = services_.loop.now();
    leader_heard_ = now;
    if (now - lease_pushed_ < agent_lease() / 5) return;
    lease_pushed_ = now;
    if (world_) save_world();
    settle();
    for (const auto &[task, agent] : agents_) {
        local::LeaseRenewedT renewed;
        renewed.at_us = now.count();
        services_.port.push(agent.connection, std::move(renewed));
    }
}

void Group::act(elastic::StepComplete &action) {
    if (complete_ == action.step || !world_) return;
    complete_ = action.step;
    fault_point("daemon_before_complete_record");
    save_world();
    fault_point("daemon_complete_on_record");
    if (storage_)
        storage_->on_complete({{action.generation, action.step}, world_size(*world_), world_->nodes});
}

void Group::act(elastic::StepFreed &action) {
    fault_point("daemon_before_slots_freed");
    arena_.complete(action.id, action.keep);
    fault_point("daemon_slots_freed");
    settle();
    give_back_strangers();
}

void Group::act(elastic::Protect &action) {
    if (copies_) copies_->protect(action.id);
}

void Group::act(elastic::StepsVoid &action) {
    arena_.give_up(action.below, action.generation, action.complete);
    bool was_complete = complete_ && *complete_ < action.below &&
                        (!action.complete || *complete_ > *action.complete) && world_ &&
                        (action.generation == world_->id || *complete_ == world_->restore_step);
    if (!was_complete) return;
    CheckpointId gone{action.generation, *complete_};
    complete_ = action.complete;
    save_world();
    if (storage_) storage_->on_lost(gone);
}

void Group::save_world() {
    auto record = to_record(*world_);
    record.complete_step = complete_ ? static_cast<std::int64_t>(complete_->value()) : -1;
    if (member_) {
        auto view = member_->view();
        record.sums = to_record(view.goodput, view.goodput_at);
        if (view.damaged) record.damaged = to_record(*view.damaged);
    }
    services_.keeper.put(record_name("world", key_), encode_record(std::move(record)));
}

void Group::act(elastic::AskSlurm &action) {
    using What = elastic::AskSlurm::What;
    auto done = [this, alive = alive_, request = action.request](const Status &status) {
        if (*alive) answer_slurm(request, status);
    };
    std::vector<std::string> names;
    for (NodeIndex node : action.nodes) names.push_back(node_name(node));
    switch (action.what) {
        case What::read_job:
            return read_job(action.request);
        case What::shrink_to:
            return services_.slurm.shrink_job(
                job(), std::move(names),
                [this, alive = alive_, request = action.request, done](const Status &status) {
                    if (status.code() != Code::unsupported) return done(status);
                    if (!*alive) return;
                    elastic::SlurmAnswer answer{request, elastic::SlurmAnswer::Result::unable};
                    answer.text = status.message();
                    feed_later(std::move(answer));
                });
        case What::requeue:
            return request_requeue(std::move(names), done);
        case What::leave_behind:
            for (std::string &name : names) name = left_mark(name);
            return services_.slurm.mark_left(job(), registration().restart_count, std::move(names), done);
        case What::add_nodes:
            return add_companions(action.request, action.count, action.count);
        case What::expand_job:
            return expand_job(action.request, action.count);
        case What::drop_coming:
            return drop_coming(action.request);
        case What::end_companion:
            return end_companions(action.request, action.nodes);
    }
}

/// On record before Slurm is asked: this daemon may fall before it hears the answer, or of the group's end.
void Group::request_requeue(std::vector<std::string> excluded, SlurmClient::Done done) {
    record_.requeued = record_.asked_requeue = true;
    record_.requeued_us = wall_clock_us();
    record_.excluded = excluded;
    auto heard = [this, alive = alive_, done = std::move(done)](Status status) {
        if (!*alive) return;
        bool open = status.code() == Code::unavailable || status.code() == Code::timeout;
        bool refused = !status.ok() && !open && status.code() != Code::stale;
        bool is_to_come = record_.next_run == proto::NextRun::Comes;  // as another leader has told
        if (refused && !is_to_come) {
            forget_requeue();
            save();
        }
        done(std::move(status));
    };
    save(
        [this, alive = alive_, excluded = std::move(excluded), heard = std::move(heard)](const Status &kept) {
            if (!*alive) return;
            if (!kept.ok())
                log::warning({job(), step()},
                             "that the job is to be requeued is not on record: " + kept.message());
            services_.slurm.requeue_job(job(), requeue_order(excluded), heard);
        });
}

/// The job goes on, or is over.
void Group::forget_requeue() {
    record_.requeued = record_.asked_requeue = false;
    record_.requeued_us = 0;
    record_.excluded.clear();
}

/// A node with a job of its own is none of the job's, and a mark with its name is of an earlier life of it.
RequeueOrder Group::requeue_order(std::vector<std::string> excluded) const {
    RequeueOrder order{{}, {}, std::move(excluded), registration().restart_count};
    order.suspects = to_be_checked(order.excluded);
    if (in_own_job()) return order;
    order.asker = services_.node;
    order.mark = left_mark(services_.node);
    return order;
}

void Group::answer_slurm(std::uint64_t request, const Status &status, const SlurmJob *loaded,
                         std::vector<NodeIndex> over) {
    using Answer = elastic::SlurmAnswer::Result;
    elastic::SlurmAnswer answer;
    answer.request = request;
    answer.ended = std::move(over);
    answer.result = Answer::done;
    if (status.code() == Code::unavailable || status.code() == Code::timeout) {
        answer.result = Answer::unreachable;
        answer.text = status.message();
    } else if (status.code() == Code::not_found)
        answer.job_running = false;
    else if (!status.ok()) {
        answer.result = Answer::refused;
        answer.text = status.message();
    }
    if (loaded) {
        answer.job_running = loaded->running && loaded->restart_count == registration().restart_count;
        answer_job(answer, *loaded);
    }
    feed_later(std::move(answer));
}

/// Without those of jobs of their own, which may have the name of one that is out of the job.
void Group::answer_job(elastic::SlurmAnswer &answer, const SlurmJob &loaded) const {
    const auto &r = registration();
    std::set<std::string> nodes(loaded.nodes.begin(), loaded.nodes.end());
    std::set<std::string> left(loaded.left.begin(), loaded.left.end());
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        bool companion = i >= own_nodes() && joined_by(r, i - own_nodes()).first != job();
        if (companion) continue;
        if (nodes.contains(r.node_names[i])) answer.job_nodes.emplace_back(i);
        if (left.contains(left_mark(r.node_names[i]))) answer.left.emplace_back(i);
    }
}

// ---- the end ----

void Group::act(elastic::End &action) {
    final_goodput_ = action.goodput;
    dismissed_ = dismissed_ || action.dismissed;
    if (!over()) {
        record_.next_run = static_cast<proto::NextRun>(action.next_run);
        note_next_run(action);
        record_.evicted = action.evicted;
    }
    tell_end(action.exit_code, action.message);
}

void Group::note_next_run(const elastic::End &end) {
    if (end.next_run == elastic::NextRun::none) return forget_requeue();
    if (end.next_run != elastic::NextRun::comes) return;
    record_.requeued = true;
    record_.requeued_us = wall_clock_us();
    if (!end.excluded.empty()) record_.excluded.clear();
    for (NodeIndex node : end.excluded)
        if (node.value() < node_count()) record_.excluded.push_back(node_name(node));
}

void Group::tell_end(int exit_code, const std::string &message) {
    if (over()) return;
    end_stayers();
    record_.exit_code = exit_code;
    record_.end_message = message;
    record_.summary = final_goodput_ ? summary_text(*final_goodput_) : "";
    if (world_) tell_stop(world_->id, message.empty() ? "the group has ended" : message);
    if (storage_ && record_.workers != 0 && record_.removed_us == 0) return begin_ending();
    finish_end();
}

void Group::finish_end() {
    if (record_.ended) return;
    if (may_be_preempted()) return ask_whether_preempted();
    record_.ended = true;
    record_.ending = false;
    job_deadline_.reset();
    job_end_.reset();
    bool keeps = keep_memory();
    drop_launch();
    save();
    for (const auto &[task, agent] : agents_) push_end(agent);
    save_events();
    // The others are told for a while; who asks later is told when he asks.
    member_end_timer_ = services_.loop.after(farewell, [this] {
        member_timer_.reset();
        member_.reset();
    });
    if (!keeps) drop_memory();
    watch_job();
}

void Group::end_here(int exit_code, const std::string &message, proto::NextRun next_run) {
    if (record_.ending) return finish_end();
    if (record_.ended) return;
    record_.next_run = next_run;
    record_.evicted = own_step().has_value();  // the end of a joined node's own job is not the group's
    add_event(proto::EventKind::GaveUp, message);
    if (leads()) drop_coming(no_request);  // nobody else would
    tell_end(exit_code, message);
}

void Group::on_step_ended() {
    if (record_.removed_us == 0) record_.removed_us = wall_clock_us();
    agents_.clear();
    if (record_.ending) return finish_end();
    report_readiness();
    save();
}

void Group::drop_memory() {
    verify_.stop();
    copies_.reset();
    tables_.reset();
    arena_.drop();
    pages_.drop();
}

void Group::drop_all() {
    drop_memory();
    drop_launch();
    for (const char *kind : {"promise", "world", "events", "group"})
        services_.keeper.drop(record_name(kind, key_));
}

// ---- connections and peers ----

EventLoop::Time Group::idle_time() const {
    return agents_.empty() && workers_.empty() ? services_.loop.now() - last_seen_ : EventLoop::Time(0);
}

void Group::on_closed(const Client &client) {
    last_seen_ = services_.loop.now();
    if (Agent *agent = agent_of(client.id)) return on_agent_gone(agent->task);
    if (storage_) storage_->on_writer_gone(client.id);
    if (mover_) mover_->on_gone(client.id);
    if (pmix_) pmix_->on_gone(client.id);
    stayers_.erase(client.id);
    auto worker = workers_.find(client.id);
    if (worker == workers_.end()) return;
    tell_progress();
    end_worker(worker->second);
    workers_.erase(worker);
}

/// Empty: not known.
std::string Group::switch_of(const std::string &node) const {
    auto found = switches_.find(node);
    return found == switches_.end() ? "" : found->second;
}

/// Copies are kept on other switches' nodes first.
void Group::tell_switches() {
    if (switches_.empty()) return;
    std::set<std::string> all;
    for (const auto &[node, name] : switches_) all.insert(name);
    elastic::LocalDomains domains;
    for (const auto &node : registration().node_names) {
        auto found = all.find(switch_of(node));
        auto number = found == all.end() ? 0 : 1 + std::distance(all.begin(), found);
        domains.of.push_back(static_cast<std::uint32_t>(number));
    }
    feed_later(std::move(domains));
}

std::optional<NodeIndex> Group::index_of(const std::string &node) {
    const auto &names = registration().node_names;
    if (std::exchange(indexed_, names.size()) != names.size()) {
        indices_.clear();
        // One that was removed and joined again is its last entry.
        for (std::uint32_t i = 0; i < names.size(); ++i) indices_.insert_or_assign(names[i], NodeIndex(i));
    }
    auto it = indices_.find(node);
    if (it == indices_.end()) return std::nullopt;
    return it->second;
}

void Group::on_peer_message(const std::string &node, const std::vector<std::uint8_t> &payload) {
    auto from = index_of(node);
    if (!from) return;
    auto message = decode_message(payload, elastic::max_table);
    if (message.ok() && over() && !member_) return say_finished(node, *message);
    if (!message)
        return log::error({job(), step()},
                          "a message of " + node + " is refused: " + message.status().message());
    feed(elastic::PeerMessage{*from, std::move(*message)});
}

/// A daemon that was away when the group ended, or this one was started again since.
void Group::say_finished(const std::string &node, const elastic::Message &message) {
    // What ended here alone is not over for the others.
    if (std::holds_alternative<elastic::Finish>(message) || record_.evicted) return;
    Term term = std::visit([](const auto &m) { return m.term; }, message);
    if (promise_) term = std::max(term, promise_->term);
    elastic::Finish finish;
    finish.term = Term(term.value() + 1);
    finish.exit_code = record_.exit_code;
    finish.message = record_.end_message;
    finish.next_run = static_cast<elastic::NextRun>(record_.next_run);
    for (const std::string &name : record_.excluded)
        if (auto index = index_of(name)) finish.excluded.push_back(*index);
    send_to(node, finish);
}

void Group::on_peer_link(const std::string &node, bool up) {
    if (auto peer = index_of(node)) feed(elastic::PeerLink{*peer, !up});
}

}  // namespace dlrover::daemon
