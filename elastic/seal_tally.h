// SPDX-License-Identifier: Apache-2.0
// Which steps are complete: sealed by every rank of one world, in one generation. Which are safe: on as many
// nodes as asked for.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

class SealTally {
  public:
    struct Complete {
        TrainStep step;
        GenerationId generation;
        friend auto operator<=>(const Complete &, const Complete &) = default;
    };
    struct Rules {  ///< broken ones are for the simulator
        bool mix_generations = false, oldest = false, early = false, asked_early = false;
        bool safe_early = false;
    };

    /// A step is safe when each of its objects is on `holders` nodes.
    explicit SealTally(std::uint32_t holders = 1) : wanted_(holders) {}

    /// `holder` has this object. Values that cannot be are ignored. `seal.world_size` must be at most
    /// `max_world`.
    void add(const Seal &seal, std::uint32_t max_world, NodeIndex holder);
    /// Newest; of two with the same step the one of the newer generation.
    std::optional<Complete> newest(Rules rules) const;
    /// The newest that is complete and was asked for on storage by one of its ranks.
    std::optional<CheckpointId> newest_asked(Rules rules) const;
    /// Whether it is complete, and safe.
    bool safe(const CheckpointId &id, Rules rules) const;
    /// The newest step that is safe; the newest complete one that is on more than one node in part at least.
    std::optional<CheckpointId> newest_safe(Rules rules) const;
    std::optional<CheckpointId> newest_copied() const;
    /// The complete step whose least kept object is on most nodes, and on two at least; of several the
    /// newest.
    std::optional<CheckpointId> most_copied() const;
    /// Places where objects of this step are.
    std::size_t held(const CheckpointId &id) const;
    /// Of a step that was saved in several generations, the complete one to go on from: of this world size if
    /// there is one, then whose least kept object is on most nodes, then the newest.
    std::optional<CheckpointId> best_of(TrainStep step, std::uint32_t size) const;
    /// Of the complete step. 0: it is not complete.
    std::uint32_t world_size(const CheckpointId &id) const;
    /// Nodes that hold that rank's object of the complete step, at most as many as make it safe.
    std::span<const NodeIndex> holders(const CheckpointId &id, Rank rank) const;
    /// Everything sealed in `generation` after `complete` and before this step can never be complete: a rank
    /// has gone on to a newer step without it (its save was skipped). none: nothing is void.
    std::optional<TrainStep> void_below(const GenerationId &generation, std::optional<TrainStep> complete,
                                        Rules rules) const;
    void drop_void(const GenerationId &generation, TrainStep below);
    void drop_older_than(TrainStep step);
    void clear() { steps_.clear(); }

  private:
    struct Step {
        Complete id;
        std::uint32_t world_size = 0, count = 0;
        std::uint32_t safe_count = 0;
        bool asked = false;
        std::vector<std::uint8_t> held;  ///< by rank: on how many nodes, at most `wanted_`
        std::vector<NodeIndex> holders;  ///< by rank, `wanted_` places each
    };
    const Step *find(const CheckpointId &id) const;
    static bool is_safe(const Step &s, Rules rules);
    static std::size_t mixed_count(const std::vector<Step> &steps, const Step &like);
    std::uint32_t wanted_;
    std::vector<Step> steps_;
};

}  // namespace dlrover::elastic
