// SPDX-License-Identifier: Apache-2.0
// Nodes that are waited for at the start: whoever sits before the terminal hears which, and what to do.
#include "elastic/member_state.h"

#include "base/count_of.h"
namespace dlrover::elastic {
namespace {

using namespace std::chrono_literals;
constexpr Duration patience = 7s, pause = 15s;
constexpr std::size_t most_names = 16;

}  // namespace

/// One node says it, as far as it can know: who leads; without a leader the first of those that stand, or the
/// batch host that hears nobody.
bool Member::State::tells_of_absent() const {
    if (role == Role::leader) return true;
    if (leader && now - leader_contact < config.timings.election) return false;
    bool alone = true;
    for (std::uint32_t i = 0; i < config.step_nodes; ++i) {
        NodeIndex node(i);
        if (!met[i] || removed(node)) continue;
        alone = false;
        if (node < config.self && config.batch_host != node) return false;
    }
    return alone || role == Role::candidate;
}

/// Those that have not been heard of, and those whose agents are not all there.
std::pair<std::vector<NodeIndex>, std::vector<NodeIndex>> Member::State::absent() const {
    std::pair<std::vector<NodeIndex>, std::vector<NodeIndex>> nodes;
    for (std::uint32_t i = 0; i < config.step_nodes; ++i) {
        NodeIndex node(i);
        if (is_self(node) || removed(node)) continue;
        if (!met[i])
            nodes.first.push_back(node);
        else if (role == Role::leader && peers[i].joined && !peers[i].report.ready)
            nodes.second.push_back(node);
    }
    return nodes;
}

std::string Member::State::some_names(std::vector<NodeIndex> nodes) const {
    std::size_t more = nodes.size() - std::min(nodes.size(), most_names);
    nodes.resize(nodes.size() - more);
    return names(nodes) + (more > 0 ? " and " + count_of(more, "more node") : "");
}

void Member::State::tell_absent() {
    bool starts = !world && !finish && config.self.value() < config.step_nodes;
    bool early = now - born < patience || (absent_told_at && now - *absent_told_at < pause);
    if (!starts || early || !tells_of_absent()) return;
    auto nodes = absent();
    if ((nodes.first.empty() && nodes.second.empty()) || nodes == absent_told) return;
    absent_told_at = now;
    std::string text;
    if (!nodes.first.empty())
        text =
            "nothing is heard from " + some_names(nodes.first) +
            ": dlroverd does not run there or can not be reached (systemctl status dlrover there tells), or "
            "Slurm has not started the tasks there yet";
    if (!nodes.second.empty())
        text += (text.empty() ? "" : "; ") + ("not all tasks have started on " + some_names(nodes.second));
    out.push_back(Tell{"the step waits for other nodes: " + text});
    absent_told = std::move(nodes);
}

}  // namespace dlrover::elastic
