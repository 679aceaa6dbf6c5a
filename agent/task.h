// SPDX-License-Identifier: Apache-2.0
// An agent as the task of a step: what the module left in the environment, guard, loop, end.
#pragma once

#include "agent/agent.h"
#include "agent/guard.h"

namespace dlrover::agent {

struct TaskSpec {
    std::string program;  ///< "dlrover-agent", "dlrover-run"
    Environment env;
    std::vector<std::string> argv;  ///< the user's program
    LaunchSpec launch;
    std::uint16_t task = 0;
    unsigned workers = 1;
    LogPlan logs;
    bool under_slurm = true;
    pid_t spared = 0;        ///< see GuardConfig
    std::string orphan_dir;  ///< removed by the agent when the process above it was killed
};

/// job, step, socket and task number from DLROVER_*. not_found: this is no elastic step.
Status read_task(const Environment &env, TaskSpec &spec);

/// Where the module could not register the step: says so and returns the exit code, or runs the program
/// without us (DLROVER_OPTIONAL) and does not return. Otherwise nothing.
std::optional<int> check_registration(const TaskSpec &spec);

/// Runs the agent behind its guard; returns the task's exit code.
int run_task(TaskSpec spec);

/// This machine's name as Slurm has it.
std::string node_name(const Environment &env);

}  // namespace dlrover::agent
