// SPDX-License-Identifier: Apache-2.0
// dlrover-watch beside srun: ends it where it would wait for a lost node for ever.
#pragma once

#include <string>

#include "base/status.h"
#include "proto/outcome.h"

namespace dlrover::spank {

/// Beside the agent.
std::string watch_program(const std::string &agent);

/// Starts it in a session of its own, with a handle of this process as its only open file. Nothing where it
/// is not installed, or the kernel has no such handles (before Linux 5.3).
Status start_watch(const std::string &program, const proto::StepRun &step, const std::string &socket);

}  // namespace dlrover::spank
