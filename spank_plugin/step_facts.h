// SPDX-License-Identifier: Apache-2.0
// What a node knows of a step, made into its registration. Pure.
#pragma once

#include <string>
#include <vector>

#include "common_types.h"
#include "spank_plugin/options.h"

namespace dlrover::spank {

/// Numbers are Slurm's own word; the texts come out of the step's environment, which is the user's.
struct StepFacts {
    std::uint32_t job_id = 0;
    std::uint32_t step_id = 0;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint32_t nodes = 0;
    std::uint32_t node_index = 0;
    std::uint32_t tasks_here = 0;
    std::uint32_t total_tasks = 0;
    std::uint32_t restart_count = 0;
    std::uint32_t array_job_id = 0;
    std::uint32_t array_task_id = 0;
    std::uint32_t stepd_pid = 0;
    std::vector<std::string> argv;
    std::string cluster;
    std::string step_nodes;      ///< compact list
    std::string job_nodes;       ///< compact list; its first is the batch host
    std::string tasks_per_node;  ///< "2(x4)"
};

inline constexpr std::uint32_t first_special_step =
    0xfffffff0;  ///< batch, extern, interactive, pending steps
inline constexpr std::size_t max_argv_bytes = 1U << 20;

/// A step of a user's srun, not batch, extern or interactive.
inline bool is_ordinary_step(std::uint32_t step_id) {
    return step_id < first_special_step;
}

/// invalid_argument where the texts contradict Slurm's numbers.
Result<proto::StepRegistrationT> make_registration(const StepFacts &facts, const StepRequest &request,
                                                   const GroupSize &size);

}  // namespace dlrover::spank
