// SPDX-License-Identifier: Apache-2.0
// Nodes that Slurm gives a job beside its own: companion jobs, and allocations that are moved into it. All
// calls block.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "daemon/slurm.h"

namespace dlrover::daemon {

/// A batch job of one node on the main job's terms, marked as its group's.
Result<JobId> submit_companion_job(const CompanionOrder &order);

/// A node that Slurm gives at once or refuses, moved into the main job.
Result<Growth> grow_main_job(const CompanionOrder &order);

/// The user's jobs of this mark that wait or run.
Result<std::vector<Companion>> find_companions(std::uint32_t uid, const std::string &mark);

/// What a site has written in the job's comment stays.
Status mark_as_companion(JobId job, const std::string &mark);

}  // namespace dlrover::daemon
