// SPDX-License-Identifier: Apache-2.0
// Coding groups: whose objects make up a row, and which nodes keep its parities. Pure.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "elastic/placement.h"

namespace dlrover::elastic {

/// Coding groups of a world's nodes.
struct Groups {
    std::vector<std::uint32_t> of;                ///< by place: as in World
    std::vector<std::vector<NodeIndex>> holders;  ///< by group: of each parity
    friend bool operator==(const Groups &, const Groups &) = default;
};

/// `nodes`: by place; `spares`: take part where parities would have no node otherwise. Groups of up to
/// `code.data` members, alike in size, each with `code.parity` holders that are
/// no members; smaller groups where there are too few nodes, and then fewer holders. Members and holders are
/// of different domains where that is possible. Groups of the same places as before stay, and who had a
/// parity keeps it.
Groups choose_groups(std::span<const PlacedNode> nodes, std::span<const PlacedNode> spares, CodeSize code,
                     const World *before);

/// Whose objects of this checkpoint get their redundancy from this node: its ranks', or those that it answers
/// for where a world of another size has saved it. `nodes`: as in GroupConfig.
std::vector<Rank> protected_ranks(const World &world, std::span<const NodeSpec> nodes, NodeIndex node,
                                  const CheckpointId &id);

/// One object of each member of a group, as far as it has one.
struct CodedRow {
    std::vector<Rank> ranks;
    std::vector<NodeIndex> members;  ///< of each rank
    std::vector<NodeIndex> holders;  ///< of each parity
};

/// Every row of this checkpoint. Precondition: the world has groups.
std::vector<CodedRow> rows_of(const World &world, std::span<const NodeSpec> nodes, const CheckpointId &id);
/// The one with this rank's object.
std::optional<CodedRow> row_of(const World &world, std::span<const NodeSpec> nodes, const CheckpointId &id,
                               Rank rank);

/// Which parities are of a row of the world: a question for each parity of each node.
class RowBook {
  public:
    RowBook() = default;
    /// Of what the world's ranks save, and of what it goes on from.
    RowBook(const World &world, std::span<const NodeSpec> nodes);
    bool has(const Parity &parity) const;

  private:
    using Rows = std::map<Rank, std::vector<Rank>>;  ///< by first rank
    static void fill(Rows &to, const World &world, std::span<const NodeSpec> nodes, const CheckpointId &id);
    CheckpointId from_;
    std::uint32_t world_size_ = 0, memory_world_size_ = 0;
    Rows own_, from_memory_;
};

/// Whether a node has to keep a parity of a step that is safe in this world (MemberView::covered): it is of
/// a row of it, or an object is to be made of it.
bool is_wanted(const World &world, const RowBook &rows, const Parity &parity);

/// How the object of a rank of this row that nobody holds is made again, from what is there: by a node with
/// one of the parities, another one than those of `others` where that is possible. Precondition: there are
/// enough units, and a parity among them.
Rebuild plan_rebuild(Rank rank, const std::vector<Rank> &row, std::span<const RebuildPart> units,
                     std::span<const Rebuild> others);

/// Whether `groups` and `partners` are what types.h says, and each rebuild can be done.
bool has_sound_groups(const World &world);

}  // namespace dlrover::elastic
