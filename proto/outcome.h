// SPDX-License-Identifier: Apache-2.0
// How a step's group has fared, as the daemon of this node says; for programs beside srun.
#pragma once

#include <string>

#include "proto/local_client.h"

namespace dlrover::proto {

struct StepRun {
    std::uint32_t job_id = 0, step_id = 0;
    std::uint32_t restart_count = 0;  ///< of the job
};

/// relay: other nodes may be asked where this one does not know; it takes up to 3 s then.
Result<local::OutcomeReplyT> ask_outcome(const std::string &socket, const StepRun &step, bool relay,
                                         LocalClient::Timeout timeout);

/// A group that is over, and had lost nodes: srun does not tell that by itself.
bool ended_without_nodes(const local::OutcomeReplyT &reply);

}  // namespace dlrover::proto
