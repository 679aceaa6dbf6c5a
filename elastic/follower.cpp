// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {

bool Member::State::may_lead() const {
    return node_count() == 1 || config.batch_host != config.self;
}

Duration Member::State::election_delay() const {
    std::uint32_t place = config.self.value();
    if (config.batch_host && *config.batch_host < config.self) --place;
    return config.timings.election + config.timings.election_step * place;
}

void Member::State::reset_election() {
    leader_contact = now;
    election_deadline = now + election_delay();
}

void Member::State::on_tick_follower() {
    if (now < election_deadline) return;
    if (!may_lead() || ended) return reset_election();
    stand();
}

void Member::State::stand() {
    if (leader)
        note(Note::Kind::leader_lost,
             "the leader was silent for " + std::to_string((now - leader_contact).count() / 1000) + " ms");
    leader.reset();
    candidate = true;
    votes.assign(node_count(), false);
    promise.term = Term(promise.term.value() + 1);
    promise.voted_for = config.self;
    election_deadline = now + election_delay();
    Term term = promise.term;
    store(false, [this, term](std::uint16_t) {
        if (!candidate || promise.term != term) return;
        votes[config.self.value()] = true;
        if (node_count() == 1) return begin_reign();
        for (std::uint32_t i = 0; i < node_count(); ++i)
            if (!is_self(NodeIndex(i))) send(NodeIndex(i), VoteRequest{term, promise.generation});
    });
}

void Member::State::on_vote_request(NodeIndex from, const VoteRequest &m) {
    bool leader_is_well = leader && *leader != from && now - leader_contact < config.timings.leader_silence;
    if (leader_is_well) return;
    if (reign && m.term > promise.term) end_reign("a node with a higher term asks for votes");
    if (m.term > promise.term) {
        promise.term = m.term;
        promise.voted_for.reset();
        candidate = false;
        leader.reset();
    }
    bool free = !promise.voted_for || *promise.voted_for == from;
    bool granted = m.term == promise.term && free && m.last_generation >= promise.generation;
    if (granted) {
        promise.voted_for = from;
        reset_election();
    }
    store(false, [this, from, granted, term = promise.term](std::uint16_t) {
        if (promise.term == term) send(from, VoteReply{term, granted, promise, local});
    });
}

void Member::State::on_vote_reply(NodeIndex from, const VoteReply &m) {
    if (!candidate || m.term != promise.term || !m.granted) return;
    votes[from.value()] = true;
    auto count = static_cast<std::size_t>(std::count(votes.begin(), votes.end(), true));
    if (count >= majority()) begin_reign();
}

bool Member::State::accept_leader(NodeIndex from, Term term) {
    if (term < promise.term || (term == promise.term && reign)) return false;
    if (reign) end_reign("another leader has a higher term");
    if (term > promise.term) {
        promise.term = term;
        promise.voted_for = from;
        store(false, [](std::uint16_t) {});
    }
    candidate = false;
    leader = from;
    reset_election();
    return true;
}

void Member::State::on_heartbeat(NodeIndex from, const Heartbeat &m) {
    if (!accept_leader(from, m.term)) return;
    goodput = m.goodput;
    if (m.world && m.world->id >= promise.generation && (!world || world->id < m.world->id)) {
        bool running = local.running == m.world->id;
        if (running)
            world = *m.world;
        else
            publish(*m.world);
    }
    if (m.complete_step) out.push_back(StepComplete{*m.complete_step, m.complete_generation});
    out.push_back(RenewLease{});
    send(from, HeartbeatReply{m.term, m.sequence, local});
}

void Member::State::stop_before(const GenerationId &id, const std::string &reason) {
    GenerationId last = promise.generation;
    promise.generation = id;
    local.running = {};
    local.finished.clear();
    local.exits.clear();
    local.progress.clear();
    out.push_back(StopWorkers{last, reason});
}

void Member::State::on_prepare(NodeIndex from, const Prepare &m) {
    if (ended || !accept_leader(from, m.term) || m.generation < promise.generation || m.world_nodes.empty())
        return;
    if (m.generation > promise.generation) stop_before(m.generation, m.reason);
    promise.world_nodes = m.world_nodes;
    promise.removed = m.removed;
    bool want_port = m.world_nodes.front() == config.self;
    store(want_port, [this, from, m](std::uint16_t port) {
        if (promise.term == m.term && promise.generation == m.generation)
            send(from, PrepareReply{m.term, m.generation, true, port, local});
    });
}

void Member::State::on_commit(NodeIndex from, const Commit &m) {
    if (ended || !accept_leader(from, m.term) || m.world.id < promise.generation) return;
    if (world && world->id >= m.world.id) return;
    promise.generation = m.world.id;
    publish(m.world);
}

void Member::State::on_finish(NodeIndex from, const Finish &m) {
    if (accept_leader(from, m.term)) finish_locally(m.exit_code, m.message, m.goodput);
}

}  // namespace dlrover::elastic
