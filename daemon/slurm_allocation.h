// SPDX-License-Identifier: Apache-2.0
// A job of its own that ranks of another one have asked for. Slurm is asked as the user who calls, so that
// all of the site's limits hold.
#pragma once

#include "proto/allocation_words.h"

namespace dlrover::daemon {

/// How many of them a job's ranks may have at a time, those that wait too. Where several ask at once there
/// may be a few more.
inline constexpr std::size_t most_allocations = 16;

/// Blocks. permission_denied: Slurm says so, or no rank of order.job has asked for that allocation.
Result<proto::AllocationState> carry_out(const proto::AllocationOrder &order);

}  // namespace dlrover::daemon
