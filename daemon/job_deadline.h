// SPDX-License-Identifier: Apache-2.0
// When Slurm ends a job: asked now and then, since somebody may give it more time, or less.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/ids.h"
#include "common/event_loop.h"
#include "daemon/slurm.h"

namespace dlrover::daemon {

/// Thread: the event loop's. Asks as long as it lives, the more often the nearer the end is: 15 s to 10 min
/// apart.
class JobDeadline {
  public:
    /// The time of the loop's clock; none: Slurm does not say. Each time that Slurm has answered, never from
    /// inside a call.
    using Tell = std::function<void(std::optional<EventLoop::Time> end)>;

    JobDeadline(EventLoop &loop, SlurmClient &slurm, JobId job, Tell tell);
    ~JobDeadline();
    JobDeadline(const JobDeadline &) = delete;
    JobDeadline &operator=(const JobDeadline &) = delete;

  private:
    void ask();
    void on_job(const Result<SlurmJob> &job);

    EventLoop &loop_;
    SlurmClient &slurm_;
    JobId job_;
    Tell tell_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle timer_;
};

}  // namespace dlrover::daemon
