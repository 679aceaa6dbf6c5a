// SPDX-License-Identifier: Apache-2.0
#include "writer/environment.h"

namespace dlrover::writer {
namespace {

/// Without Slurm a job's number comes again one day; the socket's folder has a name of its own.
RunId run_of(const Environment &e, std::uint32_t restarts) {
    std::string text =
        std::to_string(e.job.value()) + "." + std::to_string(e.step.value()) + "." + std::to_string(restarts);
    if (helper::variable("SLURM_JOB_ID").empty()) text += " " + e.socket;
    return {std::move(text), restarts};
}

}  // namespace

Result<Environment> read_environment() {
    auto common = helper::read_environment();
    if (!common) return common.take_status();
    auto restarts = helper::number_variable("SLURM_RESTART_COUNT");
    if (!restarts.ok() && restarts.status().code() != Code::not_found) return restarts.take_status();
    Environment e{*common, {}};
    e.run = run_of(e, restarts.ok() ? *restarts : 0);
    return e;
}

}  // namespace dlrover::writer
