// SPDX-License-Identifier: Apache-2.0
// The environment of a worker: torchrun's variables, Slurm's rewritten for the generation, ours.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "local_types.h"

namespace dlrover::agent {

using Environment = std::map<std::string, std::string>;

Environment environment_from(const char *const *envp);
/// The value, or "" where the variable is not set.
const std::string &value_of(const Environment &env, const std::string &name);
/// "NAME=value" for execve.
std::vector<std::string> to_strings(const Environment &env);

/// What does not change between generations.
struct LaunchSpec {
    JobId job;
    StepId step;
    std::string socket;
    std::string role = "default";
    std::string lineage;
    bool omp_default =
        false;  ///< OMP_NUM_THREADS=1 unless the user has set it (dlrover-run, several workers)
};

/// `base` is the agent's own environment. What the module left for the agent alone is taken out; where `base`
/// belongs to a Slurm job its SLURM_* are rewritten and the originals kept as DLROVER_SLURM_*.
Environment worker_environment(const Environment &base, const LaunchSpec &spec,
                               const proto::local::WorldPublishedT &world, LocalRank local_rank,
                               const std::string &error_file);

/// `base` as the user's program would have it without us: for running unprotected. Where it has no RANK it
/// gets that, and what goes with it, from Slurm, so that the step's tasks do not all take themselves for the
/// only one.
Environment unprotected_environment(const Environment &base);

}  // namespace dlrover::agent
