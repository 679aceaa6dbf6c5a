// SPDX-License-Identifier: Apache-2.0
// What people ask: status and events. A user sees his own groups; root sees all.
#include "daemon/daemon.h"

namespace dlrover::daemon {

void Daemon::on_query(const Client &from, local::MessageT message) {
    auto &body = message.body;
    if (auto *status = body.AsStatusRequest())
        return port_->answer(from.id, message.id, status_for(from.uid, status->job_id));
    if (auto *events = body.AsEventsRequest())
        return port_->answer(from.id, message.id, events_for(from.uid, events->job_id, events->step_id));
    port_->fail(from.id, message.id, local::Refusal::BadMessage, "this role has no such message");
}

std::vector<const Group *> Daemon::visible(std::uint32_t uid, std::uint32_t job_id) const {
    std::vector<const Group *> out;
    for (const auto &[key, group] : groups_)
        if ((uid == 0 || group->uid() == uid) && (job_id == 0 || key.first.value() == job_id))
            out.push_back(group.get());
    return out;
}

local::StatusReplyT Daemon::status_for(std::uint32_t uid, std::uint32_t job_id) const {
    local::StatusReplyT reply;
    for (const Group *group : visible(uid, job_id)) reply.groups.push_back(group->status());
    return reply;
}

local::EventsReplyT Daemon::events_for(std::uint32_t uid, std::uint32_t job_id, std::uint32_t step_id) const {
    constexpr std::uint32_t all_steps = ~std::uint32_t{0};
    local::EventsReplyT reply;
    for (const Group *group : visible(uid, job_id))
        if (step_id == all_steps || group->step().value() == step_id) reply.groups.push_back(group->events());
    return reply;
}

}  // namespace dlrover::daemon
