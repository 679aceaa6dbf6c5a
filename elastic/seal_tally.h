// SPDX-License-Identifier: Apache-2.0
// Which steps are complete: of every rank of one world, in one generation, the object is there or can be made
// again from a row's parities. Which are safe: none is lost with as many nodes as asked for.
#pragma once

#include <algorithm>
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

    /// A step is safe when each of its objects is on `holders` nodes, or is of a row that outlives the loss
    /// of one node less than that. `row_units`: of which a row has at most; so many nodes of an object are
    /// remembered, that each unit of its row can be counted on a node of its own.
    explicit SealTally(std::uint32_t holders = 1, std::uint32_t row_units = 0)
        : wanted_(holders), places_(std::max(holders, row_units)) {}

    /// `holder` has this object. Values that cannot be are ignored. `seal.world_size` must be at most
    /// `max_world`.
    void add(const Seal &seal, std::uint32_t max_world, NodeIndex holder);
    /// The same of a parity. in_force: it is of a row of the world for which steps are to be safe; others
    /// make a step complete only.
    void add(const Parity &parity, std::uint32_t max_world, NodeIndex holder, bool in_force);
    /// It does not hold that any more. Of an object on more nodes than are remembered the others have to be
    /// added again.
    void remove(const Seal &seal, NodeIndex holder);
    void remove(const Parity &parity, NodeIndex holder);
    /// Newest; of two with the same step the one of the newer generation.
    std::optional<Complete> newest(Rules rules) const;
    /// The newest that is complete and was asked for on storage by one of its ranks.
    std::optional<CheckpointId> newest_asked(Rules rules) const;
    /// The newest complete step of the newest generation that has one.
    std::optional<CheckpointId> newest_complete() const;
    /// Whether it is complete, and safe.
    bool safe(const CheckpointId &id, Rules rules) const;
    /// The newest step that is safe; the newest complete one of which a part at least outlives a node.
    std::optional<CheckpointId> newest_safe(Rules rules) const;
    std::optional<CheckpointId> newest_copied() const;
    /// The newest complete step that outlives the loss of as many nodes as a safe one, be it by rows that are
    /// not in force.
    std::optional<CheckpointId> newest_outliving() const;
    /// The complete step whose least kept object outlives the loss of most nodes, and of one at least; of
    /// several the newest.
    std::optional<CheckpointId> most_copied() const;
    /// Places where objects and parities of this step are.
    std::size_t held(const CheckpointId &id) const;
    /// Of a step that was saved in several generations, the complete one to go on from: of this world size if
    /// there is one, then whose least kept object outlives the loss of most nodes, then the newest.
    std::optional<CheckpointId> best_of(TrainStep step, std::uint32_t size) const;
    /// Of the complete step. 0: it is not complete.
    std::uint32_t world_size(const CheckpointId &id) const;
    /// Nodes that hold that rank's object of the complete step, at most as many as are remembered.
    std::span<const NodeIndex> holders(const CheckpointId &id, Rank rank) const;
    /// What is there of a row from which that rank's object of the complete step can be made again: every
    /// unit with every node that holds it. Empty: there is none.
    struct Row {
        std::vector<Rank> ranks;
        std::vector<RebuildPart> units;
    };
    Row decodable(const CheckpointId &id, Rank rank) const;
    /// Everything sealed in `generation` after `complete` and before this step can never be complete: a rank
    /// has skipped it, or has gone on to a newer step without it. `skips`: of that generation. none: nothing
    /// is void.
    std::optional<TrainStep> void_below(const GenerationId &generation, std::optional<TrainStep> complete,
                                        std::span<const Skip> skips, Rules rules) const;
    void drop_void(const GenerationId &generation, TrainStep below);
    void drop_older_than(TrainStep step);
    void clear() { steps_.clear(); }

  private:
    struct CodedRow {
        std::vector<Rank> ranks;
        std::vector<RebuildPart> parities;
        bool in_force = false;
        std::uint8_t outlives = 0;  ///< 0: it can not be decoded; else one more than the nodes it can lose
    };
    struct Step {
        Complete id;
        std::uint32_t world_size = 0, count = 0;
        std::uint32_t safe_count = 0;
        bool asked = false;
        std::vector<std::uint8_t> held;      ///< by rank: on how many nodes, at most `places_`
        std::vector<std::uint8_t> outlives;  ///< by rank: 0: it is nowhere; else as of CodedRow
        std::vector<bool> safe;              ///< by rank
        std::vector<NodeIndex> holders;      ///< by rank, `places_` each
        std::vector<CodedRow> rows;
        std::vector<std::vector<std::size_t>> rows_of;  ///< by rank; empty: there are none
    };
    const Step *find(const CheckpointId &id) const;
    Step &step_of(const Complete &id, std::uint32_t world_size);
    Step *find(const Complete &id, std::uint32_t world_size);
    static CodedRow *find_row(Step &s, const Parity &parity);
    static CodedRow &row_of(Step &s, const Parity &parity);
    void weigh_with_rows(Step &s, Rank rank) const;
    void weigh_with_ranks(Step &s, CodedRow &row) const;
    std::span<const NodeIndex> holders_of(const Step &s, Rank rank) const;
    std::vector<RebuildPart> units_of(const Step &s, const CodedRow &row) const;
    void weigh(const Step &s, CodedRow &row) const;
    void weigh(Step &s, Rank rank) const;
    static bool is_safe(const Step &s, Rules rules);
    static std::size_t mixed_count(const std::vector<Step> &steps, const Step &like);
    std::uint32_t wanted_, places_;
    std::vector<Step> steps_;
};

}  // namespace dlrover::elastic
