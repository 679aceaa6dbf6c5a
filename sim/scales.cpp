// SPDX-License-Identifier: Apache-2.0
// Persons who want more nodes or fewer (dlrover scale), amid faults and while nothing else goes wrong.
#include <algorithm>
#include <tuple>

#include "elastic/node_list.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;

void Simulator::plan_scales() {
    std::uint32_t count = 1 + scale_random_.below(5);
    auto end = static_cast<std::uint64_t>(faults_end_.count()) + 3000000;
    for (std::uint32_t i = 0; i < count; ++i)
        push(Time(scale_random_.between(2500000, std::max<std::uint64_t>(end, 6000000))), Kind::scale, 0);
}

/// At any node, any number that is allowed.
void Simulator::scale() {
    std::uint32_t node = scale_random_.below(step_nodes_);
    std::uint32_t units = (config_.max_nodes - config_.min_nodes) / config_.node_unit;
    std::uint32_t wanted = config_.min_nodes + scale_random_.below(units + 1) * config_.node_unit;
    const Node &n = nodes_[node];
    if (!newest_world_ || !n.member || n.dead || n.ended || n.frozen_until > now_) return;
    trace("fault: a person wants " + std::to_string(wanted) + " nodes");
    feed(node, LocalScale{wanted});
}

/// The newest word that is on record with anybody who takes part.
std::optional<Scaling> Simulator::scaling() const {
    std::optional<Scaling> newest;
    auto newer = [&](const Scaling &s) {
        return !newest || std::tie(newest->number, newest->nodes) < std::tie(s.number, s.nodes);
    };
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        const Node &n = nodes_[i];
        bool takes_part = n.member && !n.dead && !n.ended && in_job(i) && n.keeper;
        if (takes_part && n.keeper->scaling.number > 0 && newer(n.keeper->scaling))
            newest = n.keeper->scaling;
    }
    return newest;
}

std::size_t Simulator::wanted_nodes() const {
    auto newest = scaling();
    return newest ? newest->nodes : config_.max_nodes;
}

bool Simulator::is_released(std::uint32_t node) const {
    return std::ranges::any_of(nodes_, [&](const Node &n) {
        return n.keeper && contains(n.keeper->scaling.released, NodeIndex(node));
    });
}

/// After the faults: everybody knows of the newest word, and where a world of another size can go on from
/// memory, there are no more nodes in it than are wanted.
bool Simulator::scaled() const {
    auto newest = scaling();
    if (!newest || !newest_world_) return true;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        const Node &n = nodes_[i];
        if (!n.member || n.dead || n.ended || !in_job(i) || !truly_counts(i) || given_up(i)) continue;
        if (n.member->view().wanted_nodes != newest->nodes) return false;
    }
    return !config_.any_size || newest_world_->nodes.size() <= newest->nodes;
}

/// What the world before has saved may be needed until then.
void Simulator::check_released() const {
    auto run = runs_.find(newest_world_->id);
    check(run != runs_.end() && run->second.complete.has_value(),
          "a node is given back before the world has a step of its own");
}

}  // namespace dlrover::sim
