// SPDX-License-Identifier: Apache-2.0
// srun's exit code. It is that of its worst task, also of one that the group had no use of: a node that it
// had lost, or a spare, back again, has its tasks killed by Slurm. Where the group is over its own exit code
// counts.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "spank_plugin/module.h"

namespace dlrover::spank {
namespace {

using proto::local::Outcome;

/// As exit() was called; the module's exit hook comes later, from a function that was registered earlier.
int srun_code = 0;
int group_code = 0;

extern "C" void note_exit_code(int status, void *) {
    srun_code = status & 0xff;
}

extern "C" void end_with_group_code() {
    std::fflush(nullptr);
    ::_exit(group_code);
}

/// Registered now, so that it comes when all of Slurm's modules have had their exit; Slurm unloads them.
bool end_after_all_others() {
    Dl_info here{};
    if (::dladdr(reinterpret_cast<void *>(&end_with_group_code), &here) == 0) return false;
    return ::dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD) && std::atexit(end_with_group_code) == 0;
}

/// The daemon's last word may come just after srun's.
Result<proto::local::OutcomeReplyT> find_outcome(const Module &module) {
    constexpr useconds_t ask_again_us = 200000;
    auto begun = std::chrono::steady_clock::now();
    auto deadline = begun + module.args.timeout;
    while (true) {
        auto spent =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun);
        auto reply =
            proto::ask_outcome(module.args.socket, *module.watched, true, module.args.timeout * 2 - spent);
        bool may_end = reply.ok() && reply->outcome == Outcome::Running && reply->lost > 0;
        if (!may_end || std::chrono::steady_clock::now() >= deadline) return reply;
        ::usleep(ask_again_us);
    }
}

}  // namespace

void keep_exit_code() noexcept {
#ifdef __GLIBC__
    ::on_exit(note_exit_code, nullptr);
#endif
}

/// No daemon: srun runs on another machine, or it will not say.
Status local_ends(const Module &module) {
    if (!module.watched || srun_code == 0) return {};
    auto reply = find_outcome(module);
    if (!reply || reply->outcome != Outcome::Over) return {};
    group_code = reply->exit_code & 0xff;
    if (group_code == srun_code) return {};
    if (!end_after_all_others()) return {};
    slurm_spank_log(
        "dlrover: srun ends with exit code %d, as the group of step %u.%u: tasks that were killed on nodes "
        "that it had lost, or spares, do not count",
        group_code, module.watched->job_id, module.watched->step_id);
    return {};
}

}  // namespace dlrover::spank
