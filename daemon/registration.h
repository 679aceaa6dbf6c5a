// SPDX-License-Identifier: Apache-2.0
// Whether a step may become a group, and what its checkpoints belong to. Pure.
#pragma once

#include <string>

#include "base/status.h"
#include "common_types.h"
#include "daemon/slurm.h"

namespace dlrover::daemon {

/// Everything that can be checked without Slurm. `node`: this node's name. invalid_argument with a sentence.
Status check_registration(const proto::StepRegistrationT &step, const std::string &node);

/// Slurm's word against the module's. permission_denied: somebody else's step or other nodes; stale: another
/// run of the job. On success what Slurm knows better is taken over (array task, batch host).
Status check_with_slurm(proto::StepRegistrationT &step, const SlurmStep &slurm);

/// Whether a step of one node (checked with Slurm; `own` is its job) may join the step that `target` names,
/// of this job.
Status check_target(const proto::StepRegistrationT &step, const SlurmJob &own,
                    const proto::JoinTargetT &target, const SlurmJob &job);

/// By which step the node has joined that is the i-th of those at the end of the table.
StepKey joined_by(const proto::StepRegistrationT &group, std::size_t i);

/// As --dlrover-pmix has it.
const char *text_of(proto::PmixMode mode);

/// Command and environment together.
inline constexpr std::size_t max_launch_bytes = 1u << 20;
Status check_launch(const proto::LaunchSpecT &launch);

/// Whether that node fits the group. Both are shortened.
Status check_newcomer(const proto::StepRegistrationT &group, const proto::StepRegistrationT &step);

/// cluster/uid/name/command: what a checkpoint belongs to across requeues.
std::string lineage_of(const proto::StepRegistrationT &step);

/// The command line is for the lineage only; a long one is cut after that.
void shorten(proto::StepRegistrationT &step);

}  // namespace dlrover::daemon
