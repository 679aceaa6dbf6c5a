// SPDX-License-Identifier: Apache-2.0
// torchrun's command line as dlrover-run takes it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/environment.h"
#include "agent/log_plan.h"
#include "base/status.h"

namespace dlrover::agent {

struct RunOptions {
    bool help = false, version = false;
    bool standalone = false;
    std::optional<std::uint32_t> min_nodes, max_nodes;  ///< --nnodes
    std::optional<std::uint32_t> max_restarts;
    std::optional<std::uint32_t> node_unit;
    unsigned workers = 1;  ///< --nproc-per-node
    std::string role = "default", run_id;
    LogPlan logs;
    std::vector<std::string> argv;   ///< the program to run
    std::vector<std::string> notes;  ///< options that mean nothing here, each said once
};

/// What --nproc-per-node=gpu|cpu|auto stands for.
struct MachineCounts {
    unsigned cpus = 1, gpus = 0;
    static MachineCounts read(const Environment &env);
};

/// `args` without the program's own name. Every option may also come from the environment as PET_NAME; the
/// command line wins. invalid_argument: a sentence for the user.
Result<RunOptions> parse_run_options(std::span<const std::string> args, const Environment &env,
                                     const MachineCounts &machine);

/// The text of --help.
const char *run_usage() noexcept;

}  // namespace dlrover::agent
