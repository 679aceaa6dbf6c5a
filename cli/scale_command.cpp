// SPDX-License-Identifier: Apache-2.0
#include "cli/scale_command.h"

#include <chrono>
#include <iostream>
#include <thread>

#include "base/count_of.h"
#include "cli/ask.h"
#include "cli/running_job.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using proto::local::GroupState;
using proto::local::GroupStatusT;
using proto::local::ScaleState;
using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::minutes(3);

Status order(const GroupStatusT &g, std::uint32_t nodes) {
    auto reply = ask_scale(g, nodes);
    if (!reply) return reply.take_status();
    if (reply->state == ScaleState::Taken) return {};
    if (reply->state == ScaleState::Unknown)
        return Status(Code::not_found,
                      "no node of job " + name_of(g) + " takes the word: see dlrover status");
    return Status(Code::invalid_argument, "job " + name_of(g) + ": " + printable(reply->text));
}

/// What it waits for is told whenever that changes.
Status await_size(const GroupStatusT &before, std::uint32_t nodes) {
    auto end = Clock::now() + patience;
    std::string told;
    while (true) {
        auto now = look_at(before);
        if (now.ok() && has_ended(**now))
            return Status(Code::unavailable, "job " + name_of(before) +
                                                 " has ended meanwhile: see dlrover events " +
                                                 std::to_string(before.job_id));
        if (now.ok() && (*now)->state == GroupState::Running && (*now)->world_nodes == nodes) {
            std::cout << "Job " << name_of(before) << " has " << count_of(nodes, "node") << " now, with "
                      << count_of((*now)->world_size, "rank") << "." << std::endl;
            return {};
        }
        if (now.ok() && !(*now)->wanted_text.empty() && (*now)->wanted_text != told) {
            told = (*now)->wanted_text;
            std::cout << "Not yet: " << printable(told) << "." << std::endl;
        }
        if (Clock::now() >= end)
            return Status(Code::timeout, "job " + name_of(before) + " has not " + count_of(nodes, "node") +
                                             " yet" + (told.empty() ? "" : " (" + printable(told) + ")") +
                                             "; they stay wanted: see dlrover status");
        std::this_thread::sleep_for(look_again);
    }
}

}  // namespace

Status scale_job(const proto::local::StatusReplyT &reply, std::uint32_t nodes, bool wait) {
    auto group = live_group(reply, "");
    if (!group) return group.take_status();
    DLROVER_TRY(order(**group, nodes));
    std::cout << "Job " << name_of(**group) << " is to have " << count_of(nodes, "node") << "." << std::endl;
    return wait ? await_size(**group, nodes) : Status();
}

}  // namespace dlrover::cli
