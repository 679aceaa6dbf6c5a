// SPDX-License-Identifier: Apache-2.0
// Ids are types: a Rank can not be passed where a NodeIndex is meant.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace dlrover {

/// An integer of its own type. `Tag` is only a name.
template <typename Int, typename Tag>
class Id {
  public:
    using Value = Int;
    constexpr Id() noexcept = default;
    constexpr explicit Id(Int value) noexcept : value_(value) {}
    constexpr Int value() const noexcept { return value_; }
    friend constexpr auto operator<=>(Id, Id) noexcept = default;

  private:
    Int value_ = 0;
};

using JobId = Id<std::uint32_t, struct JobIdTag>;
using StepId = Id<std::uint32_t, struct StepIdTag>;
using UserId = Id<std::uint32_t, struct UserIdTag>;
/// Position of a node in its group's list: the step's nodes in Slurm's order, then those that joined, in
/// order of joining.
using NodeIndex = Id<std::uint32_t, struct NodeIndexTag>;
/// A training process of one generation, 0 to world size - 1.
using Rank = Id<std::uint32_t, struct RankTag>;
using LocalRank = Id<std::uint32_t, struct LocalRankTag>;
/// A leader's reign; in the high 32 bits Slurm's restart count, or more where the lineage's checkpoints on
/// storage are of higher terms.
using Term = Id<std::uint64_t, struct TermTag>;
/// The training step at which a checkpoint was taken.
using TrainStep = Id<std::uint64_t, struct TrainStepTag>;
using SlotIndex = Id<std::uint32_t, struct SlotIndexTag>;
using SegmentId = Id<std::uint64_t, struct SegmentIdTag>;

/// (term, number): only ever grows; everything that can be stale carries it. {0,0} is "before the first".
struct GenerationId {
    Term term;
    std::uint64_t number = 0;
    friend constexpr auto operator<=>(const GenerationId &, const GenerationId &) noexcept = default;
};

/// A complete checkpoint: (generation, step); newest is highest.
struct CheckpointId {
    GenerationId generation;
    TrainStep step;
    friend constexpr auto operator<=>(const CheckpointId &, const CheckpointId &) noexcept = default;
};

inline std::string to_string(const GenerationId &g) {
    return std::to_string(g.term.value() >> 32) + "." + std::to_string(g.term.value() & 0xffffffffU) + "." +
           std::to_string(g.number);
}

}  // namespace dlrover

template <typename Int, typename Tag>
struct std::hash<dlrover::Id<Int, Tag>> {
    std::size_t operator()(dlrover::Id<Int, Tag> id) const noexcept { return std::hash<Int>{}(id.value()); }
};
