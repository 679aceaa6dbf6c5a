// SPDX-License-Identifier: Apache-2.0
// Which nodes keep copies of a node's checkpoints. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

/// A node and what it fails together with (a switch, a rack): equal numbers are one domain.
struct PlacedNode {
    NodeIndex node;
    std::uint32_t domain = 0;
    friend bool operator==(const PlacedNode &, const PlacedNode &) = default;
};

/// For each node its partners, the first one first.
using Placement = std::map<NodeIndex, std::vector<NodeIndex>>;

/// Partners for each of `nodes`: `copies` others, or all others where there are fewer. Every node keeps as
/// many copies as the next, and no partner is of the same domain where no domain has more than half of the
/// nodes. The same nodes in any order give the same placement.
Placement place(std::span<const PlacedNode> nodes, unsigned copies);

/// The same after changes: who had a partner that is still there keeps it, since it has the copies already.
/// What is missing goes to the nodes that keep the fewest, of other domains first.
Placement place_again(std::span<const PlacedNode> nodes, unsigned copies, const Placement &before);

/// A node that can take a place in a world, and the places of whose ranks it has all objects.
struct Candidate {
    NodeIndex node;
    std::vector<std::uint32_t> places;
};

/// `places` nodes in the order of their places: as many as can be sit where they have the objects, the others
/// keep the candidates' order. All of them where there are not so many.
std::vector<NodeIndex> seat(std::span<const Candidate> candidates, std::uint32_t places);

/// Of a step in memory that a world of another size has saved: the ranks whose objects get their copies from
/// this node. Where none of the world's nodes has one, it fetches it first.
std::vector<Rank> answered_ranks(const World &world, NodeIndex node);

}  // namespace dlrover::elastic
