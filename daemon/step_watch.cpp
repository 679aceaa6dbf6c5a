// SPDX-License-Identifier: Apache-2.0
#include "daemon/step_watch.h"

#include <algorithm>

namespace dlrover::daemon {
namespace {

/// For the agents' output, which srun may still be writing.
constexpr std::chrono::seconds output_patience{30};
/// While the daemon says that the group runs on all of its nodes: each srun of a cluster has such a watch.
constexpr std::chrono::seconds asking_interval{60};

}  // namespace

bool StepWatch::look(SlurmCalls &calls, Time now) {
    bool is_whole = look_at_group(now);
    if (lost_ && over_since_ && now - *over_since_ >= output_patience) return true;
    if (nodes_.empty()) {
        if (auto step = calls.load_step(job_, step_)) nodes_ = std::move(step->nodes);
        return false;
    }
    if (!lost_ && is_whole && asked_at_ && now - *asked_at_ < asking_interval) return false;
    asked_at_ = now;
    if (!lost_) lost_ = has_lost_node(calls);
    return lost_ && is_over(calls);
}

/// Others are asked where they may know more: a node of the step is lost, or this one is out of its group.
bool StepWatch::look_at_group(Time now) {
    using proto::local::Outcome;
    auto group = ask_group_(lost_ || was_part_);
    if (!group) return false;
    was_part_ = was_part_ || group->outcome != Outcome::Unknown;
    lost_ = lost_ || group->lost > 0;
    if (group->outcome == Outcome::Over && !over_since_) over_since_ = now;
    return group->outcome == Outcome::Running && group->lost == 0;
}

bool StepWatch::has_lost_node(SlurmCalls &calls) const {
    auto job = calls.load_job(job_);
    if (!job || !job->running) return false;
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const std::string &node) {
        return std::find(job->nodes.begin(), job->nodes.end(), node) == job->nodes.end();
    });
}

bool StepWatch::is_over(SlurmCalls &calls) {
    auto step = calls.load_step(job_, step_);
    // A Slurm that does not answer says nothing about the step.
    bool gone = !step && step.status().code() == Code::not_found;
    not_found_ = gone ? not_found_ + 1 : 0;
    return not_found_ >= 2;
}

}  // namespace dlrover::daemon
