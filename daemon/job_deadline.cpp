// SPDX-License-Identifier: Apache-2.0
#include "daemon/job_deadline.h"

#include <algorithm>
#include <utility>

#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time shortest = std::chrono::seconds(15), longest = std::chrono::minutes(10);
constexpr EventLoop::Time no_answer = std::chrono::minutes(1);

}  // namespace

JobDeadline::JobDeadline(EventLoop &loop, SlurmClient &slurm, JobId job, Tell tell)
    : loop_(loop), slurm_(slurm), job_(job), tell_(std::move(tell)) {
    ask();
}

JobDeadline::~JobDeadline() {
    *alive_ = false;
}

void JobDeadline::ask() {
    timer_.reset();
    slurm_.load_job(job_, [this, alive = alive_](const Result<SlurmJob> &job) {
        if (*alive) on_job(job);
    });
}

void JobDeadline::on_job(const Result<SlurmJob> &job) {
    auto wait = no_answer;
    if (job) {
        std::optional<EventLoop::Time> end;
        if (job->end_time > 0)
            end = loop_.now() + EventLoop::Time(job->end_time * 1'000'000 - wall_clock_us());
        wait = end ? std::clamp((*end - loop_.now()) / 4, shortest, longest) : longest;
        tell_(end);
    }
    timer_ = loop_.after(wait, [this] { ask(); });
}

}  // namespace dlrover::daemon
