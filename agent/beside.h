// SPDX-License-Identifier: Apache-2.0
// Programs that run beside the workers and outlive their generations: srun, for steps on nodes that the job
// was expanded by. They are children of the agent's guard, and end with it.
#pragma once

#include <functional>
#include <map>

#include "agent/loop.h"
#include "agent/spawn.h"
#include "base/unique_fd.h"
#include "local_types.h"

namespace dlrover::agent {

/// Thread: the loop's.
class Beside {
  public:
    using Ended = std::function<void(proto::local::StepEndedT)>;
    Beside(Loop &loop, InheritedSignals signals, Ended ended)
        : loop_(loop), signals_(signals), ended_(std::move(ended)) {}

    /// Its output is ours. `ended` comes once for each order.
    void start(const proto::local::StartStepT &order);

  private:
    struct Running {
        UniqueFd pidfd, exec_error;
        std::string name;
    };
    Status spawn_for(const proto::local::StartStepT &order, Running &out) const;
    void on_end(std::uint64_t order);

    Loop &loop_;
    InheritedSignals signals_;
    Ended ended_;
    std::map<std::uint64_t, Running> running_;
};

}  // namespace dlrover::agent
