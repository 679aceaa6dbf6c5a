// SPDX-License-Identifier: Apache-2.0
// The daemon's part in what ended groups keep for the next runs of their jobs.
#include <algorithm>

#include "common/log.h"
#include "daemon/daemon.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time floor_interval = std::chrono::seconds(1);

}  // namespace

MemoryBudget::Holding Daemon::held(std::optional<std::uint32_t> uid) const {
    MemoryBudget::Holding sum;
    for (const auto &[key, group] : groups_) {
        if (!group->is_kept() || (uid && group->uid() != *uid)) continue;
        auto one = group->holding();
        sum.bytes += one.bytes;
        sum.segments += one.segments;
        sum.noted_bytes += one.noted_bytes;
        sum.node_bytes += one.node_bytes;
    }
    return sum;
}

bool Daemon::release(std::optional<std::uint32_t> uid) {
    Group *oldest = nullptr;
    for (const auto &[key, group] : groups_) {
        if (!group->is_kept() || (uid && group->uid() != *uid)) continue;
        if (oldest == nullptr || group->kept_until_us() < oldest->kept_until_us()) oldest = group.get();
    }
    if (oldest != nullptr) oldest->drop_kept("another job needs the memory");
    return oldest != nullptr;
}

/// Programs without us take memory, too.
void Daemon::watch_floor() {
    while (budget_.below_floor() && release(std::nullopt)) {
    }
    floor_timer_ = loop_.after(floor_interval, [this] { watch_floor(); });
}

void Daemon::check_kept() {
    for (const auto &[key, group] : groups_) {
        if (!group->is_kept()) continue;
        if (loop_.now().count() >= group->kept_until_us())
            group->drop_kept("its time is over (memory.keep_after_requeue)");
        else if (group->asks_for_next_run())
            ask_about(key);
    }
}

void Daemon::ask_about(Key key) {
    slurm_.load_job(key.first, [this, alive = alive_, key](Result<SlurmJob> job) {
        auto group = *alive ? groups_.find(key) : groups_.end();
        if (group != groups_.end()) group->second->on_job(job);
    });
}

/// Makes room for the key. After most requeues Slurm counts a job's steps from 0 again, but not after all:
/// where the batch host was lost it may go on counting. None: no group has kept anything for this step, or
/// several have and it is not told for which of them it is.
std::unique_ptr<Group> Daemon::take_kept(Key key, const proto::StepRegistrationT &step,
                                         const std::string &lineage) {
    std::vector<Key> found;
    for (const auto &[other, group] : groups_)
        if (other.first == key.first && group->is_kept_for(step, lineage)) found.push_back(other);
    if (std::ranges::find(found, key) != found.end()) found = {key};
    if (found != std::vector<Key>{key}) forget(key);
    if (found.size() != 1) return nullptr;
    auto group = std::move(groups_.at(found.front()));
    release_key(found.front());
    return group;
}

}  // namespace dlrover::daemon
