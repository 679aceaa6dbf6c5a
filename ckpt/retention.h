// SPDX-License-Identifier: Apache-2.0
// Which checkpoints on storage are given up. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/storage_name.h"

namespace dlrover::ckpt {

struct RetentionPolicy {
    std::uint64_t keep_last = 0;   ///< the newest so many complete ones; 0: all of them
    std::uint64_t keep_every = 0;  ///< and those whose training step is a multiple of it; 0: none
};

/// What to remove, oldest first. The newest complete checkpoint stays whatever the policy says, and so does
/// what `in_use` names (a restore reads it). `incomplete`: folders without a manifest; they go when a newer
/// complete one is there, since what is written now is newer than all that is complete. Any order, no
/// duplicates within a list.
std::vector<CheckpointId> checkpoints_to_remove(const RetentionPolicy &policy,
                                                std::span<const CheckpointId> complete,
                                                std::span<const CheckpointId> incomplete,
                                                std::span<const CheckpointId> in_use);

}  // namespace dlrover::ckpt
