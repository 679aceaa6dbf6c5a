// SPDX-License-Identifier: Apache-2.0
// The module in one process (srun, sbatch, salloc or slurmstepd). Each context has a file of its own;
// entry.cpp only dispatches. No threads, no thread_local, no global object with a destructor.
#pragma once

#include <array>
#include <optional>

#include "base/unique_fd.h"
#include "proto/outcome.h"
#include "spank_plugin/module_args.h"
#include "spank_plugin/options.h"
#include "spank_plugin/spank_api.h"
#include "spank_plugin/submission.h"

namespace dlrover::spank {

/// srun sets it, in its own environment, for the nodes; the module takes it out again there. "SLURM_", so
/// that --export= lets it pass.
inline constexpr const char *request_variable = "SLURM_DLROVER_REQUEST";

/// A step that the module made a group of.
struct Group {
    std::uint32_t job_id = 0;
    std::uint32_t step_id = 0;
    std::uint32_t tasks_here = 0;
    bool optional = false;
    bool registered = false;
    bool joins = false;  ///< the step is a node of another job's group
    Pmix pmix = Pmix::no;
    std::string node, ckpt_dir, redundancy;
    UniqueFd agent;  ///< opened before anybody could enter a container
};

struct Module {
    ModuleArgs args;
    // ---- srun, sbatch, salloc ----
    Options options;
    std::array<unsigned, option_count>
        seen{};  ///< calls of the option's callback since the last init_post_opt
    std::array<bool, option_count> from_default{};  ///< set by the user's environment default
    unsigned components = 0;                        ///< calls of init_post_opt
    std::optional<proto::StepRun> watched;          ///< srun: the step is a group of several nodes
    // ---- slurmstepd ----
    std::optional<Group> group;
};

/// Null outside init ... exit.
Module *current_module() noexcept;

// Every function may throw; entry.cpp catches. A failure's sentence is logged by entry.cpp.
Status register_options(spank_t handle, bool with_defaults);

// local.cpp: srun. The first ends the process where the options are refused.
Status local_options_read(Module &module);
Status local_step_created(spank_t handle, Module &module);
// exit_code.cpp: srun's, where nodes were lost
void keep_exit_code() noexcept;
Status local_ends(const Module &module);
// allocator.cpp: sbatch, salloc
Status allocator_options_read(Module &module);

// remote.cpp: slurmstepd
Status remote_step_starts(spank_t handle, Module &module);
Status remote_task_starts(spank_t handle, Module &module);
Status remote_step_ended(Module &module);

}  // namespace dlrover::spank
