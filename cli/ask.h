// SPDX-License-Identifier: Apache-2.0
// Questions to the node's daemon, with words for a person when there is no answer.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "proto/local_codec.h"

namespace dlrover::cli {

/// "1234" or "1234.0"; without a step: all elastic steps of the job.
struct JobStep {
    std::uint32_t job = 0;
    std::optional<std::uint32_t> step;
};
Result<JobStep> parse_job_step(const std::string &text);

/// $DLROVER_SOCKET or the default.
std::string socket_path();

/// The groups of `job` (job 0: all of the caller; root: all), in order of job and step.
Result<proto::local::StatusReplyT> ask_status(const JobStep &job);
Result<proto::local::EventsReplyT> ask_events(const JobStep &job);
/// step: the group, as its status said, is to go on from it.
Result<proto::local::RollbackReplyT> ask_rollback(const proto::local::GroupStatusT &group,
                                                  std::uint64_t step);
/// nodes: so many are wanted in the group's world.
Result<proto::local::ScaleReplyT> ask_scale(const proto::local::GroupStatusT &group, std::uint32_t nodes);
/// What the site and this node have.
Result<proto::local::NodeCheckReplyT> ask_node_check();

}  // namespace dlrover::cli
