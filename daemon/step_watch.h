// SPDX-License-Identifier: Apache-2.0
// When srun has to be ended. It is not told of a node that is taken out of its job, and waits for that node's
// tasks for ever, also when all others have ended and Slurm has forgotten the step.
#pragma once

#include <chrono>

#include "daemon/slurm_client.h"

namespace dlrover::daemon {

class StepWatch {
  public:
    StepWatch(JobId job, StepId step) : job_(job), step_(step) {}

    /// One look at Slurm. True: the step has lost a node, and two looks in a row have not found it any more.
    /// A step that has lost none is srun's own affair: it may still be writing the output.
    bool look(SlurmCalls &calls);
    /// Until the next look. While all nodes are there it is one question to Slurm, after that two.
    std::chrono::seconds pause() const { return std::chrono::seconds(lost_ ? 5 : 10); }

  private:
    bool has_lost_node(SlurmCalls &calls) const;
    bool is_over(SlurmCalls &calls);

    JobId job_;
    StepId step_;
    std::vector<std::string> nodes_;  ///< as first seen; empty: not seen yet
    bool lost_ = false;
    unsigned not_found_ = 0;  ///< in a row
};

}  // namespace dlrover::daemon
