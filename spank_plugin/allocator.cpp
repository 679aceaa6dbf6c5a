// SPDX-License-Identifier: Apache-2.0
// In sbatch and salloc, as the user. The steps inherit the options through Slurm.
#include <dlfcn.h>

#include <cerrno>

#include "spank_plugin/submit.h"

namespace dlrover::spank {
namespace {

Tool this_tool() {
    return std::string_view(program_invocation_short_name) == "salloc" ? Tool::salloc : Tool::sbatch;
}

}  // namespace

Status allocator_options_read(Module &module) {
    auto slurm = SlurmOptions::find();
    if (conclude_options(module, this_tool(), slurm) == Verdict::Kind::group)
        need_option(slurm, need_no_kill);
    return {};
}

}  // namespace dlrover::spank
