// SPDX-License-Identifier: Apache-2.0
// Removes from a lineage's folder what is not to be kept.
#pragma once

#include <cstdint>
#include <span>

#include "writer/destination.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

/// After `stored` has become complete: checkpoints that the retention gives up, what crashed writers left,
/// the marks of suspect ones that are gone, old claims. `in_use`: stay. `removed` counts checkpoints, also on
/// failure. Blocks.
Status tidy(const Destination &to, const ckpt::CheckpointId &stored, const RunId &run,
            std::span<const ckpt::CheckpointId> in_use, std::uint32_t &removed);

}  // namespace dlrover::writer
