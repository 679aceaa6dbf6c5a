// SPDX-License-Identifier: Apache-2.0
#include "lib/next_generation.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>

#include "proto/local_client.h"

namespace dlrover::lib {
namespace {

using namespace std::chrono_literals;
constexpr auto first_pause = 10ms, longest_pause = 250ms;
/// One question; then it is asked again, on a new connection: the daemon may hang.
constexpr auto answer_limit = 60s;

/// A daemon that has just come back may not have its groups yet; one that does not know the group after so
/// long, as a system that has no descriptors, will not do so either.
constexpr auto patience = 2min;

bool may_pass(Code code) {
    return code == Code::unavailable || code == Code::timeout;
}
bool may_pass_soon(Code code) {
    return code == Code::system || code == Code::not_found;
}

Result<std::vector<std::string>> ask(const Environment &e) {
    auto client = proto::LocalClient::connect(e.socket, proto::local::Role::Worker, e.timeout);
    if (!client) return client.take_status();
    proto::local::LeaveGenerationT leave;
    leave.job_id = e.job.value();
    leave.step_id = e.step.value();
    leave.generation = std::make_unique<proto::Generation>(e.generation.term.value(), e.generation.number);
    leave.local_rank = static_cast<std::uint16_t>(e.local_rank);
    auto reply = client->call(std::move(leave), answer_limit);
    if (!reply) return reply.take_status();
    auto *next = reply->message.body.AsNextWorld();
    if (next == nullptr) return Status(Code::corrupt, "the daemon did not say what the next generation is");
    return std::move(next->variables);
}

}  // namespace

Result<std::vector<std::string>> await_next_generation(const Environment &environment) {
    auto until = std::chrono::steady_clock::now() + patience;
    for (auto pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
        auto variables = ask(environment);
        Code code = variables.status().code();
        auto now = std::chrono::steady_clock::now();
        if (variables.ok() || !(may_pass(code) || (may_pass_soon(code) && now < until))) return variables;
        if (may_pass(code)) until = now + patience;
        ::poll(nullptr, 0, static_cast<int>(pause.count()));
    }
}

Status set_variables(const std::vector<std::string> &variables) {
    for (const std::string &variable : variables) {
        auto equals = variable.find('=');
        if (equals == 0 || variable.empty()) continue;
        int failed = equals == std::string::npos
                         ? ::unsetenv(variable.c_str())
                         : ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
        if (failed != 0) return Status::from_errno("setenv");
    }
    return {};
}

}  // namespace dlrover::lib
