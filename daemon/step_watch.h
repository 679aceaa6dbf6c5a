// SPDX-License-Identifier: Apache-2.0
// When srun has to be ended. It is not told of a node that is taken out of its job, and waits for that node's
// tasks for ever, also when all others have ended and Slurm has forgotten the step.
#pragma once

#include <chrono>
#include <functional>

#include "daemon/slurm_client.h"
#include "proto/local_codec.h"

namespace dlrover::daemon {

class StepWatch {
  public:
    /// How the step's group has fared. relay: other nodes may be asked. Not ok: no daemon says anything.
    using AskGroup = std::function<Result<proto::local::OutcomeReplyT>(bool relay)>;
    using Time = std::chrono::steady_clock::time_point;

    StepWatch(JobId job, StepId step, AskGroup ask_group)
        : job_(job), step_(step), ask_group_(std::move(ask_group)) {}

    /// One look. True: the step has lost a node, and is over: two looks at Slurm in a row have not found it
    /// any more, or its group has been over for half a minute. Slurm may keep a step for good whose end it
    /// missed. A step that has lost none is srun's own affair: it may still be writing the output.
    bool look(SlurmCalls &calls, Time now);
    /// Until the next look. While all nodes are there it is one question to Slurm, and one a minute while the
    /// daemon says so, too; after that two.
    std::chrono::seconds pause() const { return std::chrono::seconds(lost_ ? 5 : 10); }

  private:
    /// Whether a daemon says that it runs on all of its nodes.
    bool look_at_group(Time now);
    bool has_lost_node(SlurmCalls &calls) const;
    bool is_over(SlurmCalls &calls);

    JobId job_;
    StepId step_;
    AskGroup ask_group_;
    std::vector<std::string> nodes_;  ///< as first seen; empty: not seen yet
    bool was_part_ = false;           ///< this node has been one of the group
    bool lost_ = false;
    std::optional<Time> asked_at_;    ///< Slurm, whether the nodes are there
    std::optional<Time> over_since_;  ///< the group, as its daemons say
    unsigned not_found_ = 0;          ///< in a row
};

}  // namespace dlrover::daemon
