// SPDX-License-Identifier: Apache-2.0
// A group that has ended because its job starts once more: its sealed objects stay for that run.
#include <algorithm>

#include "base/units.h"
#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

/// Between two questions about a job that waits for its next run.
constexpr EventLoop::Time ask_seldom = std::chrono::minutes(1);
/// A requeued job is tied to the nodes of its last run for a few seconds.
constexpr EventLoop::Time tie_patience = std::chrono::minutes(1);
/// A job that was told to end and still runs does not come back.
constexpr EventLoop::Time end_patience = std::chrono::minutes(2);

}  // namespace

/// False: nothing is worth it, or may be kept.
bool Group::keep_memory() {
    auto limit = services_.settings.memory.keep_after_requeue;
    // A joined node is no part of that run.
    if (own_step() || !services_.requeues || record_.next_run == proto::NextRun::None ||
        limit == limit.zero())
        return false;
    copies_.reset();
    tables_.reset();
    pages_.drop();
    arena_.keep_sealed();
    auto kept = arena_.holding();
    if (arena_.seals().empty() && arena_.parities().empty()) return false;
    record_.kept_until_us = (services_.loop.now() + limit).count();
    log::info({job(), step()},
              "checkpoints stay in memory for the job's next run: " + format_size_bytes(kept.bytes) +
                  ", for " + format_duration(limit) + " at most");
    return true;
}

bool Group::asks_for_next_run() const {
    if (!is_kept()) return false;
    bool doubtful = record_.next_run == proto::NextRun::Perhaps;
    return doubtful || services_.loop.now() - job_asked_ >= ask_seldom;
}

void Group::on_job(const Result<SlurmJob> &answer) {
    if (!is_kept()) return;
    job_asked_ = services_.loop.now();
    if (!answer.ok()) {
        if (answer.status().code() == Code::not_found) drop_kept("Slurm does not know the job any more");
        return;
    }
    std::uint32_t mine = registration().restart_count;
    const auto &nodes = answer->nodes;
    bool here = std::find(nodes.begin(), nodes.end(), services_.node) != nodes.end();
    if (!answer->running && !answer->waiting) return drop_kept("the job has ended");
    if (answer->restart_count > mine + 1) return drop_kept("the job has run without it");
    if (answer->running && answer->restart_count > mine && !here)
        return drop_kept("the job runs on other nodes now");
    // Whose daemon has tied it to nodes may be gone.
    if (answer->is_tied && record_.requeued && idle_time() > tie_patience)
        services_.slurm.untie_job(job(), [](const Status &) {});
    bool still_runs = answer->running && answer->restart_count == mine;
    if (still_runs && idle_time() > end_patience) return drop_kept("the job was not requeued");
    if (still_runs || record_.next_run == proto::NextRun::Comes) return;
    record_.next_run = proto::NextRun::Comes;
    save();
}

void Group::drop_kept(const std::string &why) {
    if (!is_kept()) return;
    log::info({job(), step()}, "checkpoints that were kept for the job's next run are given up: " + why);
    record_.kept_until_us = 0;
    drop_memory();
    save();
}

/// Ranks that share objects have to stay together: on nodes of unlike sizes nobody knows whether they do.
bool Group::is_kept_for(const proto::StepRegistrationT &next, const std::string &lineage) const {
    const auto &mine = registration();
    std::uint16_t each = mine.tasks_per_node.front();
    auto alike = [each](const proto::StepRegistrationT &run) {
        return std::ranges::count(run.tasks_per_node, each) ==
               static_cast<std::ptrdiff_t>(run.tasks_per_node.size());
    };
    return is_kept() && alike(mine) && alike(next) && next.job_id == mine.job_id &&
           next.step_id >= mine.step_id && next.uid == mine.uid &&
           next.restart_count == mine.restart_count + 1 && lineage == record_.lineage;
}

void Group::adopt(Group &before) {
    arena_.adopt(before.arena_);
    before.record_.kept_until_us = 0;
    if (before.key_ != key_) before.drop_all();
    for (const char *kind : {"promise", "world"}) services_.keeper.drop(record_name(kind, key_));
    auto kept = arena_.holding();
    add_event(proto::EventKind::RestorePlanned, "This node has kept checkpoints since the job's last run: " +
                                                    format_size_bytes(kept.bytes) + ".");
}

}  // namespace dlrover::daemon
