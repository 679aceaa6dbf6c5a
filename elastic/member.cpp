// SPDX-License-Identifier: Apache-2.0
#include "elastic/member.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

template <typename... Ts>
struct Overload : Ts... {
    using Ts::operator()...;
};
template <typename... Ts>
Overload(Ts...) -> Overload<Ts...>;

constexpr std::size_t kept_seals_per_rank = 3;

void add_seal(std::vector<Seal> &seals, const Seal &seal) {
    std::erase_if(seals, [&](const Seal &s) { return s.rank == seal.rank && s.step == seal.step; });
    seals.push_back(seal);
    auto of_rank = [&](const Seal &s) { return s.rank == seal.rank; };
    if (static_cast<std::size_t>(std::count_if(seals.begin(), seals.end(), of_rank)) <= kept_seals_per_rank)
        return;
    auto oldest = seals.end();
    for (auto it = seals.begin(); it != seals.end(); ++it)
        if (of_rank(*it) && (oldest == seals.end() || it->step < oldest->step)) oldest = it;
    seals.erase(oldest);
}

}  // namespace

Member::Member(GroupConfig config, std::optional<Promise> promise, Time now)
    : state_(std::make_unique<State>()) {
    State &s = *state_;
    s.config = std::move(config);
    s.now = now;
    s.budget = RestartBudget(s.config.max_restarts);
    if (promise) s.promise = *promise;
    Term floor(std::uint64_t{s.config.slurm_restart_count} << 32);
    if (s.promise.term < floor) s.promise = Promise{floor, std::nullopt, {}, {}, {}};
    s.votes.assign(s.node_count(), false);
    s.leader_contact = now;
    // Nobody leads yet: the first candidate need not wait for a silence.
    s.election_deadline = now + s.election_delay() - s.config.timings.election;
}

Member::~Member() = default;
Member::Member(Member &&) noexcept = default;
Member &Member::operator=(Member &&) noexcept = default;

std::vector<Action> Member::step(Time now, const Input &input) {
    State &s = *state_;
    s.now = std::max(s.now, now);
    std::visit(Overload{
                   [&](const Tick &) { s.reign ? s.on_tick_leader() : s.on_tick_follower(); },
                   [&](const Stored &m) {
                       auto it = s.stores.find(m.sequence);
                       if (it == s.stores.end()) return;
                       auto then = std::move(it->second);
                       s.stores.erase(it);
                       then(m.port);
                   },
                   [&](const PeerMessage &m) {
                       if (m.from.value() >= s.node_count() || s.is_self(m.from)) return;
                       std::visit(Overload{
                                      [&](const VoteRequest &v) { s.on_vote_request(m.from, v); },
                                      [&](const VoteReply &v) { s.on_vote_reply(m.from, v); },
                                      [&](const Heartbeat &v) { s.on_heartbeat(m.from, v); },
                                      [&](const HeartbeatReply &v) {
                                          if (s.reign && v.term == s.promise.term)
                                              s.on_report(m.from, v.report);
                                      },
                                      [&](const Report &v) {
                                          if (s.reign && v.term == s.promise.term)
                                              s.on_report(m.from, v.report);
                                      },
                                      [&](const Prepare &v) { s.on_prepare(m.from, v); },
                                      [&](const PrepareReply &v) { s.on_prepare_reply(m.from, v); },
                                      [&](const Commit &v) { s.on_commit(m.from, v); },
                                      [&](const Finish &v) { s.on_finish(m.from, v); },
                                  },
                                  m.message);
                   },
                   [&](const PeerLink &) {},
                   [&](const SlurmAnswer &) {},
                   [&](const auto &) { s.on_local(input); },
               },
               input);
    return std::exchange(s.out, {});
}

void Member::State::on_local(const Input &input) {
    std::visit(Overload{
                   [&](const LocalReady &m) {
                       local.ready = m.ready;
                       if (m.running > local.running) local.running = m.running;
                   },
                   [&](const LocalExit &m) {
                       if (m.exit.generation == local.running) local.exits.push_back(m.exit);
                   },
                   [&](const LocalFinished &m) {
                       bool known = std::find(local.finished.begin(), local.finished.end(), m.rank) !=
                                    local.finished.end();
                       if (m.generation == local.running && !known) local.finished.push_back(m.rank);
                   },
                   [&](const LocalStopped &m) { local.stopped = std::max(local.stopped, m.generation); },
                   [&](const LocalSealed &m) {
                       if (m.seal.generation == promise.generation) add_seal(local.seals, m.seal);
                   },
                   [&](const LocalObjects &m) { local.seals = m.seals; },
                   [&](const LocalProgress &m) { local.progress = m.ranks; },
                   [&](const LocalSignal &m) {
                       if (m.signal == SIGTERM || m.signal == SIGINT) {
                           std::string what = "the job got signal " + std::to_string(m.signal);
                           reign ? finish_group(128 + m.signal, what)
                                 : finish_locally(128 + m.signal, what, goodput);
                       }
                   },
                   [&](const auto &) {},
               },
               input);
    // Progress alone travels with the next heartbeat.
    if (!std::holds_alternative<LocalProgress>(input)) tell_leader();
}

void Member::State::store(bool want_port, std::function<void(std::uint16_t port)> then) {
    std::uint64_t sequence = next_store++;
    stores[sequence] = std::move(then);
    out.push_back(Store{sequence, promise, want_port});
}

void Member::State::note(Note::Kind kind, std::string text) {
    Note n;
    n.kind = kind;
    n.generation = promise.generation;
    n.text = std::move(text);
    out.push_back(std::move(n));
}

std::uint32_t Member::State::world_size(const std::vector<NodeIndex> &nodes) const {
    std::uint32_t ranks = 0;
    for (NodeIndex n : nodes) ranks += config.nodes[n.value()].ranks;
    return ranks;
}

std::optional<Rank> Member::State::first_rank(const World &w, NodeIndex node) const {
    std::uint32_t rank = 0;
    for (NodeIndex n : w.nodes) {
        if (n == node) return Rank(rank);
        rank += config.nodes[n.value()].ranks;
    }
    return std::nullopt;
}

void Member::State::tell_leader() {
    if (ended) return;
    if (reign)
        on_report(config.self, local);
    else if (leader)
        send(*leader, Report{promise.term, local});
}

void Member::State::publish(const World &w) {
    bool takes_part = std::find(w.nodes.begin(), w.nodes.end(), config.self) != w.nodes.end();
    world = w;
    local.finished.clear();
    local.exits.clear();
    local.progress.clear();
    local.running = takes_part ? w.id : GenerationId{};
    out.push_back(Publish{w});
}

void Member::State::finish_locally(int code, const std::string &message, const Goodput &g) {
    if (ended) return;
    ended = true;
    end_code = code;
    end_message = message;
    goodput = g;
    out.push_back(End{code, message, g});
}

Time Member::next_deadline() const {
    const State &s = *state_;
    if (s.reign) return s.reign->next_heartbeat;
    return s.election_deadline;
}

MemberView Member::view() const {
    const State &s = *state_;
    MemberView v;
    v.leader = s.reign ? s.config.self : s.leader;
    v.term = s.promise.term;
    if (s.world) v.generation = s.world->id;
    v.world = s.world;
    v.recovering = s.promise.generation > v.generation;
    v.ended = s.ended;
    v.restarts_left = s.budget.left();
    v.restarts = s.world ? s.world->restart_count : 0;
    if (s.reign) {
        for (const auto &p : s.reign->peers) v.ready_nodes += p.answered && p.report.ready;
        if (s.reign->complete) v.complete_steps.push_back(*s.reign->complete);
    }
    v.goodput = s.goodput;
    return v;
}

}  // namespace dlrover::elastic
