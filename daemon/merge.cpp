// SPDX-License-Identifier: Apache-2.0
#include "daemon/merge.h"

#include <algorithm>
#include <iterator>

#include "daemon/event_log.h"
#include "daemon/interfaces.h"

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

/// Each node knows those that it holds a part of: one that leads and has no ranks, a spare, knows none. Older
/// ones than the newest complete one are what a node says that has not heard of that yet.
void merge_checkpoints(GroupStatusT &into, GroupStatusT &from) {
    auto &all = into.checkpoints;
    for (auto &theirs : from.checkpoints) {
        auto same = std::ranges::find(all, theirs->train_step, [](const auto &c) { return c->train_step; });
        if (same == all.end())
            all.push_back(std::move(theirs));
        else if (theirs->complete && !(*same)->complete)
            *same = std::move(theirs);
    }
    std::uint64_t newest = 0;
    for (const auto &c : all)
        if (c->complete) newest = std::max(newest, c->train_step);
    std::erase_if(all, [&](const auto &c) { return c->train_step < newest; });
    std::ranges::sort(all, {}, [](const auto &c) { return c->train_step; });
}

/// The larger, the worse.
int rank_of_trouble(const MoverStatusT &mover) {
    if (!mover.ready) return 4;
    if (mover.port == 0) return 3;
    if (!mover.text.empty()) return 2;
    return tells_of_faster(mover.interface) ? 1 : 0;
}

void merge_movers(std::unique_ptr<MoverStatusT> &into, std::unique_ptr<MoverStatusT> &from) {
    if (!from) return;
    if (!into) return into.swap(from);
    std::uint32_t nodes = into->nodes + from->nodes, listening = into->listening + from->listening;
    if (rank_of_trouble(*from) > rank_of_trouble(*into)) into.swap(from);
    into->nodes = nodes;
    into->listening = listening;
}

/// `into` knows the steps better. The partners stay those of the node that was asked, whose `from` may be.
void merge_copies(std::unique_ptr<CopiesStatusT> &into, std::unique_ptr<CopiesStatusT> &from, bool own_from) {
    if (!from) return;
    if (!into) return into.swap(from);
    if (own_from) {
        into->partners.swap(from->partners);
        into->switches.swap(from->switches);
    }
    into->same_switch += from->same_switch;
    into->nodes += from->nodes;
    if (into->target_step == from->target_step) {
        into->copied += from->copied;
        into->to_copy += from->to_copy;
    }
    if (into->text.empty()) into->text = std::move(from->text);
    std::ranges::move(from->in_trouble, std::back_inserter(into->in_trouble));
    into->parities += from->parities;
    into->parity_bytes += from->parity_bytes;
    into->arrived_bytes += from->arrived_bytes;
    into->spared_bytes += from->spared_bytes;
}

void merge_verified(std::unique_ptr<VerifiedStatusT> &into, std::unique_ptr<VerifiedStatusT> &from) {
    if (!from) return;
    if (!into) return into.swap(from);
    into->agent_objects += from->agent_objects;
    into->agent_bytes += from->agent_bytes;
    into->rank_objects += from->rank_objects;
    into->rank_bytes += from->rank_bytes;
    into->damaged += from->damaged;
    into->nodes += from->nodes;
}

/// Nodes of another world than the one that stays do not count.
void merge_pmix(std::unique_ptr<PmixStatusT> &into, std::unique_ptr<PmixStatusT> &from) {
    if (!from) return;
    if (!into || into->name_space.empty()) return into.swap(from);
    if (from->name_space == into->name_space) into->up += from->up;
}

/// All that both have, which goes into the one that stays.
auto take_progress(StorageStatusT &into, StorageStatusT &from) {
    auto all = std::move(into.progress);
    std::ranges::move(std::exchange(from.progress, {}), std::back_inserter(all));
    return all;
}

/// Both say the longer one.
void merge_silence(StorageStatusT &into, StorageStatusT &from) {
    const StorageStatusT &longer = into.silent_us >= from.silent_us ? into : from;
    StorageStatusT &other = &longer == &into ? from : into;
    if (longer.silent_us == 0) return;
    other.silent_us = longer.silent_us;
    other.text = longer.text;
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
        merge_movers(same->mover, group->mover);
        merge_pmix(same->pmix, group->pmix);
        merge_copies(same->copies, group->copies, theirs_leads);
        merge_verified(same->verified, group->verified);
        // Rank 0's node knows more of storage than the others.
        decltype(same->storage->progress) progress;
        bool both = group->storage && same->storage;
        if (both) {
            merge_silence(*same->storage, *group->storage);
            progress = take_progress(*same->storage, *group->storage);
        }
        bool theirs_knows = group->storage && (group->storage->stored || group->storage->storing);
        if (theirs_knows && (!same->storage || !same->storage->stored))
            same->storage = std::move(group->storage);
        if (both) same->storage->progress = std::move(progress);
        if (!same_generation(*same, *group)) continue;
        take_known_ranks(*same, *group);
        merge_checkpoints(*same, *group);
    }
}

void merge_outcome(proto::local::OutcomeReplyT &into, const proto::local::OutcomeReplyT &from) {
    if (std::pair(from.outcome, from.lost) > std::pair(into.outcome, into.lost)) into = from;
}

void merge_rollback(proto::local::RollbackReplyT &into, const proto::local::RollbackReplyT &from) {
    if (from.state > into.state) into = from;
}

void merge_scale(proto::local::ScaleReplyT &into, const proto::local::ScaleReplyT &from) {
    if (from.state > into.state) into = from;
}

void merge_events(EventsReplyT &into, EventsReplyT from) {
    for (auto &group : from.groups) {
        GroupEventsT *same = find_same(into.groups, *group);
        if (!same) {
            into.groups.push_back(std::move(group));
            continue;
        }
        std::move(group->events.begin(), group->events.end(), std::back_inserter(same->events));
        same->dropped += group->dropped;
    }
}

void put_in_order(EventsReplyT &merged, std::size_t room) {
    for (auto group = merged.groups.rbegin(); group != merged.groups.rend(); ++group) {
        auto &events = (*group)->events;
        std::ranges::stable_sort(events, {}, [](const auto &event) { return event->time_us; });
        auto oldest = events.end();
        while (oldest != events.begin() && size_of(**std::prev(oldest)) <= room) room -= size_of(**--oldest);
        (*group)->dropped += static_cast<std::uint64_t>(oldest - events.begin());
        events.erase(events.begin(), oldest);
    }
}

}  // namespace dlrover::daemon
