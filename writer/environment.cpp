// SPDX-License-Identifier: Apache-2.0
#include "writer/environment.h"

#include <cstdlib>

#include "base/units.h"
#include "proto/local_codec.h"

namespace dlrover::writer {
namespace {

std::string text_of(const char *name) {
    const char *value = std::getenv(name);
    return value != nullptr ? value : "";
}

Result<std::uint32_t> number_of(const char *name) {
    std::string text = text_of(name);
    if (text.empty()) return Status(Code::not_found, std::string(name) + " is not set");
    auto number = parse_uint(text, 0, UINT32_MAX);
    if (!number) return std::move(number.take_status()).with_context(name);
    return static_cast<std::uint32_t>(*number);
}

/// Without Slurm a job's number comes again one day; the socket's folder has a name of its own.
RunId run_of(const Environment &e, std::uint32_t restarts) {
    std::string text =
        std::to_string(e.job.value()) + "." + std::to_string(e.step.value()) + "." + std::to_string(restarts);
    if (text_of("SLURM_JOB_ID").empty()) text += " " + e.socket;
    return {std::move(text), restarts};
}

}  // namespace

Result<Environment> read_environment() {
    Environment e;
    auto job = number_of("DLROVER_JOB_ID"), step = number_of("DLROVER_STEP_ID");
    if (!job) return job.take_status();
    if (!step) return step.take_status();
    auto restarts = number_of("SLURM_RESTART_COUNT");
    if (!restarts.ok() && restarts.status().code() != Code::not_found) return restarts.take_status();
    e.job = JobId(*job);
    e.step = StepId(*step);
    e.socket = text_of("DLROVER_SOCKET");
    if (e.socket.empty()) e.socket = proto::default_socket_path;
    e.run = run_of(e, restarts.ok() ? *restarts : 0);
    return e;
}

}  // namespace dlrover::writer
