// SPDX-License-Identifier: Apache-2.0
// In srun, as the user.
#include <unistd.h>

#include <cstdlib>

#include "base/units.h"
#include "spank_plugin/controller.h"
#include "spank_plugin/submit.h"
#include "spank_plugin/watch.h"

namespace dlrover::spank {
namespace {

const NeededOption step_options[] = {
    need_no_kill,
    {"wait", 'W', "0", "0", "Slurm may end the step some time after its first task; give --wait=0"},
    {"kill-on-bad-exit", 0, "0", "0", "the first task that fails ends the step; give --kill-on-bad-exit=0"},
};

std::string working_directory(const std::optional<SlurmOptions> &slurm) {
    if (slurm)
        if (auto given = slurm->given("chdir"); given && given->starts_with('/')) return *given;
    char path[max_path_bytes + 1];
    return ::getcwd(path, sizeof path) ? path : "";
}

/// All others are the group's. The agents start the helpers that these ask for before a daemon has told
/// them anything.
Options joining_options(const Options &given) {
    Options options;
    options.elastic = Elastic::on;
    options.join = given.join;
    options.ckpt_dir = given.ckpt_dir;
    options.redundancy = given.redundancy;
    options.pmix = given.pmix;
    return options;
}

}  // namespace

Status local_options_read(Module &module) {
    auto slurm = SlurmOptions::find();
    // Also where this step is inside another group's: its request must not reach ours.
    ::unsetenv(request_variable);
    if (conclude_options(module, Tool::srun, slurm) != Verdict::Kind::group) return {};
    for (const NeededOption &needed : step_options) need_option(slurm, needed);
    if (module.options.join) module.options = joining_options(module.options);
    module.options.pmix = served_pmix(module.options);
    std::string request = encode_request({module.options, working_directory(slurm)});
    if (request.size() > max_request_bytes)
        return Status(Code::invalid_argument, "the working directory's name is too long");
    if (::setenv(request_variable, request.c_str(), 1) != 0) return Status::from_errno("setenv");
    const char *job = std::getenv("SLURM_JOB_ID");  // for a new job srun itself waits
    if (auto id = parse_uint(job ? job : "", 1, UINT32_MAX))
        return wait_for_controller(static_cast<std::uint32_t>(*id));
    return {};
}

/// The step's real size is known only now; where it differs from what --nodes said, the nodes leave the step
/// alone. A group that can lose a node gets a watch.
Status local_step_created(spank_t handle, Module &module) {
    auto nodes = get_uint32(handle, S_JOB_NNODES);
    if (!nodes || !std::getenv(request_variable)) return {};
    auto size = fit_options(module.options, *nodes);
    if (!size) return std::move(size.take_status()).with_context("the step runs without protection");
    auto job = get_uint32(handle, S_JOB_ID), step = get_uint32(handle, S_JOB_STEPID);
    if (*nodes < 2 || !job || !step) return {};
    const char *run = std::getenv("SLURM_RESTART_COUNT");
    auto restarts = parse_uint(run ? run : "0", 0, UINT32_MAX);
    module.watched = {*job, *step, restarts ? static_cast<std::uint32_t>(*restarts) : 0};
    keep_exit_code();
    return start_watch(watch_program(module.args.agent), *module.watched, module.args.socket);
}

}  // namespace dlrover::spank
