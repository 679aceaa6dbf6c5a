// SPDX-License-Identifier: Apache-2.0
// Which checkpoints are removed, or passed over after a rollback. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint_folder.h"
#include "cli/ckpt_options.h"

namespace dlrover::cli {

struct RemovalPlan {
    std::vector<ckpt::CheckpointId> ids;  ///< oldest first
    std::vector<std::string> notes;       ///< what stays although it was meant, and why
};

/// `newest`: of the complete ones that are whole, as far as lengths tell; none: none is.
/// not_found: a step that is not there. invalid_argument: the newest one, without --force. What is damaged
/// and newer goes by its step alone, or with --force. An incomplete one that is newer than all complete ones
/// may be being written: it needs --force too.
Result<RemovalPlan> plan_removal(const ckpt::CheckpointListing &listing,
                                 const std::optional<ckpt::CheckpointId> &newest, const CkptOptions &options);

struct RollbackPlan {
    ckpt::CheckpointId target;              ///< the newest of that step; it stays
    std::vector<ckpt::CheckpointId> newer;  ///< complete ones above it
};
/// not_found: no complete checkpoint has the step.
Result<RollbackPlan> plan_rollback(const ckpt::CheckpointListing &listing, std::uint64_t step);

}  // namespace dlrover::cli
