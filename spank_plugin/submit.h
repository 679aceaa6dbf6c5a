// SPDX-License-Identifier: Apache-2.0
// What srun, sbatch and salloc do alike once all options are read.
#pragma once

#include "spank_plugin/module.h"
#include "spank_plugin/slurm_options.h"

namespace dlrover::spank {

/// Judges the options of this command; reports and ends the process where they are refused: installed as
/// `optional`, the module's return value is ignored, and the job would be queued. Forgets the calls seen so
/// far.
Verdict::Kind conclude_options(Module &module, Tool tool, const std::optional<SlurmOptions> &slurm);

/// One of Slurm's options that an elastic job needs.
struct NeededOption {
    const char *name;
    char letter;            ///< 0: set by name
    const char *value;      ///< null: a flag
    const char *read_back;  ///< what Slurm says when it is set
    const char *fallback;   ///< what happens otherwise, and what to do
};

/// Sets it unless somebody gave it; says so where it does not have the needed value afterwards.
void need_option(std::optional<SlurmOptions> &slurm, const NeededOption &needed);
extern const NeededOption need_no_kill;

}  // namespace dlrover::spank
