// SPDX-License-Identifier: Apache-2.0
// Obeying a leader.
#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {

void Member::State::hear_leader() {
    leader_contact = now;
    leader_seen = true;
    reset_election();
}

bool Member::State::accept_leader(NodeIndex from, Term term) {
    term_seen = std::max(term_seen, term);
    if (removed(from) || term < promise.term) return false;
    if (term == promise.term && role == Role::leader) return is_self(from);
    if (role != Role::follower) step_down("another node leads with a term that is not lower");
    if (leader != from || term > promise.term) protect_told.reset();  // it may know of an older step only
    // Also who was not asked for a vote, since it has joined later, gives none to another in this term.
    bool is_new = term > promise.term;
    if (is_new || !promise.voted_for) {
        promise.term = term;
        promise.voted_for = from;
        persist();
    }
    if (leader != from) {
        replied = {};
        sent = {};
    }
    leader = from;
    if (!is_self(from)) followed = from;
    hear_leader();
    return true;
}

void Member::State::merge_removed(const std::vector<NodeIndex> &nodes, bool settled) {
    bool changed = add_all(promise.removed, nodes);
    if (settled) changed = add_all(promise.settled, nodes) || changed;
    if (changed) persist();
}

void Member::State::on_heartbeat(NodeIndex from, const Heartbeat &m) {
    if (contains(m.removed, config.self)) {
        // Slurm can not take the batch host out: there the leader's word is the last.
        if (config.batch_host == config.self && m.acting && m.term >= promise.term)
            return leave("the group has gone on without its batch host", 0, NextRun::none);
        // The word of a peer; only Slurm's own ends another node's part.
        if (m.term >= promise.term && !slurm.pending && now >= slurm.retry_at)
            ask(AskSlurm::What::read_job, {});
        return;
    }
    if (!accept_leader(from, m.term)) {
        if (!removed(from)) send_when_stored(from, HeartbeatReply{promise.term, 0, {}});
        return;
    }
    goodput = m.goodput;
    goodput_at = now;
    if (m.roster) merge_roster(*m.roster);
    merge_removed(m.removed, m.settled);
    take_scaling(m.scaling);
    auto answered = replied.find(m.acked);
    // Only a quick round trip proves that the leader counts on this node now: heartbeats can be late.
    bool counted_on = m.acting && answered && now - *answered < config.timings.leader_silence;
    if (counted_on) counted_on_at = *answered;
    if (counted_on) majority_lost.reset();  // the next time counts from when this leader is silent
    if (m.world && fits(*m.world)) take_world(*m.world, counted_on);
    // A late heartbeat may tell of a step that is lost by now; what this world goes on from is not.
    if (m.complete_step && belongs({m.complete_generation, *m.complete_step}))
        complete_here(*m.complete_step, m.complete_generation);
    asked_here(m.asked);
    // What this node has told of its objects for a newer world stays true until that one begins.
    // This node's own record may lack the world that its workers run.
    GenerationId known = std::max(world ? world->id : GenerationId{}, local.running);
    bool still = !world || promise.generation <= known;
    // With parities a late word about an earlier world's rows would be taken for one about this one's.
    if (config.code.data > 0) still = still && m.of_world >= known;
    if (still) tell_protection(m.protect, m.safe, m.freed);
    if (still && m.of_world >= known) {
        covered = m.covered;
        safe_here(covered);
    }
    durable_here(m.durable);
    job_end_here(m.job_ends_in);
    std::pair void_word(m.void_generation, m.void_below.value_or(TrainStep()));
    std::optional<SealTally::Complete> newest;
    if (m.complete_step) newest = {*m.complete_step, m.complete_generation};
    auto after = last_kept(newest, m.void_generation);
    bool news = void_told != void_word || after < void_after;
    if (m.void_below && world && world->id == m.void_generation && news) {
        void_told = void_word;
        void_here(*m.void_below, m.void_generation, after);
    }
    bool its_own = m.lost && world && m.of_world == world->id && belongs(*m.lost);
    if (its_own && m.lost->generation < world->id && lost_told != m.lost) lost_here(*m.lost);
    if (counted_on) out.push_back(RenewLease{});
    // It was sent after that answer came.
    if (answered && m.whole_ago) whole_at = std::max(whole_at, *answered - *m.whole_ago);
    replied.add(m.sequence, now);
    send_when_stored(from, HeartbeatReply{m.term, m.sequence, {}});
}

void Member::State::complete_here(TrainStep step, const GenerationId &generation) {
    SealTally::Complete told{step, generation};
    if (told <= complete_told) return;
    complete_told = told;
    if (local.damaged && local.damaged->id < CheckpointId{generation, step}) local.damaged.reset();
    out.push_back(StepComplete{step, generation});
    if (config.copies > 0) return;
    StepFreed freed{{generation, step}, std::nullopt};
    drop_freed_seals(freed);
    out.push_back(freed);
}

void Member::State::asked_here(const std::optional<CheckpointId> &id) {
    if (id <= local.asked) return;
    local.asked = id;
    out.push_back(StorageAsked{*id});
}

void Member::State::safe_here(const std::optional<CheckpointId> &id) {
    if (!id || id <= safe_told) return;
    safe_told = id;
    out.push_back(StepSafe{*id});
}

/// Whether it is news. A late word may tell of a step that is suspect by now.
bool Member::State::durable_here(const std::optional<CheckpointId> &id) {
    if (!id || id <= local.durable || (world && covers(world->suspects, *id))) return false;
    local.durable = id;
    // Without copies a world of another size goes on from there.
    bool own = role == Role::leader && world && id->generation == world->id;
    if (own && promise.scaling.number > 0 && config.copies == 0) growing.moment = growing.stored = true;
    out.push_back(StepDurable{*id});
    return true;
}

/// Up to this step nothing of `generation` is void beside the newest complete step. Of the step that it goes
/// on from the objects of the generation before count; some ranks may have saved it again.
std::optional<TrainStep> Member::State::last_kept(const std::optional<SealTally::Complete> &newest,
                                                  const GenerationId &generation) {
    if (!newest || newest->generation == generation)
        return newest ? std::optional(newest->step) : std::nullopt;
    if (newest->step == TrainStep(0)) return std::nullopt;
    return TrainStep(newest->step.value() - 1);
}

/// `newest`: the newest complete one that the leader knows. What was complete before may have lost a part.
void Member::State::void_here(TrainStep below, const GenerationId &generation,
                              std::optional<TrainStep> newest) {
    auto is_void = [&](const CheckpointId &id) {
        return id.generation == generation && id.step < below && (!newest || id.step > *newest);
    };
    if (complete_told && is_void({complete_told->generation, complete_told->step})) complete_told.reset();
    std::erase_if(local.seals, [&](const Seal &s) { return is_void({s.generation, s.step}); });
    std::erase_if(local.parities, [&](const Parity &p) { return is_void(p.id); });
    void_after = newest;
    out.push_back(StepsVoid{below, generation, newest});
}

/// Of the generation before only this step.
void Member::State::lost_here(const CheckpointId &id) {
    lost_told = id;
    std::optional<TrainStep> before;
    if (id.step > TrainStep(0)) before = TrainStep(id.step.value() - 1);
    std::erase_if(local.seals, [&](const Seal &s) { return CheckpointId{s.generation, s.step} == id; });
    std::erase_if(local.parities, [&](const Parity &p) { return p.id == id; });
    if (complete_told && CheckpointId{complete_told->generation, complete_told->step} == id)
        complete_told.reset();
    out.push_back(StepsVoid{TrainStep(id.step.value() + 1), id.generation, before});
}

void Member::State::stop_before(const GenerationId &id, const std::string &reason, const Losses &losses) {
    promise.generation = id;
    local.running = {};
    local.finished.clear();
    local.progress.clear();
    local.skips.clear();
    out.push_back(StopWorkers{{id.term, id.number - 1}, reason, losses});
}

void Member::State::on_prepare(NodeIndex from, const Prepare &m) {
    if (!accept_leader(from, m.term) || m.world_nodes.empty() || m.generation.number == 0) return;
    // A node that has not heard of one that joined is asked again after the next heartbeat.
    for (NodeIndex n : m.world_nodes)
        if (n.value() >= node_count()) return;
    if (m.generation < promise.generation) {
        return send_when_stored(from, PrepareReply{m.term, promise.generation, false, 0, {}});
    }
    bool home = m.world_nodes.front() == config.self;
    bool fresh = m.generation > promise.generation ||
                 (bugged(PlantedBug::generation_reuse) && m.world_nodes != promise.world_nodes);
    if (fresh) {
        if (m.generation > promise.generation) stop_before(m.generation, m.reason, m.losses);
        prepared_at = now;
        promise.world_nodes = m.world_nodes;
        promise.open = m.open;
        add_all(promise.removed, m.removed);
        persist(home);
    } else if (home && port_generation != m.generation && port_sequence <= store_done) {
        persist(true);  // a daemon that was started again has its promise, but no port
    }
    PrepareReply reply{m.term, m.generation, true, 0, {}};
    if (world && (m.open.empty() || world->id > m.open.front().id)) reply.world = world;
    send_when_stored(from, std::move(reply));
}

void Member::State::on_commit(NodeIndex from, const Commit &m) {
    if (!accept_leader(from, m.term) || !fits(m.world)) return;
    // It waits for this node's answer, and nobody counts on one that gave that long ago.
    bool prepared = promise.generation == m.world.id && now - prepared_at < config.timings.leader_silence;
    take_world(m.world, prepared);
}

/// Of a newer one that is being prepared who joins may have heard before the one in force.
void Member::State::take_world(const World &w, bool counted_on) {
    if (w.id >= promise.generation) return install(w, counted_on);
    if (world && world->id >= w.id) return;
    promise.world = world = w;
    persist();
}

/// Takes a committed world over: once told to the agents, it is not told again by this daemon. Ranks begin
/// only while the leader counts on this node: others may have waited for the end of its leases.
void Member::State::install(const World &w, bool counted_on) {
    if (w.id > promise.generation) stop_before(w.id, w.reason);
    bool known = world && world->id == w.id;
    if (!known) storage.forget();
    if (!known || promise.world != w) {
        promise.world_nodes = w.nodes;
        promise.open.clear();
        promise.world = w;
        world = w;
        if (local.rollback && local.rollback->from < w.id) local.rollback.reset();
        persist();
    }
    if (local.running == w.id || born_world == w.id || (published && published->id == w.id)) return;
    if (!contains(w.nodes, config.self) || (local.ready && counted_on)) publish(w);
}

void Member::State::publish(const World &w) {
    published = w;
    complete_told.reset();  // what was complete beyond it is lost
    if (w.restore_step) {
        complete_told = {*w.restore_step, w.restore_generation};
        local.damaged.reset();
    }
    protect_told.reset();
    lost_told.reset();
    local.safe.reset();
    covered.reset();
    safe_told.reset();
    if (local.durable && covers(w.suspects, *local.durable)) local.durable.reset();
    freed_told.reset();
    local.finished.clear();
    std::erase_if(local.exits, [&](const WorkerExit &e) { return e.generation != w.id; });
    local.progress.clear();
    local.skips.clear();
    local.exposed = false;
    if (contains(w.nodes, config.self)) local.running = w.id;
    out.push_back(Publish{w});
    if (w.restore_step && w.stored_world_size > 0)
        durable_here(CheckpointId{w.restore_generation, *w.restore_step});
}

/// A leader that was cut off has given up what a newer one goes on with.
bool Member::State::is_outdated(const Finish &m) const {
    bool gives_up = m.exit_code != 0 && m.next_run == NextRun::none;
    bool led = role == Role::leader ? acting() : leader && now - leader_contact < config.timings.election;
    return gives_up && m.term < promise.term && led;
}

void Member::State::on_finish(NodeIndex from, const Finish &m) {
    if (!removed(from) && !is_outdated(m)) end(m);
}

}  // namespace dlrover::elastic
