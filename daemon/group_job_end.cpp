// SPDX-License-Identifier: Apache-2.0
// The end of the job, after the group's. Its batch script ends it; where the batch host is lost nobody does
// (with no-kill). Two nodes see to it, for one of them may be lost as well.
#include <algorithm>

#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

/// The script may begin another step within a while.
constexpr EventLoop::Time script_patience = std::chrono::minutes(1);
/// The group has gone on without the batch host: it may come back, with a script that ends by itself, or
/// Slurm may find out that it is dead. Later Slurm is told all the same.
constexpr EventLoop::Time host_patience = std::chrono::minutes(1);
constexpr EventLoop::Time first_pause = std::chrono::seconds(1), host_pause = std::chrono::seconds(5),
                          script_pause = std::chrono::seconds(15), longest_pause = std::chrono::minutes(10);

}  // namespace

bool Group::is_removed(NodeIndex node) const {
    return promise_ && std::ranges::find(promise_->removed, node) != promise_->removed.end();
}

/// Whether the group has gone on without its batch host.
bool Group::without_host() const {
    for (std::uint32_t i = 0; i < own_nodes(); ++i)
        if (registration().node_names[i] == registration().batch_host) return is_removed(NodeIndex(i));
    return false;
}

/// Who was taken out knows nothing of the end.
bool Group::watches_job() const {
    const std::string &host = registration().batch_host;
    if (!record_.ended || record_.evicted || own_step() || is_kept()) return false;
    if (host.empty() || host == services_.node) return false;
    if (record_.next_run != proto::NextRun::None) return false;  // Slurm ends this one itself
    return survivors_before(host) < 2;
}

local::OutcomeReplyT Group::outcome() const {
    local::OutcomeReplyT reply;
    if (record_.evicted) return reply;
    reply.outcome = local::Outcome::Running;
    // Slurm ends an srun whose job is to run again; the next run is another group.
    if (over() && record_.next_run != proto::NextRun::None) return reply;
    if (record_.ended) reply.outcome = local::Outcome::Over;
    reply.exit_code = record_.exit_code;
    for (std::uint32_t i = 0; i < own_nodes(); ++i) reply.lost += is_removed(NodeIndex(i));
    return reply;
}

void Group::watch_job() {
    ended_at_ = services_.loop.now();
    job_pause_ = without_host() ? first_pause : script_pause;
    job_timer_ =
        services_.loop.after(without_host() ? first_pause : script_patience, [this] { look_at_job(); });
}

void Group::look_at_job() {
    job_timer_.reset();
    if (!watches_job()) return;
    auto since = services_.loop.now() - ended_at_;
    bool anyhow = without_host() && since >= host_patience;
    // What its script had to do after this step nobody else does. A job that has gone on without the host, as
    // Slurm has refused to have it run again, does not begin its training once more.
    bool again = registration().options->requeue_without_host && record_.exit_code == 0 && !without_host();
    auto ended = since >= script_patience ? std::optional(step()) : std::nullopt;
    services_.slurm.complete_headless(
        job(), {registration().restart_count, record_.exit_code, ended, anyhow, again},
        [this, alive = alive_, anyhow](const Result<bool> &over) {
            if (!*alive || (over.ok() && *over)) return;
            job_timer_ = services_.loop.after(job_pause_, [this] { look_at_job(); });
            job_pause_ = std::min(job_pause_ * 2, without_host() && !anyhow ? host_pause : longest_pause);
        });
}

}  // namespace dlrover::daemon
