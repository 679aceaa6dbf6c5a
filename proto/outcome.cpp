// SPDX-License-Identifier: Apache-2.0
#include "proto/outcome.h"

#include <algorithm>
#include <chrono>

namespace dlrover::proto {

Result<local::OutcomeReplyT> ask_outcome(const std::string &socket, const StepRun &step, bool relay,
                                         LocalClient::Timeout timeout) {
    auto begun = std::chrono::steady_clock::now();
    auto client = LocalClient::connect(socket, local::Role::Cli, timeout);
    if (!client) return client.take_status();
    local::OutcomeRequestT request;
    request.job_id = step.job_id;
    request.step_id = step.step_id;
    request.restart_count = step.restart_count;
    request.relay = relay;
    auto spent = std::chrono::duration_cast<LocalClient::Timeout>(std::chrono::steady_clock::now() - begun);
    auto answer = client->call(std::move(request), std::max(timeout - spent, LocalClient::Timeout(1)));
    if (!answer) return answer.take_status();
    auto *reply = answer->message.body.AsOutcomeReply();
    if (!reply) return Status(Code::corrupt, "the daemon's answer is not an outcome");
    return std::move(*reply);
}

bool ended_without_nodes(const local::OutcomeReplyT &reply) {
    return reply.outcome == local::Outcome::Over && reply.lost > 0;
}

}  // namespace dlrover::proto
