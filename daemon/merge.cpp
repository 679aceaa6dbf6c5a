// SPDX-License-Identifier: Apache-2.0
#include "daemon/merge.h"

#include <algorithm>

namespace dlrover::daemon {
namespace {

using namespace proto::local;

template <typename Group>
Group *find_same(std::vector<std::unique_ptr<Group>> &groups, const Group &wanted) {
    for (auto &g : groups)
        if (g->job_id == wanted.job_id && g->step_id == wanted.step_id) return g.get();
    return nullptr;
}

bool is_known(const RankStatusT &rank) {
    return !rank.state.empty();
}

void take_known_ranks(GroupStatusT &into, GroupStatusT &from) {
    for (auto &theirs : from.ranks) {
        if (!is_known(*theirs)) continue;
        auto same = std::find_if(into.ranks.begin(), into.ranks.end(),
                                 [&](const auto &r) { return r->rank == theirs->rank; });
        if (same != into.ranks.end() && !is_known(**same)) *same = std::move(theirs);
    }
}

bool same_generation(const GroupStatusT &a, const GroupStatusT &b) {
    return a.generation && b.generation && a.generation->term() == b.generation->term() &&
           a.generation->number() == b.generation->number();
}

}  // namespace

void merge_status(StatusReplyT &into, StatusReplyT from) {
    for (auto &group : from.groups) {
        GroupStatusT *same = find_same(into.groups, *group);
        if (!same) {
            into.groups.push_back(std::move(group));
            continue;
        }
        bool theirs_leads = !group->leader.empty() && group->leader == group->node;
        if (theirs_leads) std::swap(*same, *group);
        // Rank 0's node knows more of storage than the others.
        bool theirs_knows = group->storage && (group->storage->stored || group->storage->storing);
        if (theirs_knows && (!same->storage || !same->storage->stored))
            same->storage = std::move(group->storage);
        if (same_generation(*same, *group)) take_known_ranks(*same, *group);
    }
}

void merge_events(EventsReplyT &into, EventsReplyT from) {
    for (auto &group : from.groups) {
        GroupEventsT *same = find_same(into.groups, *group);
        if (!same) {
            into.groups.push_back(std::move(group));
            continue;
        }
        std::move(group->events.begin(), group->events.end(), std::back_inserter(same->events));
        std::stable_sort(same->events.begin(), same->events.end(),
                         [](const auto &a, const auto &b) { return a->time_us < b->time_us; });
        same->dropped += group->dropped;
    }
}

}  // namespace dlrover::daemon
