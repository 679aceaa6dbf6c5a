// SPDX-License-Identifier: Apache-2.0
// The process in front of an agent: it passes signals on and outlives the agent, so that nothing survives
// when the agent is killed. (The agent in turn watches its guard, and slurmstepd.)
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "agent/spawn.h"
#include "base/status.h"

namespace dlrover::agent {

struct GuardConfig {
    bool watch_parent = true;  ///< our parent is slurmstepd: its end is ours
    pid_t spared = 0;          ///< a child that ends after the agent (the keeper of --standalone), or 0
    std::string scratch;       ///< removed at the end
    /// Paths of programs that run beside the agent, are started again when they end, and are killed with the
    /// rest.
    std::vector<std::string> helpers;
    std::string
        last_helper;  ///< of those, or empty: gets SIGUSR2 when the agent has ended, and a second to end
    std::vector<std::string> helper_environment;  ///< "NAME=value"
};

/// What the agent's process gets.
struct GuardedContext {
    InheritedSignals signals;       ///< for the workers
    sigset_t taken;                 ///< blocked, for the agent's signalfd
    std::vector<int> life_lines;    ///< pidfds of the guard and, if watched, its parent
    std::array<bool, 3> is_file{};  ///< by standard stream: a regular file, as it was at the start
};

/// Makes stdin, stdout and stderr exist, blocks the signals that guard and agent take.
GuardedContext prepare_signals();

/// Forks; the child runs `agent` and exits with its result. Returns the exit code (128 + signal if killed)
/// when no process is left below this one except `spared`, which the caller ends.
int run_guarded(const GuardConfig &config, GuardedContext context,
                const std::function<int(const GuardedContext &)> &agent);

}  // namespace dlrover::agent
