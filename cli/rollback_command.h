// SPDX-License-Identifier: Apache-2.0
// `dlrover rollback JOB --step N`: a running group goes on from an older step. Asks, waits, and prints.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "ckpt/checkpoint_folder.h"
#include "proto/local_codec.h"

namespace dlrover::cli {

/// Where the step is that a group is to go back to.
struct StepPlace {
    std::string lineage;    ///< its folder on storage; empty: it is in memory alone
    ckpt::CheckpointId id;  ///< with `lineage`
    std::string text() const { return lineage.empty() ? "in memory" : "on storage, in " + lineage; }
};

/// Pure: whether the group has left this checkpoint behind, and would not go on from it.
bool is_left_behind(const proto::local::GroupStatusT &group, const ckpt::CheckpointId &id);
/// Reads the manifest and looks at the files. not_found: it is nowhere whole; the sentence says what there
/// is.
Result<StepPlace> find_step(const proto::local::GroupStatusT &group, std::uint64_t step);
/// The one that runs. invalid_argument: there are several, or none does.
Result<const proto::local::GroupStatusT *> running_group(const proto::local::StatusReplyT &reply);

/// reply: of the job. Returns when the group has begun from that step.
Status roll_back_job(const proto::local::StatusReplyT &reply, std::uint64_t step, bool yes);

}  // namespace dlrover::cli
