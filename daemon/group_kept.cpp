// SPDX-License-Identifier: Apache-2.0
// A group that has ended because its job starts once more: its sealed objects stay for that run.
#include <algorithm>

#include "base/units.h"
#include "common/log.h"
#include "daemon/group.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

/// Between two questions about a job that waits for its next run.
constexpr EventLoop::Time ask_seldom = std::chrono::minutes(1);
/// A requeued job is tied to the nodes of its last run for a few seconds.
constexpr EventLoop::Time tie_patience = std::chrono::minutes(1);
/// By then the daemon that had the job requeued has seen to its next run, if it lives; later it is no more
/// ours.
constexpr EventLoop::Time hasten_patience = std::chrono::seconds(10), hasten_limit = std::chrono::minutes(5);
/// So many of the run's nodes, the first ones, see to the next run: some may be those that were lost.
constexpr std::uint32_t next_run_watchers = 4;
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
    if (answer->waiting && answer->restart_count == mine + 1) see_to_next_run(*answer);
    bool still_runs = answer->running && answer->restart_count == mine;
    if (still_runs && idle_time() > end_patience) return drop_kept("the job was not requeued");
    if (still_runs || record_.next_run == proto::NextRun::Comes) return;
    record_.next_run = proto::NextRun::Comes;
    save();
}

bool Group::watches_next_run() const {
    return !own_step() && survivors_before(services_.node) < next_run_watchers;
}

/// Later somebody may have put the job off. By the clock, since the daemon may have been started again.
bool Group::may_hasten() const {
    std::chrono::microseconds since(wall_clock_us() - record_.requeued_us);
    bool recent = since.count() >= 0 && since < hasten_limit && idle_time() < hasten_limit;
    return record_.requeued && recent && (record_.asked_requeue || watches_next_run());
}

/// What the daemon before had still to do.
void Group::resume_requeue() {
    if (may_hasten()) services_.slurm.hasten_job(job(), next_run(), [](const Status &) {});
}

/// The daemon that had it requeued may have died with what it had still to do. A user's own choice of nodes
/// stays, and of the time, too, after a while.
void Group::see_to_next_run(const SlurmJob &waiting) {
    auto done = [](const Status &) {};
    std::uint32_t run = registration().restart_count + 1;
    if (!watches_next_run()) return;
    if (waiting.is_held_off && may_hasten() && idle_time() > hasten_patience)
        return services_.slurm.hasten_job(job(), next_run(), done);
    if (idle_time() <= tie_patience) return;
    bool is_tied = waiting.is_tied && record_.requeued;
    if (is_tied || waiting.has_excluded) services_.slurm.free_job(job(), run, is_tied, done);
}

bool Group::is_excluded_from_next_run(NodeIndex node) const {
    return std::ranges::find(record_.excluded, node_name(node)) != record_.excluded.end();
}

NextRunOrder Group::next_run() const {
    NextRunOrder order;
    order.restart_count = registration().restart_count + 1;
    order.excluded = record_.excluded;
    for (std::uint32_t i = 0; i < own_nodes(); ++i) {
        if (is_excluded_from_next_run(NodeIndex(i))) continue;
        (is_removed(NodeIndex(i)) ? order.excluded : order.preferred).push_back(registration().node_names[i]);
    }
    order.suspects = to_be_checked(order.excluded);
    return order;
}

/// By the next run: what this one has lost, not given back; and where it never had a world, what it was to
/// check itself.
std::vector<std::string> Group::to_be_checked(const std::vector<std::string> &lost) const {
    std::vector<std::string> nodes = lost;
    const auto &names = registration().node_names;
    std::erase_if(nodes, [&](const std::string &node) {
        for (std::uint32_t i = 0; i < names.size(); ++i)
            if (names[i] == node && is_released(NodeIndex(i))) return true;
        return false;
    });
    bool had_world = promise_ && promise_->world;
    if (!had_world)
        nodes.insert(nodes.end(), registration().lost_before.begin(), registration().lost_before.end());
    return nodes;
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
