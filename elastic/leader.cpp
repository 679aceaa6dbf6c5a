// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

bool contains(const std::vector<NodeIndex> &nodes, NodeIndex node) {
    return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

}  // namespace

void Member::State::begin_reign() {
    candidate = false;
    leader = config.self;
    reign.emplace();
    reign->peers.resize(node_count());
    reign->meter.emplace(now, goodput);
    for (auto &p : reign->peers) p.last_answer = now;
    reign->began = now;
    reign->next_heartbeat = now;
    Note n;
    n.kind = Note::Kind::leader_elected;
    n.node = config.self;
    n.text = "this node leads the group";
    note(std::move(n));
    send_heartbeats();
    on_report(config.self, local);
}

void Member::State::end_reign(const std::string &why) {
    note(Note::Kind::leader_lost, "this node no longer leads: " + why);
    reign.reset();
    leader.reset();
    reset_election();
}

void Member::State::on_tick_leader() {
    if (now < reign->next_heartbeat) return;
    std::size_t alive = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        alive += is_self(NodeIndex(i)) || now - reign->peers[i].last_answer < config.timings.leader_silence;
    if (alive < majority()) return end_reign("no answer from a majority of the nodes");
    send_heartbeats();
    if (!ended) consider();
}

void Member::State::send_heartbeats() {
    Reign &r = *reign;
    r.next_heartbeat = now + config.timings.heartbeat;
    ++r.sequence;
    if (!ended) update_goodput();
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex node(i);
        if (is_self(node)) continue;
        if (ended) {
            send(node, Finish{promise.term, end_code, end_message, goodput});
            continue;
        }
        send(node, Heartbeat{promise.term, r.sequence, world, r.complete, r.complete_generation, goodput});
        if (r.preparing && !r.preparing->accepted[i])
            send(node, Prepare{promise.term, r.preparing->id, r.preparing->nodes, promise.removed,
                               r.preparing->reason});
    }
    out.push_back(RenewLease{});
}

void Member::State::on_report(NodeIndex from, const NodeReport &report) {
    Reign::Peer &peer = reign->peers[from.value()];
    if (!peer.report.ready && report.ready) {
        Note n;
        n.kind = Note::Kind::node_ready;
        n.node = from;
        n.text = "all tasks of this node are there";
        note(std::move(n));
    }
    peer.answered = true;
    peer.last_answer = now;
    peer.report = report;
    if (!ended) consider();
}

void Member::State::consider() {
    if (reign->preparing) return try_commit();
    consider_completion();
    if (!world || reign->awaiting_nodes) return consider_start();
    consider_failures();
    if (reign && !ended && !reign->preparing && !reign->awaiting_nodes) consider_finish();
}

/// The nodes of the next world, in group-rank order; none while too few are ready.
std::optional<std::vector<NodeIndex>> Member::State::choose_nodes() const {
    std::vector<NodeIndex> ready;
    std::size_t answered = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        const auto &peer = reign->peers[i];
        if (contains(promise.removed, NodeIndex(i))) continue;
        ++answered;
        if (peer.answered && peer.report.ready) ready.push_back(NodeIndex(i));
    }
    bool all = ready.size() == answered;
    bool waited = now - reign->began >= config.timings.join;
    std::size_t size = std::min<std::size_t>(ready.size(), config.max_nodes);
    size -= size % config.node_unit;
    if (size == 0 || size < config.min_nodes) return std::nullopt;
    if (!all && !waited && size < config.max_nodes) return std::nullopt;
    ready.resize(size);
    return ready;
}

void Member::State::consider_start() {
    if (!world && promise.generation.number > 0 && adopt_running_world()) return;
    if (!choose_nodes()) return;
    bool first = promise.generation.number == 0;
    std::string reason = reign->awaiting_nodes ? reign->awaiting_reason
                         : first               ? "start"
                                               : "a new leader found no running world";
    std::uint32_t restarts =
        world ? world->restart_count + 1 : static_cast<std::uint32_t>(promise.generation.number);
    reign->awaiting_nodes = false;
    propose(std::move(reason), restarts);
}

/// A leader whose daemon was restarted, or a new one: the promised generation runs on all its nodes, so it
/// goes on.
bool Member::State::adopt_running_world() {
    for (NodeIndex n : promise.world_nodes) {
        const auto &peer = reign->peers[n.value()];
        if (!peer.answered || peer.report.running != promise.generation) return false;
    }
    if (promise.world_nodes.empty()) return false;
    World w;
    w.id = promise.generation;
    w.nodes = promise.world_nodes;
    w.restart_count = static_cast<std::uint32_t>(promise.generation.number - 1);
    w.reason = "taken over while running";
    world = w;
    note(Note::Kind::leader_elected, "the running world was taken over; no worker was restarted");
    return true;
}

void Member::State::consider_failures() {
    std::vector<WorkerExit> exits;
    for (NodeIndex n : world->nodes) {
        const auto &peer = reign->peers[n.value()];
        if (!peer.answered) continue;
        for (const auto &e : peer.report.exits)
            if (e.generation == world->id) exits.push_back(e);
        if (!peer.report.ready && exits.empty()) {
            reign->awaiting_nodes = true;
            reign->awaiting_reason = "an agent of node " + std::to_string(n.value()) + " went away";
            reign->began = now;
            return;
        }
    }
    if (exits.empty()) return;
    const WorkerExit &cause = exits[first_cause(exits, config.timings.incident_window)];
    std::string what = "rank " + std::to_string(cause.rank.value()) + " " + describe_exit(cause);
    Note n;
    n.kind = Note::Kind::worker_failed;
    n.generation = world->id;
    n.rank = cause.rank;
    n.text = what;
    note(std::move(n));
    reign->meter->fail(now);
    bool stepped = false;
    for (const auto &peer : reign->peers)
        for (const auto &p : peer.report.progress) stepped = stepped || p.steps_done > 0;
    switch (budget.on_failure(cause.signature, stepped)) {
        case RestartBudget::Verdict::restart:
            return propose(what, world->restart_count + 1);
        case RestartBudget::Verdict::hopeless:
            return finish_group(exit_code_of(cause.wait_status),
                                what + " at the same place " +
                                    std::to_string(RestartBudget::hopeless_restarts + 1) +
                                    " times without one training step: restarting it is no use");
        case RestartBudget::Verdict::exhausted:
            return finish_group(
                exit_code_of(cause.wait_status),
                what + "; " + std::to_string(config.max_restarts) +
                    " restarts without a new complete checkpoint are the limit (--dlrover-max-restarts)");
    }
}

std::optional<TrainStep> Member::State::newest_complete(std::uint32_t ranks) const {
    std::map<TrainStep, std::set<Rank>> sealed;
    for (const auto &peer : reign->peers)
        for (const auto &s : peer.report.seals)
            if (peer.answered && s.world_size == ranks && s.rank.value() < ranks)
                sealed[s.step].insert(s.rank);
    for (auto it = sealed.rbegin(); it != sealed.rend(); ++it)
        if (it->second.size() == ranks) return it->first;
    return std::nullopt;
}

void Member::State::consider_completion() {
    if (!world) return;
    auto step = newest_complete(world_size(world->nodes));
    if (!step || (reign->complete && *step <= *reign->complete)) return;
    reign->complete = step;
    reign->complete_generation = world->id;
    budget.on_complete(*step);
    reign->meter->on_checkpoint();
    out.push_back(StepComplete{*step, world->id});
    Note n;
    n.kind = Note::Kind::checkpoint_complete;
    n.generation = world->id;
    n.step = step;
    n.text = "step " + std::to_string(step->value()) + " is complete in memory";
    note(std::move(n));
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i)))
            send(NodeIndex(i), Heartbeat{promise.term, ++reign->sequence, world, step, world->id, goodput});
}

void Member::State::consider_finish() {
    std::size_t finished = 0;
    for (NodeIndex n : world->nodes) {
        const auto &peer = reign->peers[n.value()];
        if (peer.answered && peer.report.running == world->id) finished += peer.report.finished.size();
    }
    if (finished == world_size(world->nodes)) finish_group(0, "");
}

void Member::State::propose(std::string reason, std::uint32_t restart_count) {
    auto nodes = choose_nodes();
    if (!nodes) {
        reign->awaiting_nodes = true;
        reign->awaiting_reason = std::move(reason);
        reign->began = now;
        return;
    }
    Reign::Preparation p;
    p.id = {promise.term, promise.generation.number + 1};
    p.nodes = *nodes;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!contains(p.nodes, NodeIndex(i)) && !contains(promise.removed, NodeIndex(i)))
            p.spares.push_back(NodeIndex(i));
    p.accepted.assign(node_count(), false);
    p.restart_count = restart_count;
    p.reason = std::move(reason);
    p.since = now;
    reign->preparing = p;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i)))
            send(NodeIndex(i), Prepare{promise.term, p.id, p.nodes, promise.removed, p.reason});
    stop_before(p.id, p.reason);
    promise.world_nodes = p.nodes;
    store(p.nodes.front() == config.self, [this, term = promise.term, id = p.id](std::uint16_t port) {
        if (promise.term == term) on_prepare_reply(config.self, PrepareReply{term, id, true, port, local});
    });
}

void Member::State::on_prepare_reply(NodeIndex from, const PrepareReply &m) {
    if (!reign || !reign->preparing || m.term != promise.term || m.generation != reign->preparing->id ||
        !m.accepted)
        return;
    Reign::Preparation &p = *reign->preparing;
    p.accepted[from.value()] = true;
    if (from == p.nodes.front()) p.port = m.port;
    reign->peers[from.value()].answered = true;
    reign->peers[from.value()].last_answer = now;
    reign->peers[from.value()].report = m.report;
    try_commit();
}

void Member::State::try_commit() {
    Reign::Preparation &p = *reign->preparing;
    auto accepted_of = [&](const std::vector<NodeIndex> &nodes) {
        return static_cast<std::size_t>(
            std::count_if(nodes.begin(), nodes.end(), [&](NodeIndex n) { return p.accepted[n.value()]; }));
    };
    auto all = static_cast<std::size_t>(std::count(p.accepted.begin(), p.accepted.end(), true));
    if (accepted_of(p.nodes) < p.nodes.size() || all < majority()) return;
    World w{p.id, p.nodes, p.spares, newest_complete(world_size(p.nodes)), p.restart_count, p.port, p.reason};
    Duration took = now - p.since;
    reign->preparing.reset();
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i))) send(NodeIndex(i), Commit{promise.term, w});
    publish(w);
    for (auto &peer : reign->peers) {
        peer.report.exits.clear();
        peer.report.finished.clear();
        peer.report.progress.clear();
    }
    reign->meter->begin_generation(now, w.restore_step);
    if (w.restart_count > 0) reign->meter->on_restart();
    Note n;
    n.kind = Note::Kind::world_published;
    n.generation = w.id;
    n.step = w.restore_step;
    n.duration = took;
    n.text = std::to_string(world_size(w.nodes)) + " ranks on " + std::to_string(w.nodes.size()) +
             " nodes, " +
             (w.restore_step ? "from step " + std::to_string(w.restore_step->value())
                             : std::string("from the beginning")) +
             " (" + w.reason + ")";
    note(std::move(n));
}

void Member::State::finish_group(int code, std::string message) {
    reign->preparing.reset();
    update_goodput();
    note(code == 0 ? Note::Kind::group_finished : Note::Kind::gave_up,
         code == 0 ? "all ranks finished" : message);
    finish_locally(code, message, goodput);
    send_heartbeats();
}

void Member::State::update_goodput() {
    for (const auto &peer : reign->peers)
        for (const auto &p : peer.report.progress)
            if (p.rank == Rank(0) && world && peer.report.running == world->id && !reign->preparing)
                reign->meter->on_progress(now, p);
    goodput = reign->meter->snapshot(now, ended);
}

}  // namespace dlrover::elastic
