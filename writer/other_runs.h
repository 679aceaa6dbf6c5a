// SPDX-License-Identifier: Apache-2.0
// Runs of the same lineage that put checkpoints into its folder while this one does (docs/format-storage.md,
// "Claims").
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ckpt/checkpoint_folder.h"

namespace dlrover::writer {

struct OtherRuns {
    std::set<std::uint32_t> highs;           ///< high halves of their terms
    std::vector<ckpt::CheckpointId> spared;  ///< the newest complete one of each, and what it is making
    std::string text;                        ///< about them, for the user; empty: there are none
};

/// Those that have made something since the run with the high half `own` made its claim, and all with a
/// higher one: they came later. Blocks.
OtherRuns find_other_runs(const std::string &folder, std::uint32_t own,
                          const ckpt::CheckpointListing &listing);

}  // namespace dlrover::writer
