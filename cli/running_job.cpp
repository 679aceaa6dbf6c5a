// SPDX-License-Identifier: Apache-2.0
#include "cli/running_job.h"

#include <vector>

#include "cli/ask.h"

namespace dlrover::cli {

using proto::local::GroupState;
using proto::local::GroupStatusT;

std::string name_of(const GroupStatusT &group) {
    return std::to_string(group.job_id) + "." + std::to_string(group.step_id);
}

bool has_ended(const GroupStatusT &group) {
    return group.state == GroupState::Finished || group.state == GroupState::Failed;
}

Result<const GroupStatusT *> live_group(const proto::local::StatusReplyT &reply, const std::string &hint) {
    std::vector<const GroupStatusT *> live;
    for (const auto &g : reply.groups)
        if (!has_ended(*g)) live.push_back(g.get());
    if (live.empty())
        return Status(Code::invalid_argument, "job " + name_of(*reply.groups.back()) + " has ended" + hint);
    if (live.size() > 1)
        return Status(Code::invalid_argument,
                      "job " + std::to_string(live.front()->job_id) + " has " + std::to_string(live.size()) +
                          " elastic steps: name one, for example " + name_of(*live.front()));
    return live.front();
}

Result<std::unique_ptr<GroupStatusT>> look_at(const GroupStatusT &group) {
    auto reply = ask_status({group.job_id, group.step_id});
    if (!reply) return reply.take_status();
    if (reply->groups.empty()) return Status(Code::not_found, "job " + name_of(group) + " is gone");
    return std::move(reply->groups.front());
}

}  // namespace dlrover::cli
