// SPDX-License-Identifier: Apache-2.0
// A job that was requeued may begin while slurmctld is away: its batch script runs, and srun, which asks for
// the job first, gives up after MessageTimeout, with which the job fails.
#include "spank_plugin/controller.h"

#include <slurm/slurm.h>
#include <unistd.h>

#include <csignal>

#include <chrono>

#include "base/slurm_error.h"
#include "spank_plugin/spank_api.h"

namespace dlrover::spank {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes longest_wait(10);
constexpr unsigned pause_us = 500'000;

/// srun blocks those that end it, until it has a thread for them.
bool is_to_end() {
    sigset_t pending;
    if (::sigpending(&pending) != 0) return false;
    for (int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP})
        if (::sigismember(&pending, number) == 1) return true;
    return false;
}

/// Asks as srun will, a backup, too. Takes up to MessageTimeout where nobody answers.
bool is_away(std::uint32_t job_id) {
    job_info_msg_t *job = nullptr;
    if (::slurm_load_job(&job, job_id, SHOW_LOCAL) == SLURM_SUCCESS) {
        ::slurm_free_job_info_msg(job);
        return false;
    }
    Code code = code_of_slurm(::slurm_get_errno());
    return code == Code::unavailable || code == Code::timeout;
}

}  // namespace

Status wait_for_controller(std::uint32_t job_id) {
    if (!is_away(job_id)) return {};
    slurm_spank_log("dlrover: slurmctld does not answer: srun waits for it, for up to ten minutes");
    auto begun = Clock::now();
    do {
        if (is_to_end()) return Status(Code::unavailable, "srun was to end while it waited for slurmctld");
        ::usleep(pause_us);
        if (is_away(job_id)) continue;
        slurm_spank_log("dlrover: slurmctld answers: srun goes on");
        return {};
    } while (Clock::now() - begun < longest_wait);
    slurm_spank_log("dlrover: slurmctld has not answered for ten minutes: srun goes on without it");
    return {};
}

}  // namespace dlrover::spank
