// SPDX-License-Identifier: Apache-2.0
// A job that is asked of Slurm on the terms of one that runs. For daemon/slurm_*.cpp alone; calls block.
#pragma once

#include "daemon/slurm_api.h"

namespace dlrover::daemon {

/// On whose behalf, and on what terms. Pointers into `job` stay Slurm's.
void take_terms(const slurm_job_info_t &job, job_desc_msg_t &out);

/// The job's resources for each node. Pointers as above.
void take_shape(const slurm_job_info_t &job, job_desc_msg_t &out);

/// invalid_argument: Slurm does not say what one node of it has.
Status check_shape(const slurm_job_info_t &job);

/// As much as the job has. invalid_argument: not a minute is left.
Result<std::uint32_t> minutes_left(const slurm_job_info_t &job);

/// As the step has them.
Result<std::uint32_t> cpus_per_task(JobId job, StepId step);
/// On a node that has most of them.
Result<std::uint16_t> tasks_per_node(JobId job, StepId step);

}  // namespace dlrover::daemon
