// SPDX-License-Identifier: Apache-2.0
// Who leads. One vote a term, on record before it is given; none while a leader may count on this node.
#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::uint32_t apart = 8;  ///< so many candidates have a step of their own
constexpr std::uint64_t retry_steps = 16;

Duration delay_at(std::uint32_t place, Duration step) {
    Duration delay = step * std::min(place, apart);
    std::uint32_t first = apart;
    for (; place >= first * 2; first *= 2) delay += step;
    return place <= apart ? delay : delay + step * (place - first) / first;
}

}  // namespace

bool Member::State::may_lead() const {
    if (finish || !is_member(config.self)) return false;
    if (config.batch_host != config.self || bugged(PlantedBug::batch_host_leads)) return true;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i)) && counts(NodeIndex(i)) && !removed(NodeIndex(i))) return false;
    return true;
}

/// Candidates stand one after the other, in node order. The first eight each have a step of their own; of the
/// others twice as many share each further one: where a rack is lost, the next node is not waited for a step
/// for each that was in it. Who is unfit stands when they have had their turns.
Duration Member::State::place_delay() const {
    std::uint32_t place = 0, all = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        bool stands = config.batch_host != n && counts(n) && !removed(n);
        all += stands;
        place += stands && n < config.self;
    }
    if (failed_check.empty() || all <= 1) return delay_at(place, config.timings.election_step);
    return config.timings.election * 2 + delay_at(all, config.timings.election_step);
}

/// After a term in which nobody won. Candidates that share a step stood within moments of each other, and
/// would again: each waits for another number of steps, and another one in each term.
Duration Member::State::retry_delay() const {
    Duration delay = place_delay();
    if (delay <= config.timings.election_step * apart || !failed_check.empty()) return delay;
    std::uint64_t mixed =
        (config.self.value() + 1) * 0x9e3779b97f4a7c15 ^ promise.term.value() * 0xbf58476d1ce4e5b9;
    mixed ^= mixed >> 32;
    return config.timings.election_step * static_cast<std::int64_t>(mixed % retry_steps);
}

void Member::State::reset_election() {
    election_deadline = now + config.timings.election + place_delay();
}

void Member::State::on_tick_follower() {
    if (now < election_deadline) return;
    if (!is_member(config.self)) return reset_election();
    if (floor_unknown()) {
        ask_storage();
        election_deadline = now + config.timings.heartbeat;
        return;
    }
    if (!may_lead()) {
        reset_election();
        return fence_alone();
    }
    if (leader)
        note(Note::Kind::leader_lost, "the leader has been silent for " +
                                          std::to_string((now - leader_contact).count() / 1000) + " ms");
    stand();
}

void Member::State::stand() {
    leader.reset();
    role = Role::candidate;
    peers.assign(node_count(), Peer{});
    term_seen = std::max(term_seen, promise.term);
    if (storage.found && !bugged(PlantedBug::storage_terms_ignored))
        term_seen = std::max(term_seen, storage.found->next_term);
    promise.term = term_seen = Term(term_seen.value() + 1);
    promise.voted_for = config.self;
    generation_seen = promise.generation;
    stood = now;
    if (!majority_lost) majority_lost = now;
    persist();
    ask_votes();
    // Its own vote counts once it is on record.
    send_when_stored(config.self, VoteReply{promise.term, true, {}, {}});
}

void Member::State::ask_votes() {
    next_heartbeat = now + config.timings.heartbeat;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex node(i);
        if (is_self(node) || removed(node)) continue;
        // A vote holds for its term, and thousands of answers take their time.
        if (config.look_pause > Duration(0) && peers[i].granted) continue;
        send_when_stored(node, VoteRequest{promise.term, promise.generation, promise.removed});
    }
}

void Member::State::on_tick_candidate() {
    if (look_due) look_over();
    if (role != Role::candidate || now < next_heartbeat) return;
    ask_votes();
    count_votes();
    if (role == Role::candidate) fence_half();
}

bool Member::State::grant(NodeIndex from, const VoteRequest &m) {
    bool counted_on = leader_seen && leader != from && promise.voted_for != from &&
                      now - leader_contact < config.timings.election;
    bool may_be_counted_on = reborn && now - born < config.timings.election && leader != from;
    if (role == Role::leader && acting()) counted_on = true;
    bool repeated = m.term == promise.term && promise.voted_for == from;
    if (bugged(PlantedBug::votes_while_leader_lives)) counted_on = may_be_counted_on = false;
    if (removed(from) || m.term < promise.term || contains(m.removed, config.self)) return false;
    if (!repeated && (counted_on || may_be_counted_on)) return false;
    return m.term > promise.term || !promise.voted_for || repeated;
}

void Member::State::on_vote_request(NodeIndex from, const VoteRequest &m) {
    if (!has_heard()) return;
    term_seen = std::max(term_seen, m.term);
    if (contains(m.removed, from)) {
        std::size_t known = promise.removed.size();
        merge_removed(m.removed, false);  // it has left, and says who else is out
        if (role == Role::candidate && promise.removed.size() > known)
            stand();  // those who are left may be enough
        return;
    }
    if (!grant(from, m)) {
        if (!removed(from)) send_when_stored(from, VoteReply{promise.term, false, promise, {}});
        return;
    }
    if (role != Role::follower) step_down("another node stands with a higher term");
    bool repeated = m.term == promise.term && promise.voted_for == from;
    promise.term = m.term;
    promise.voted_for = from;
    if (add_all(promise.removed, m.removed) || !repeated) persist();
    leader.reset();
    hear_leader();  // whoever wins counts on this node from now on
    send_when_stored(from, VoteReply{m.term, true, promise, next_report(), whole_ago()});
}

void Member::State::on_vote_reply(NodeIndex from, const VoteReply &m) {
    term_seen = std::max({term_seen, m.term, m.promise.term});
    if (role != Role::candidate || removed(from)) return;
    if (!bugged(PlantedBug::added_forgotten_by_new_leader)) merge_roster(m.promise.roster);
    add_all(promise.settled, m.promise.settled);
    add_all(promise.removed, m.promise.removed);
    if (!m.granted || m.term != promise.term) {
        if (look_due) look_over();
        if (role != Role::candidate) return;
        // Only a later reign can win this node over.
        if (term_seen > promise.term && now - stood > config.timings.election) {
            role = Role::follower;
            election_deadline = now + retry_delay();
        }
        // The votes of this term are split: whoever heads it would have been heard by now.
        const auto &other = m.promise.voted_for;
        bool split = m.promise.term == promise.term && other && !is_self(*other);
        if (split && now - stood > config.timings.election + retry_delay()) stand();
        return;
    }
    Peer &peer = peers[from.value()];
    peer.granted = true;
    generation_seen = std::max(generation_seen, m.promise.generation);
    if (m.promise.generation > prepared_before.first) take_prepared(m.promise);
    if (!is_self(from) && !peer.is_late(m.report)) peer.report = m.report;
    if (m.whole_ago) whole_at = std::max(whole_at, stood - *m.whole_ago);
    take_scaling(m.promise.scaling);
    const auto &theirs = m.promise.world;
    if (theirs && (!world || world->id < theirs->id) && fits(*theirs)) world = theirs;
    if (!looks_later()) count_votes();
}

/// Of nodes that are not removed: who knows less than the others may have been given votes of such.
void Member::State::count_votes() {
    std::size_t votes = 0;
    bool every_survivor = true;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        votes += peers[i].granted && counts(NodeIndex(i)) && !removed(NodeIndex(i));
        every_survivor = every_survivor && (peers[i].granted || !is_survivor(NodeIndex(i)));
    }
    // Slurm has taken the larger side out of the job, which may not have heard so yet.
    bool majority = is_majority(votes, [&](NodeIndex n) { return peers[n.value()].granted; });
    if (!majority && others_may_act(votes, heard_newest(promise.removed))) return;
    if (every_survivor) promise.settled = promise.removed;
    if (every_survivor || majority) begin_reign();
}

void Member::State::step_down(const std::string &why) {
    if (role == Role::leader) note(Note::Kind::leader_lost, "this node no longer leads: " + why);
    role = Role::follower;
    leader.reset();
    preparing.reset();
    incident.reset();
    awaiting.reset();
    releasing = {};
    meter.reset();
    if (slurm.pending) slurm.unsure = true;
    reset_election();
}

}  // namespace dlrover::elastic
