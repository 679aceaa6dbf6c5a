// SPDX-License-Identifier: Apache-2.0
// Removes from a lineage's folder what is not to be kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "writer/destination.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

struct Tidied {
    std::uint32_t removed = 0;  ///< checkpoints
    std::string text;           ///< of other runs that use the folder; empty: there are none
};

/// After `stored` has become complete: checkpoints that the retention gives up, what crashed writers left,
/// the marks of suspect ones that are gone, old claims. `in_use`, and of each other run that uses the folder
/// the newest complete one and what it is making: stay. `done` also on failure. Blocks.
Status tidy(const Destination &to, const ckpt::CheckpointId &stored, const RunId &run,
            std::vector<ckpt::CheckpointId> in_use, Tidied &done);

}  // namespace dlrover::writer
