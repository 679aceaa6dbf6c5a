// SPDX-License-Identifier: Apache-2.0
#include "elastic/placement.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace dlrover::elastic {
namespace {

using Nodes = std::vector<PlacedNode>;

/// Domain by domain, the largest first.
Nodes in_order(std::span<const PlacedNode> nodes) {
    std::map<std::uint32_t, std::size_t> sizes;
    for (const PlacedNode &n : nodes) ++sizes[n.domain];
    Nodes sorted(nodes.begin(), nodes.end());
    std::ranges::sort(sorted, [&](const PlacedNode &a, const PlacedNode &b) {
        return std::tuple(sizes[b.domain], a.domain, a.node) < std::tuple(sizes[a.domain], b.domain, b.node);
    });
    return sorted;
}

std::size_t largest_domain(const Nodes &sorted) {
    return static_cast<std::size_t>(std::ranges::count(sorted, sorted.front().domain, &PlacedNode::domain));
}

/// How far along the circle of nodes the partners are: no domain reaches that far, so they are of others, as
/// long as there is a way round. The other distances follow, those furthest from both ends first.
std::vector<std::size_t> distances(const Nodes &sorted) {
    std::size_t count = sorted.size(), first = std::min(largest_domain(sorted), count - 1);
    std::vector<std::size_t> all;
    for (std::size_t d = 1; d < count; ++d) all.push_back(d);
    auto reach = [&](std::size_t d) { return std::min(d, count - d); };
    std::ranges::stable_sort(all, [&](std::size_t a, std::size_t b) {
        return std::pair(a != first, count - reach(a)) < std::pair(b != first, count - reach(b));
    });
    return all;
}

/// Where one more copy is kept best.
class Room {
  public:
    Room(const Nodes &nodes, const Placement &taken) : nodes_(nodes) {
        for (const auto &[node, partners] : taken)
            for (NodeIndex partner : partners) ++load_[partner];
    }
    /// Precondition: there is a node that is neither `of` nor one of `partners`.
    NodeIndex take(const PlacedNode &of, const std::vector<NodeIndex> &partners) {
        auto cost = [&](const PlacedNode &n) {
            return std::tuple(load_[n.node], n.domain == of.domain, n.node < of.node, n.node);
        };
        const PlacedNode *best = nullptr;
        for (const PlacedNode &n : nodes_) {
            if (n.node == of.node || std::ranges::find(partners, n.node) != partners.end()) continue;
            if (best == nullptr || cost(n) < cost(*best)) best = &n;
        }
        ++load_[best->node];
        return best->node;
    }

  private:
    const Nodes &nodes_;
    std::map<NodeIndex, std::size_t> load_;
};

/// A matching of candidates and places, as large as there is one: who finds his place taken asks the other to
/// move on.
class Seating {
  public:
    Seating(std::span<const Candidate> candidates, std::uint32_t places)
        : candidates_(candidates), taken_by_(places) {
        for (std::size_t i = 0; i < candidates_.size(); ++i) {
            asked_.assign(places, false);
            (void)sit(i);
        }
    }
    const std::vector<std::optional<std::size_t>> &taken_by() const { return taken_by_; }

  private:
    bool sit(std::size_t candidate) {
        for (std::uint32_t place : in_turn(candidate)) {
            if (place >= taken_by_.size() || asked_[place]) continue;
            asked_[place] = true;
            if (taken_by_[place] && !sit(*taken_by_[place])) continue;
            taken_by_[place] = candidate;
            return true;
        }
        return false;
    }
    /// The one it would have anyway comes first.
    std::vector<std::uint32_t> in_turn(std::size_t candidate) const {
        auto places = candidates_[candidate].places;
        std::stable_partition(places.begin(), places.end(),
                              [&](std::uint32_t place) { return place == candidate; });
        return places;
    }

    std::span<const Candidate> candidates_;
    std::vector<std::optional<std::size_t>> taken_by_;
    std::vector<bool> asked_;
};

}  // namespace

std::vector<NodeIndex> seat(std::span<const Candidate> candidates, std::uint32_t places) {
    places = std::min(places, static_cast<std::uint32_t>(candidates.size()));
    Seating seating(candidates, places);
    std::vector<bool> seated(candidates.size(), false);
    for (const auto &candidate : seating.taken_by())
        if (candidate) seated[*candidate] = true;
    std::vector<NodeIndex> nodes;
    std::size_t next = 0;
    for (const auto &candidate : seating.taken_by()) {
        while (!candidate && seated[next]) ++next;
        nodes.push_back(candidates[candidate ? *candidate : next++].node);
    }
    return nodes;
}

Placement place(std::span<const PlacedNode> nodes, unsigned copies) {
    Placement placement;
    if (nodes.size() < 2) return placement;
    Nodes sorted = in_order(nodes);
    auto steps = distances(sorted);
    steps.resize(std::min<std::size_t>(steps.size(), copies));
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        auto &partners = placement[sorted[i].node];
        for (std::size_t step : steps) partners.push_back(sorted[(i + step) % sorted.size()].node);
    }
    return placement;
}

Placement place_again(std::span<const PlacedNode> nodes, unsigned copies, const Placement &before) {
    if (before.empty()) return place(nodes, copies);
    Placement placement;
    if (nodes.size() < 2) return placement;
    Nodes sorted = in_order(nodes);
    std::size_t wanted = std::min<std::size_t>(copies, nodes.size() - 1);
    auto present = [&](NodeIndex node) {
        return std::ranges::find(nodes, node, &PlacedNode::node) != nodes.end();
    };
    for (const PlacedNode &n : sorted) {
        auto &partners = placement[n.node];
        auto it = before.find(n.node);
        if (it == before.end()) continue;
        for (NodeIndex partner : it->second)
            if (partners.size() < wanted && partner != n.node && present(partner))
                partners.push_back(partner);
    }
    Room room(sorted, placement);
    for (const PlacedNode &n : sorted)
        for (auto &partners = placement[n.node]; partners.size() < wanted;)
            partners.push_back(room.take(n, partners));
    return placement;
}

std::vector<Rank> answered_ranks(const World &world, NodeIndex node) {
    std::vector<Rank> ranks;
    for (std::uint32_t rank = 0; rank < world.memory_world_size && rank < world.sources.size(); ++rank) {
        NodeIndex home = world.sources[rank].node;
        if (std::ranges::find(world.nodes, home) == world.nodes.end())
            home = world.nodes[rank % world.nodes.size()];
        if (home == node) ranks.emplace_back(rank);
    }
    return ranks;
}

}  // namespace dlrover::elastic
