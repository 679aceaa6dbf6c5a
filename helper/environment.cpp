// SPDX-License-Identifier: Apache-2.0
#include "helper/environment.h"

#include <cstdlib>

#include "base/units.h"
#include "proto/local_codec.h"

namespace dlrover::helper {

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value != nullptr ? value : "";
}

Result<std::uint32_t> number_variable(const char *name) {
    std::string text = variable(name);
    if (text.empty()) return Status(Code::not_found, std::string(name) + " is not set");
    auto number = parse_uint(text, 0, UINT32_MAX);
    if (!number) return std::move(number.take_status()).with_context(name);
    return static_cast<std::uint32_t>(*number);
}

Result<Environment> read_environment() {
    Environment e;
    auto job = number_variable("DLROVER_JOB_ID"), step = number_variable("DLROVER_STEP_ID");
    if (!job) return job.take_status();
    if (!step) return step.take_status();
    e.job = JobId(*job);
    e.step = StepId(*step);
    e.socket = variable("DLROVER_SOCKET");
    if (e.socket.empty()) e.socket = proto::default_socket_path;
    return e;
}

}  // namespace dlrover::helper
