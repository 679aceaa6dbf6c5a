// SPDX-License-Identifier: Apache-2.0
// The link between two nodes alone goes for a time, both ways, while others reach both. That is too short to
// lose either of them for, where nothing else happens to it.
#include <algorithm>

#include "elastic/node_list.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t most_asked = 3;  ///< others, whether they reach a node

/// What it takes to lose a node that nobody reaches, and one that others reach.
Duration shorter_limit(const Timings &t) {
    return t.leader_silence * 8 / 5;
}
Duration longer_limit(const Timings &t) {
    return t.leader_silence * 17 / 5;
}

}  // namespace

/// Half of the runs have nothing but this, and what copies and joins bring; the others amid faults. True
/// where nothing else is to be planned.
bool Simulator::plan_pairs() {
    if (!options_.pairs || nodes_.size() < 3) return false;
    Time at = milliseconds(pairs_random_.between(2500, 6000));
    std::uint32_t count = 1 + pairs_random_.below(4);
    for (std::uint32_t i = 0; i < count; ++i) {
        push(at, Kind::pair, 0);
        at += longer_limit(config_.timings) + milliseconds(pairs_random_.between(0, 3000));
    }
    pairs_end_ = at;
    if (pairs_random_.chance(50)) return false;
    faults_end_ = std::max({at, copies_end_, joins_end_});
    push(faults_end_, Kind::heal, 0);
    push(faults_end_, Kind::check, 0);
    return true;
}

/// Mostly between the leader and another one. As long as is between the two limits: a node is silent from the
/// last heartbeat before it, and until the first one after it.
void Simulator::cut_pair() {
    std::vector<std::uint32_t> here;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].member && !nodes_[i].dead && !nodes_[i].ended && in_job(i)) here.push_back(i);
    auto least = shorter_limit(config_.timings), most = longer_limit(config_.timings);
    Duration lasts(pairs_random_.between((least + milliseconds(100)).count(),
                                         (most - config_.timings.heartbeat * 2).count()));
    auto head = leader();
    bool at_leader = pairs_random_.chance(70);
    std::uint32_t choice = pairs_random_.below(nodes_.size()), step = pairs_random_.below(nodes_.size());
    if (here.size() < 3) return;
    auto first = std::ranges::find(here, at_leader && head ? *head : here[choice % here.size()]);
    if (first == here.end()) return;
    std::uint32_t one = *first;
    here.erase(first);
    std::uint32_t other = here[step % here.size()];
    trace("fault pair: nodes " + std::to_string(one) + " and " + std::to_string(other) + " for " +
          std::to_string(lasts.count() / 1000) + " ms");
    pair_cut_ = PairCut{one, other, now_, now_ + lasts};
}

/// Links that were broken and stand again. Of runs without this fault what is broken stays so until the next
/// daemon.
void Simulator::tell_links() {
    // Later than what was said before.
    Duration delay = milliseconds(chaos_ ? 750 : 3);
    for (std::uint32_t i = 0; options_.pairs && i < nodes_.size(); ++i)
        std::erase_if(nodes_[i].broken, [&](std::uint32_t peer) {
            bool stands = nodes_[i].member && nodes_[peer].member && linked(i, peer) && linked(peer, i);
            Payload p;
            p.input = PeerLink{NodeIndex(peer), false};
            if (stands) push(now_ + delay, Kind::input, i, keep(std::move(p)));
            return stands;
        });
}

bool Simulator::is_cut_pair(std::uint32_t one, std::uint32_t other) const {
    return pair_cut_ && std::minmax(one, other) == std::minmax(pair_cut_->one, pair_cut_->other);
}

/// Its daemon has been there all the time, and has taken part.
bool Simulator::is_calm(std::uint32_t node, Duration lately) const {
    const Node &n = nodes_[node];
    Time since = now_ - lately;
    return n.member && !n.dead && !n.ended && !n.muted && n.agent && !n.dismissed && in_job(node) &&
           truly_counts(node) && n.daemon_at < since && n.frozen_until < since;
}

/// The network but for one pair.
bool Simulator::is_network_calm(Duration lately) const {
    bool cut = std::ranges::any_of(nodes_, [&](const Node &n) { return n.side != nodes_[0].side; });
    return !cut && !chaos_ && one_way_.empty() && (healed_at_ == Time(0) || healed_at_ < now_ - lately);
}

/// Where three or more of the others are in trouble, the leader may have asked these.
bool Simulator::is_reached(std::uint32_t node, std::uint32_t leader, Duration lately) const {
    std::size_t reaching = 0, troubled = 0;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (i != node && i != leader) ++(is_calm(i, lately) ? reaching : troubled);
    return reaching > 0 && troubled < most_asked;
}

/// A leader takes nobody out that others have reached all the time and that nothing else has happened to,
/// but for one that it has not heard itself for the longer limit. Who is given back is no such node.
void Simulator::check_taken_out(std::uint32_t node, const AskSlurm &ask) const {
    using What = AskSlurm::What;
    bool takes_out =
        ask.what == What::shrink_to || ask.what == What::leave_behind || ask.what == What::end_companion;
    if (!options_.pairs || !takes_out || scaling() || nodes_[node].member->view().leader != NodeIndex(node))
        return;
    const Timings &t = config_.timings;
    Duration lately = longer_limit(t) + t.leader_silence;
    if (!is_network_calm(lately) || !is_calm(node, lately)) return;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        bool is_named = contains(ask.nodes, NodeIndex(i));
        bool is_meant = ask.what == What::shrink_to ? in_groups_job(i) && !is_named : is_named;
        if (!is_meant || i == node || !is_calm(i, lately) || !is_reached(i, node, lately)) continue;
        if (nodes_[node].broken.contains(i)) continue;
        bool unheard = is_cut_pair(node, i) && now_ - pair_cut_->since >= longer_limit(t) - t.heartbeat;
        check(unheard, "a node that others reach is taken out too early");
    }
}

}  // namespace dlrover::sim
