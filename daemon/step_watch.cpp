// SPDX-License-Identifier: Apache-2.0
#include "daemon/step_watch.h"

#include <algorithm>

namespace dlrover::daemon {

bool StepWatch::look(SlurmCalls &calls) {
    if (nodes_.empty()) {
        if (auto step = calls.load_step(job_, step_)) nodes_ = std::move(step->nodes);
        return false;
    }
    if (!lost_) lost_ = has_lost_node(calls);
    return lost_ && is_over(calls);
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
