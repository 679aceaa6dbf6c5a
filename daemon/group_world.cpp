// SPDX-License-Identifier: Apache-2.0
// Who runs which ranks on this node, and how an agent is told.
#include <algorithm>

#include "daemon/group.h"

namespace dlrover::daemon {

std::uint32_t Group::tasks_here() const {
    return registration().tasks_per_node[self().value()];
}

std::uint32_t Group::ranks_of(NodeIndex node) const {
    const auto &tasks = registration().tasks_per_node;
    return node.value() < tasks.size() ? std::uint32_t{tasks[node.value()]} * record_.workers : 0;
}

std::optional<std::uint32_t> Group::place_in(const elastic::World &world) const {
    auto it = std::find(world.nodes.begin(), world.nodes.end(), self());
    if (it == world.nodes.end()) return std::nullopt;
    return static_cast<std::uint32_t>(it - world.nodes.begin());
}

std::uint32_t Group::first_rank(const elastic::World &world, std::uint32_t place) const {
    std::uint32_t rank = 0;
    for (std::uint32_t i = 0; i < place; ++i) rank += ranks_of(world.nodes[i]);
    return rank;
}

std::uint32_t Group::world_size(const elastic::World &world) const {
    return first_rank(world, static_cast<std::uint32_t>(world.nodes.size()));
}

std::optional<Rank> Group::rank_of(std::uint32_t local_rank) const {
    auto place = world_ ? place_in(*world_) : std::nullopt;
    if (!place || local_rank >= ranks_of(self())) return std::nullopt;
    return Rank(first_rank(*world_, *place) + local_rank);
}

std::string Group::node_name(NodeIndex node) const {
    const auto &names = registration().node_names;
    return node.value() < names.size() ? names[node.value()] : "node " + std::to_string(node.value());
}

local::WorldPublishedT Group::describe_world(const elastic::World &world) const {
    local::WorldPublishedT out;
    out.generation = to_proto_ptr(world.id);
    out.world_size = world_size(world);
    out.node_count = static_cast<std::uint32_t>(world.nodes.size());
    auto place = place_in(world);
    out.active = place.has_value();
    out.group_rank = place.value_or(0);
    out.local_world_size = place ? ranks_of(self()) : 0;
    out.first_rank = place ? first_rank(world, *place) : 0;
    for (NodeIndex node : world.nodes) {
        out.ranks_per_node.push_back(static_cast<std::uint16_t>(ranks_of(node)));
        out.node_names.push_back(node_name(node));
    }
    out.master_addr = world.nodes.size() == 1 ? "127.0.0.1" : address_of(world.nodes.front());
    out.master_port = world.master_port;
    out.restart_count = world.restart_count;
    out.max_restarts = registration().options->max_restarts;
    out.run_id = "dlrover-" + key_;
    if (world.restore_step) out.restore_step = static_cast<std::int64_t>(world.restore_step->value());
    return out;
}

}  // namespace dlrover::daemon
