// SPDX-License-Identifier: Apache-2.0
#include "elastic/member.h"

#include <utility>

#include "elastic/member_state.h"
#include "elastic/roster.h"

namespace dlrover::elastic {
namespace {

template <typename... Ts>
struct Overload : Ts... {
    using Ts::operator()...;
};
template <typename... Ts>
Overload(Ts...) -> Overload<Ts...>;

}  // namespace

Member::Member(GroupConfig config, std::optional<Promise> promise, Time now, PlantedBug bug)
    : state_(std::make_unique<State>()) {
    State &s = *state_;
    s.config = std::move(config);
    s.bug = bug;
    s.now = s.born = s.leader_contact = s.peer_contact = now;
    s.budget = RestartBudget(s.config.max_restarts);
    Term floor(std::uint64_t{s.config.slurm_restart_count} << 32);
    if (promise && promise->term >= floor) {
        s.promise = std::move(*promise);
        s.reborn = true;
    } else {
        s.promise.term = floor;
    }
    s.start_table();
    s.count_ranks();
    s.world = s.promise.world;
    if (s.world) s.local.knows = s.world->id;
    s.local.scaling = s.promise.scaling;
    s.local.without_slurm = s.config.timings.without_slurm;
    if (s.world) s.born_world = s.world->id;
    s.term_seen = s.promise.term;
    s.heard_at.assign(s.node_count(), now);
    s.met.resize(s.config.step_nodes);
    s.linked_at.assign(s.node_count(), now);
    s.broken_at.resize(s.node_count());
    s.reached.resize(s.node_count());
    s.slurm.unsure = s.reborn;
    // Before the first promise nobody can lead: the first candidate need not wait for a silence. A later
    // daemon may have answered a leader that still counts on it.
    s.election_deadline = now + s.place_delay() + (s.reborn ? s.config.timings.election : Duration(0));
}

/// The driver may know of nodes that the promise does not, or the other way round.
void Member::State::start_table() {
    std::size_t given = config.nodes.size();
    if (config.step_nodes == 0 || config.step_nodes > given)
        config.step_nodes = static_cast<std::uint32_t>(given);
    Roster &r = promise.roster;
    if (!could_be(r, config.step_nodes)) r = {};
    Roster known;
    known.added.assign(config.nodes.begin() + config.step_nodes, config.nodes.end());
    known.firm_added = static_cast<std::uint32_t>(known.added.size());
    merge(r, known);
    config.nodes.resize(config.step_nodes);
    config.nodes.insert(config.nodes.end(), r.added.begin(), r.added.begin() + r.firm_added);
    if (node_count() > given) tell_added();
    if (promise.world && !fits(*promise.world)) promise.world.reset();
    std::erase_if(promise.world_nodes, [&](NodeIndex n) { return n.value() >= node_count(); });
    for (OpenWorld &open : promise.open)
        std::erase_if(open.nodes, [&](NodeIndex n) { return n.value() >= node_count(); });
    std::erase_if(promise.scaling.released, [&](NodeIndex n) { return n.value() >= node_count(); });
}

Member::~Member() = default;
Member::Member(Member &&) noexcept = default;
Member &Member::operator=(Member &&) noexcept = default;

void Member::resume(const Goodput &goodput, Time at) {
    state_->goodput = goodput;
    state_->goodput_at = std::min(at, state_->born);
}

std::vector<Action> Member::step(Time now, const Input &input) {
    State &s = *state_;
    s.now = std::max(s.now, now);
    std::visit(Overload{
                   [&](const Tick &) {
                       if (s.finish)
                           s.send_finish();
                       else if (s.role == Role::leader)
                           s.on_tick_leader();
                       else if (s.role == Role::candidate)
                           s.on_tick_candidate();
                       else
                           s.on_tick_follower();
                       s.tell_absent();
                   },
                   [&](const LocalReady &m) { s.on_ready(m); },
                   [&](const LocalExit &m) { s.on_exit(m.exit); },
                   [&](const LocalFinished &m) { s.on_finished(m); },
                   [&](const LocalStopped &m) { s.local.stopped = std::max(s.local.stopped, m.generation); },
                   [&](const LocalSealed &m) { s.on_sealed(m.seal); },
                   [&](const LocalParity &m) { s.on_parity(m.parity); },
                   [&](const LocalObjects &m) { s.on_objects(m); },
                   [&](const LocalProgress &m) {
                       s.local.progress = m.ranks;
                       if (s.role == Role::leader && !s.finish) s.on_report(s.config.self, s.local);
                   },
                   [&](const LocalProtection &m) { s.on_protection(m.works); },
                   [&](const LocalSignal &m) { s.on_signal(m.signal); },
                   [&](const Stored &m) { s.on_stored(m); },
                   [&](const PeerMessage &m) {
                       if (m.from.value() < s.node_count() && !s.is_self(m.from))
                           s.on_message(m.from, m.message);
                   },
                   [&](const PeerLink &m) {
                       if (m.peer.value() < s.node_count()) s.on_link(m.peer, m.broken);
                   },
                   [&](const SlurmAnswer &m) { s.on_slurm(m); },
                   [&](const LocalStorage &m) { s.on_storage(m); },
                   [&](const NodeOffered &m) { s.on_offer(m); },
                   [&](const NodesComing &m) { s.on_coming(m.count); },
                   [&](const LocalCheck &m) { s.on_local_check(m); },
                   [&](const LocalRollback &m) { s.on_rollback(m.rollback); },
                   [&](const LocalDamaged &m) { s.on_damaged(m.damaged); },
                   [&](const LocalDurable &m) { s.on_durable(m.id); },
                   [&](const LocalSkipped &m) { s.on_skipped(m); },
                   [&](const LocalScale &m) { s.on_scale(m.nodes); },
                   [&](const LocalDomains &m) { s.domains = m.of; },
                   [&](const LocalJobEnd &m) { s.job_end = m.at; },
               },
               input);
    return std::exchange(s.out, {});
}

void Member::State::on_message(NodeIndex from, const Message &message) {
    if (finish) {
        // The other side may not know yet that the group is over.
        bool is_finish = std::holds_alternative<Finish>(message);
        if (!is_finish && !is_self(from) && !evicted) send(from, *finish);
        return;
    }
    heard_at[from.value()] = now;
    if (from.value() < met.size()) met[from.value()] = true;
    if (!removed(from)) peer_contact = now;
    std::visit(Overload{
                   [&](const VoteRequest &m) { on_vote_request(from, m); },
                   [&](const VoteReply &m) { on_vote_reply(from, m); },
                   [&](const Heartbeat &m) { on_heartbeat(from, m); },
                   [&](const HeartbeatReply &m) { on_heartbeat_reply(from, m); },
                   [&](const Report &m) {
                       if (role == Role::leader && m.term == promise.term && !removed(from))
                           on_report(from, m.report);
                   },
                   [&](const Prepare &m) { on_prepare(from, m); },
                   [&](const PrepareReply &m) { on_prepare_reply(from, m); },
                   [&](const Commit &m) { on_commit(from, m); },
                   [&](const Finish &m) { on_finish(from, m); },
                   [&](const CheckOrder &m) { on_check_order(from, m); },
                   [&](const CheckReport &m) { on_check_report(from, m); },
                   [&](const Dismissal &m) { on_dismissal(from, m); },
                   [&](const Reach &m) { on_reach(from, m); },
                   [&](const Reached &m) { on_reached(from, m); },
               },
               message);
}

void Member::State::on_link(NodeIndex peer, bool broken) {
    auto &since = broken_at[peer.value()];
    since = broken ? since.value_or(now) : std::optional<Time>{};
    if (broken) return;
    linked_at[peer.value()] = now;
    if (peer.value() < peers.size()) peers[peer.value()].told = {};
    // A daemon that was started again does not know its leader: until it does, nobody's steps get complete.
    if (role == Role::leader && !finish && !is_self(peer) && !removed(peer))
        send_heartbeat_alone(peer, may_act());
}

void Member::State::persist(bool want_port) {
    Store s{++store_issued, promise, want_port};
    if (bugged(PlantedBug::term_not_stored)) {
        s.promise.term = Term(std::uint64_t{config.slurm_restart_count} << 32);
        s.promise.voted_for.reset();
    }
    if (want_port) port_sequence = store_issued;
    out.push_back(std::move(s));
}

void Member::State::on_stored(const Stored &m) {
    store_done = std::max(store_done, m.sequence);
    if (store_done == store_issued && promise.world) local.knows = promise.world->id;
    if (m.port != 0 && m.sequence == port_sequence) {
        port = m.port;
        port_generation = promise.generation;
    }
    std::vector<Held> waiting;
    waiting.swap(held);
    for (Held &h : waiting) {
        if (h.sequence <= store_done)
            deliver(h.to, std::move(h.message));
        else
            held.push_back(std::move(h));
    }
    settle_roster();
}

void Member::State::send(NodeIndex to, Message message) {
    out.push_back(SendMessage{to, std::move(message)});
}

void Member::State::send_all(const std::vector<NodeIndex> &to, Message message) {
    if (to.empty()) return;
    out.push_back(SendMessage{to.front(), std::move(message), {to.begin() + 1, to.end()}});
}

std::vector<NodeIndex> Member::State::all_others() const {
    std::vector<NodeIndex> found;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i))) found.emplace_back(i);
    return found;
}

std::vector<NodeIndex> Member::State::others_left() const {
    std::vector<NodeIndex> found = all_others();
    std::erase_if(found, [&](NodeIndex n) { return removed(n); });
    return found;
}

/// For everything that a promise stands behind.
void Member::State::send_when_stored(NodeIndex to, Message message) {
    if (store_done == store_issued || bugged(PlantedBug::reply_before_store)) {
        deliver(to, std::move(message));
        return;
    }
    held.push_back(Held{store_issued, to, std::move(message)});
}

void Member::State::deliver(NodeIndex to, Message message) {
    if (auto *reply = std::get_if<PrepareReply>(&message)) {
        reply->report = next_report();
        if (port_generation == reply->generation) reply->port = port;
    }
    // It may have waited for the record of what it is to tell of.
    if (auto *reply = std::get_if<HeartbeatReply>(&message); reply && reply->sequence > 0)
        reply->report = next_report();
    if (is_self(to))
        on_message(to, message);
    else
        send(to, std::move(message));
}

void Member::State::note(Note::Kind kind, std::string text) {
    Note n;
    n.kind = kind;
    n.generation = promise.generation;
    n.text = std::move(text);
    out.push_back(std::move(n));
}

void Member::State::end(Finish f) {
    if (finish) return;
    goodput = f.goodput;
    out.push_back(End{f.exit_code, f.message, f.goodput, f.next_run, evicted, not_let_in, f.excluded});
    finish = std::move(f);
    preparing.reset();
    next_heartbeat = now;
}

std::size_t Member::State::electorate() const {
    std::size_t nodes = config.step_nodes + promise.roster.firm_counted;
    for (NodeIndex n : promise.settled) nodes -= counts(n);
    return nodes;
}

std::uint32_t Member::State::world_size(const std::vector<NodeIndex> &nodes) const {
    std::uint32_t ranks = 0;
    for (NodeIndex n : nodes) ranks += config.nodes[n.value()].ranks;
    return ranks;
}

std::optional<NodeIndex> Member::State::node_of(const World &w, Rank rank) const {
    std::uint32_t first = 0;
    for (NodeIndex n : w.nodes) {
        first += config.nodes[n.value()].ranks;
        if (rank.value() < first) return n;
    }
    return std::nullopt;
}

Time Member::next_deadline() const {
    const State &s = *state_;
    if (s.finish) return s.role == Role::leader && s.finish_rounds > 0 ? s.next_heartbeat : Time::max();
    if (s.role == Role::follower) return s.election_deadline;
    Time next = s.role == Role::leader ? std::min(s.next_heartbeat, s.next_look) : s.next_heartbeat;
    if (s.look_due) next = std::min(next, s.looked_at + s.config.look_pause);
    if (s.incident && s.incident->giving_up)
        next = std::min(next, s.incident->opened + s.config.timings.incident_window);
    return next;
}

MemberView Member::view() const {
    const State &s = *state_;
    MemberView v;
    v.leader = s.role == Role::leader ? s.config.self : s.leader;
    v.term = s.promise.term;
    v.world = s.world;
    if (s.world) v.generation = s.world->id;
    v.recovering = s.promise.generation > v.generation || s.awaiting.has_value();
    v.ended = s.finish.has_value();
    v.restarts_left = s.budget.left();
    if (s.world) v.restarts = s.world->restart_count;
    if (s.role == Role::leader)
        for (const Peer &p : s.peers) v.ready_nodes += p.joined && p.report.ready;
    if (s.complete_told) v.complete_steps.push_back(s.complete_told->step);
    v.covered = s.role == Role::leader ? s.protection.safe : s.covered;
    if (v.covered == s.local.safe) v.safe = v.covered;
    v.damaged = s.local.damaged;
    v.durable = s.local.durable;
    v.protecting = s.protect_told;
    v.goodput = s.goodput;
    v.goodput_at = s.goodput_at;
    v.roster = s.promise.roster;
    if (s.promise.scaling.number > 0) v.wanted_nodes = s.wanted_nodes();
    v.not_yet = s.why_not_yet();
    return v;
}

}  // namespace dlrover::elastic
