// SPDX-License-Identifier: Apache-2.0
// When what the ranks of this node go on from is verified, and what of it.
#include <algorithm>
#include <set>

#include "base/units.h"
#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {

GroupVerify::Hooks Group::verify_hooks() {
    GroupVerify::Hooks hooks;
    hooks.damaged = [this](Rank rank, const CheckpointId &id, SlotIndex slot) {
        if (member_ && !over()) drop_damaged(rank, id, slot);
    };
    hooks.all_verified = [this](const GroupVerify::Sums &sums) {
        log::info({job(), step()}, std::to_string(sums.objects) + " objects of step " +
                                       std::to_string(world_->restore_step->value()) + ", " +
                                       format_size_bytes(sums.bytes) +
                                       ", were verified while the programs start; the longest took " +
                                       std::to_string(sums.longest.count()) + " us");
    };
    return hooks;
}

/// Whether all processes of the worlds before have ended here, and the present one's begin.
bool Group::only_world_here() const {
    return agents_.size() >= tasks_here() && stopped_told_ >= stopping_ &&
           std::ranges::all_of(agents_,
                               [&](const auto &entry) { return entry.second.running == world_->id; });
}

/// Own objects, and those of the ranks that keep bytes for them.
std::set<Rank> Group::objects_to_verify(const CheckpointId &from) {
    std::set<Rank> ranks;
    for (std::uint32_t i = 0; i < ranks_of(self()); ++i) {
        auto rank = rank_of(i);
        auto object =
            rank ? arena_.begin_read(*rank, from) : Result<Arena::Object>(Status(Code::not_found, ""));
        if (!object) continue;
        arena_.end_read(*rank, object->place.slot);
        ranks.insert(*rank);
        for (const auto &with : object->seal.shared)
            if (with && with->kept_by != 0) ranks.emplace(with->rank);
    }
    return ranks;
}

std::string Group::why_missing(Rank rank, const Status &status) const {
    std::string damaged = verify_.trouble(rank);
    return damaged.empty() ? status.message() : damaged;
}

/// Once a world: when the node's agents have it, when its last process of before has ended, or when what has
/// to come from other nodes is here, whichever is last.
void Group::verify_restore_point() {
    if (world_ && verified_world_ == world_->id) return;
    verify_.stop();
    bool in_memory = world_ && world_->restore_step && world_->stored_world_size == 0;
    // A step of a world of another size is verified as its pieces are read: nobody knows which ones before.
    if (!in_memory || world_->memory_world_size > 0 || over() || world_->id <= stopping_) return;
    if (!only_world_here() || (copies_ && copies_->fetching())) return;
    verified_world_ = world_->id;
    CheckpointId from{world_->restore_generation, *world_->restore_step};
    std::vector<GroupVerify::Task> tasks;
    for (Rank rank : objects_to_verify(from)) {
        const Agent *agent = agent_of_rank(rank);
        if (agent && agent->verifies) tasks.push_back({rank, agent->connection});
    }
    verify_.begin(from, world_size(*world_), tasks);
}

}  // namespace dlrover::daemon
