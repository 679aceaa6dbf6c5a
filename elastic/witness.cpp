// SPDX-License-Identifier: Apache-2.0
// The second sign of a node that does not answer its leader: whether it answers others. Who asks, and is
// answered, has reached it both ways.
#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::size_t most_witnesses = 3;
constexpr std::size_t most_asked_about = 64;  ///< at a look: where a rack is lost there is much to do besides

}  // namespace

/// Lately: it is asked at each look.
bool Member::State::reached_by_others(NodeIndex node) const {
    if (bugged(PlantedBug::witness_unheard)) return false;
    const auto &at = reached[node.value()].at;
    return at && now - *at < config.timings.leader_silence / 2;
}

/// Those after it in the table that answer this leader: others' witnesses are others.
std::vector<NodeIndex> Member::State::witnesses(NodeIndex node) const {
    std::vector<NodeIndex> found;
    for (std::uint32_t i = 1; i < node_count() && found.size() < most_witnesses; ++i) {
        NodeIndex n((node.value() + i) % node_count());
        if (is_self(n) || removed(n) || dismissed(n)) continue;
        if (silence(n) < config.timings.leader_silence / 2) found.push_back(n);
    }
    return found;
}

void Member::State::ask_others() {
    std::size_t asked_about = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        bool asks = (peers[i].joined || may_have_ranks(n)) && !is_self(n) && !removed(n) && !dismissed(n) &&
                    !broken_at[i] && silence(n) >= config.timings.leader_silence / 2;
        reached[i].asked.clear();
        if (!asks || asked_about++ >= most_asked_about) continue;
        reached[i].asked = witnesses(n);
        send_all(reached[i].asked, Reach{promise.term, n, config.self});
    }
}

/// The leader's table may be longer than this node's.
void Member::State::on_reach(NodeIndex from, const Reach &m) {
    if (std::max(m.node, m.asker).value() >= node_count()) return;
    if (is_self(m.node)) {
        // Its leader lives: who stood now would depose it, and reach it as little.
        if (role == Role::follower && leader == m.asker && m.term == promise.term) reset_election();
        return send(from, Reached{m.term, m.node, m.asker});
    }
    if (from == m.asker && !removed(m.node)) send(m.node, m);
}

void Member::State::on_reached(NodeIndex from, const Reached &m) {
    if (std::max(m.node, m.asker).value() >= node_count()) return;
    if (from == m.node && !is_self(m.asker)) return send(m.asker, m);
    if (!is_self(m.asker) || role != Role::leader || m.term != promise.term || removed(m.node)) return;
    reached[m.node.value()].at = now;
    reached[m.node.value()].by = from;
}

/// For people, of nodes that are lost.
std::string Member::State::signs(const std::vector<NodeIndex> &nodes) const {
    std::vector<NodeIndex> asked;
    for (NodeIndex n : nodes) {
        const OthersWord &word = reached[n.value()];
        if (broken_at[n.value()] || dismissed(n)) continue;
        if (reached_by_others(n) && word.by)
            return " (" + names({*word.by}) + " reaches " + names({n}) + ", this node does not)";
        add_all(asked, word.asked);
    }
    std::erase_if(asked, [&](NodeIndex n) { return contains(nodes, n); });
    if (asked.empty()) return "";
    if (asked.size() > most_witnesses) asked.resize(most_witnesses);
    return " (nor " + std::string(asked.size() == 1 ? "does " : "do ") + names(asked) + " say that " +
           (nodes.size() == 1 ? "it answers them)" : "they answer them)");
}

}  // namespace dlrover::elastic
