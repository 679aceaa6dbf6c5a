// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/fence_table.h"

#include <algorithm>
#include <utility>

namespace dlrover::pmix {

using Kind = proto::pmix::MessageKind;

Status FenceTable::join(Join join) {
    if (stopped_) return Status(Code::stale, "the generation ends");
    auto ranks = ranks_.find(join.ranks);
    if (ranks == ranks_.end()) {
        if (ranks_.size() >= max_sets + max_refused_sets)
            return Status(Code::resource_exhausted, "too many fences");
        ranks = ranks_.emplace(join.ranks, Ranks{0, ranks_.size() >= max_sets}).first;
    }
    Id id{join.ranks, ranks->second.next++};
    auto it = fences_.find(id);  // others may have been there before
    bool too_many = ranks->second.refused || (it == fences_.end() && fences_.size() >= max_open);
    if (it == fences_.end() && too_many) {
        refuse(id, join);
        return {};
    }
    if (it == fences_.end()) it = fences_.try_emplace(id).first;
    Fence &fence = it->second;
    fence.token = join.token;
    fence.places = std::move(join.places);
    fence.deadline = join.deadline;
    if (fence.failed) {
        fail(it, *fence.failed);
        return {};
    }
    auto is_lost = [&](std::uint32_t place) { return lost_.contains(place); };
    if (std::ranges::any_of(fence.places, is_lost))
        fail(it, Outcome::Lost);
    else if (too_many || join.data.size() > max_data_bytes)
        fail(it, Outcome::TooLarge);
    else if (is_first(fence))
        contribute(it, self_, std::move(join.data));
    else
        send(id, {fence.places.front()}, Kind::Contribute, Outcome::Done, join.data);
    return {};
}

bool FenceTable::is_over(const Id &id) const {
    auto ranks = ranks_.find(id.ranks);
    return ranks != ranks_.end() && id.sequence < ranks->second.next;
}

/// Without a place in the table: there is none.
void FenceTable::refuse(const Id &id, const Join &join) {
    finished_.push_back({join.token, Outcome::TooLarge, {}});
    if (join.places.front() != self_)
        send(id, {join.places.front()}, Kind::Contribute, Outcome::TooLarge, {});
}

/// What others contribute to a fence that this node, the first one, has refused. (Any other fence is not over
/// before they have, or are lost.)
void FenceTable::refuse_late(const Id &id, std::uint32_t from, Outcome contributed) {
    if (contributed == Outcome::Done && !lost_.contains(from))
        send(id, {from}, Kind::Result, Outcome::TooLarge, {});
}

void FenceTable::receive(std::uint32_t from, Message message) {
    Id id{message.fence, message.sequence};
    auto it = fences_.find(id);
    if (message.kind == Kind::Result) {
        if (it == fences_.end() || !it->second.token || it->second.places.front() != from) return;
        give(it->second, message.outcome, std::move(message.bytes));
        erase(it);
        return;
    }
    if (message.kind != Kind::Contribute || stopped_) return;
    if (it == fences_.end()) {
        if (is_over(id)) return refuse_late(id, from, message.outcome);
        if (fences_.size() >= max_open + max_refused) return;
        if (fences_.size() >= max_open) message.outcome = Outcome::TooLarge;
        it = fences_.try_emplace(id).first;
    }
    Fence &fence = it->second;
    if (!fence.places.empty() && !is_first(fence)) return;
    if (fence.failed) {
        tell_failure(it, from);
        return drop_if_told(it);
    }
    if (message.outcome != Outcome::Done) {
        fence.data.try_emplace(from);
        return fail(it, message.outcome);
    }
    contribute(it, from, std::move(message.bytes));
}

void FenceTable::contribute(Fences::iterator it, std::uint32_t place, proto::Bytes data) {
    Fence &fence = it->second;
    auto [part, is_new] = fence.data.try_emplace(place, std::move(data));
    if (is_new) {
        fence.bytes += part->second.size();
        held_bytes_ += part->second.size();
    }
    if (fence.bytes > max_data_bytes || held_bytes_ > max_held_bytes) return fail(it, Outcome::TooLarge);
    auto is_there = [&](std::uint32_t p) { return fence.data.contains(p); };
    if (fence.token && std::ranges::all_of(fence.places, is_there)) complete(it);
}

void FenceTable::complete(Fences::iterator it) {
    Fence &fence = it->second;
    proto::Bytes all;
    for (std::uint32_t place : fence.places) {
        const proto::Bytes &part = fence.data[place];
        all.insert(all.end(), part.begin(), part.end());
    }
    std::vector<std::uint32_t> others(fence.places.begin() + 1, fence.places.end());
    if (!others.empty()) send(it->first, others, Kind::Result, Outcome::Done, all);
    give(fence, Outcome::Done, std::move(all));
    erase(it);
}

/// On the first node it stays until every other one has been told: those that come later hear of it then.
void FenceTable::fail(Fences::iterator it, Outcome outcome) {
    Fence &fence = it->second;
    fence.failed = outcome;
    give(fence, outcome);
    if (!fence.places.empty() && !is_first(fence)) {
        send(it->first, {fence.places.front()}, Kind::Contribute, outcome, {});
        erase(it);
        return;
    }
    for (const auto &[place, data] : release(fence)) tell_failure(it, place);
    drop_if_told(it);
}

void FenceTable::tell_failure(Fences::iterator it, std::uint32_t place) {
    if (place == self_ || !it->second.told.insert(place).second) return;
    send(it->first, {place}, Kind::Result, *it->second.failed, {});
}

void FenceTable::drop_if_told(Fences::iterator it) {
    const Fence &fence = it->second;
    auto is_told = [&](std::uint32_t p) { return p == self_ || fence.told.contains(p) || lost_.contains(p); };
    if (!fence.places.empty() && std::ranges::all_of(fence.places, is_told)) erase(it);
}

std::map<std::uint32_t, proto::Bytes> FenceTable::release(Fence &fence) {
    held_bytes_ -= std::exchange(fence.bytes, 0);
    return std::exchange(fence.data, {});
}

void FenceTable::erase(Fences::iterator it) {
    release(it->second);
    fences_.erase(it);
}

void FenceTable::give(Fence &fence, Outcome outcome, proto::Bytes data) {
    if (!fence.token) return;
    finished_.push_back({*fence.token, outcome, std::move(data)});
    fence.token.reset();
    fence.deadline = Time::max();
}

void FenceTable::send(const Id &id, const std::vector<std::uint32_t> &to, Kind kind, Outcome outcome,
                      const proto::Bytes &data) {
    Message message;
    message.kind = kind;
    message.fence = id.ranks;
    message.sequence = id.sequence;
    message.outcome = outcome;
    message.bytes = data;
    hooks_.send(to, message);
}

void FenceTable::tick(Time now) {
    for (auto it = fences_.begin(); it != fences_.end();) {
        auto due = it++;
        if (due->second.token && due->second.deadline <= now) fail(due, Outcome::TimedOut);
    }
}

Time FenceTable::next_tick() const {
    Time next = Time::max();
    for (const auto &[id, fence] : fences_) next = std::min(next, fence.deadline);
    return next;
}

void FenceTable::lose(std::uint32_t place) {
    if (!lost_.insert(place).second) return;
    for (auto it = fences_.begin(); it != fences_.end();) {
        auto hit = it++;
        const auto &places = hit->second.places;
        if (!hit->second.failed && std::ranges::find(places, place) != places.end())
            fail(hit, Outcome::Lost);
        else
            drop_if_told(hit);
    }
}

void FenceTable::stop() {
    stopped_ = true;
    for (auto &[id, fence] : std::exchange(fences_, {})) give(fence, Outcome::Lost);
    held_bytes_ = 0;
}

void FenceTable::flush() {
    for (auto finished = std::exchange(finished_, {}); !finished.empty();
         finished = std::exchange(finished_, {}))
        for (const Finished &one : finished) hooks_.finish(one.token, one.outcome, one.data);
}

}  // namespace dlrover::pmix
