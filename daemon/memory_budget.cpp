// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory_budget.h"

#include <algorithm>

#include "base/units.h"
#include "ckpt/segment.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint64_t noted_bytes_per_segment = 4096;
constexpr std::uint64_t segments_per_worker = 3;

bool fits(std::uint64_t held, std::uint64_t more, std::uint64_t limit) {
    return more == 0 || (more <= limit && held <= limit - more);
}

Status exhausted(std::string text) {
    return Status(Code::resource_exhausted, std::move(text));
}

void take(std::uint64_t &held, std::uint64_t less) {
    held -= std::min(held, less);
}

MemoryBudget::Holding less_by(MemoryBudget::Holding held, const MemoryBudget::Holding &less) {
    take(held.bytes, less.bytes);
    take(held.segments, less.segments);
    take(held.workers, less.workers);
    take(held.noted_bytes, less.noted_bytes);
    take(held.node_bytes, less.node_bytes);
    return held;
}

}  // namespace

MemoryBudget::Holding MemoryBudget::held(std::uint32_t uid) const {
    auto it = held_.find(uid);
    return it == held_.end() ? Holding{} : it->second;
}

/// Where it would not fit without what is kept, the text is of what there is now.
Status MemoryBudget::check(std::uint32_t uid, const Holding &more) const {
    Status share = check_share(held(uid), more);
    if (!share.ok() && !(kept_ && check_share(less_by(held(uid), kept_->held(uid)), more).ok())) return share;
    Status node = check_node(more, {});
    if (!node.ok() && !(kept_ && check_node(more, kept_->held(std::nullopt)).ok())) return node;
    return {};
}

Status MemoryBudget::make_room(std::uint32_t uid, const Holding &more) {
    DLROVER_TRY(check(uid, more));
    Status share = check_share(held(uid), more);
    while (!share.ok() && kept_->release(uid)) share = check_share(held(uid), more);
    if (!share.ok()) return share;
    Status node = check_node(more, {});
    while (!node.ok() && kept_->release(std::nullopt)) node = check_node(more, {});
    return node;
}

/// As if what `without` says were not held.
Status MemoryBudget::check_node(const Holding &more, const Holding &without) const {
    if (more.bytes == 0) return {};
    std::uint64_t node_bytes = node_bytes_ - std::min(node_bytes_, without.node_bytes);
    if (node_limit_bytes_ != 0 && !fits(node_bytes, more.node_bytes, node_limit_bytes_))
        return exhausted("checkpoints need " + format_size_bytes(more.node_bytes) +
                         " more on this node, all together have " + format_size_bytes(node_bytes) + " of " +
                         format_size_bytes(node_limit_bytes_) + " (MemSpecLimit)");
    std::uint64_t available = this->available() + without.bytes;
    std::uint64_t taken = limits_.floor_bytes + lacking_bytes();
    std::uint64_t free = available > taken ? available - taken : 0;
    if (more.bytes <= free) return {};
    return exhausted("checkpoints need " + format_size_bytes(more.bytes) +
                     " more on this node, which can give " + format_size_bytes(free) +
                     " (memory.available_floor)");
}

Status MemoryBudget::check_share(const Holding &held, const Holding &more) const {
    if (!fits(held.bytes, more.bytes, limits_.user_quota_bytes))
        return exhausted("checkpoints need " + format_size_bytes(more.bytes) +
                         " more on this node, you hold " + format_size_bytes(held.bytes) +
                         " of your quota of " + format_size_bytes(limits_.user_quota_bytes) +
                         " (memory.user_quota)");
    const std::string limit = " (limits.segments_per_user); end other steps of yours on this node";
    if (!fits(held.segments, more.segments, limits_.user_segments))
        return exhausted("checkpoints need " + std::to_string(more.segments) +
                         " more segments on this node, you hold " + std::to_string(held.segments) + " of " +
                         std::to_string(limits_.user_segments) + limit);
    std::uint64_t workers = limits_.user_segments / segments_per_worker;
    if (!fits(held.workers, more.workers, workers))
        return exhausted("you have " + std::to_string(held.workers) + " workers on this node, of " +
                         std::to_string(workers) + limit);
    std::uint64_t notes = limits_.user_segments * noted_bytes_per_segment;
    if (!fits(held.noted_bytes, more.noted_bytes, notes))
        return exhausted(
            "the ledger of this checkpoint, with the list of ranks it shares tensors with, has " +
            format_size_bytes(more.noted_bytes) + ", your others hold " +
            format_size_bytes(held.noted_bytes) + " of " + format_size_bytes(notes) + " on this node" +
            limit + ", or save shorter ledgers");
    return {};
}

void MemoryBudget::add(std::uint32_t uid, const Holding &more) {
    if (more == Holding{}) return;
    Holding &held = held_[uid];
    held.bytes += more.bytes;
    held.segments += more.segments;
    held.workers += more.workers;
    held.noted_bytes += more.noted_bytes;
    held.node_bytes += more.node_bytes;
    node_bytes_ += more.node_bytes;
}

std::function<void()> MemoryBudget::pages_leave(std::uint64_t bytes) {
    *leaving_ += bytes;
    return [leaving = leaving_, bytes] { *leaving -= bytes; };
}

void MemoryBudget::begin_filling(const SharedFd &segment, std::uint64_t bytes) {
    filling_[segment] = bytes;
}

void MemoryBudget::end_filling(const SharedFd &segment) {
    filling_.erase(segment);
}

std::uint64_t MemoryBudget::lacking_bytes() const {
    std::uint64_t sum = 0;
    for (const auto &[segment, bytes] : filling_)
        sum += bytes - std::min(bytes, ckpt::held_bytes(segment->get()));
    return sum;
}

void MemoryBudget::remove(std::uint32_t uid, const Holding &less) {
    auto it = held_.find(uid);
    if (it == held_.end()) return;
    it->second = less_by(it->second, less);
    take(node_bytes_, less.node_bytes);
    if (it->second == Holding{}) held_.erase(it);
}

}  // namespace dlrover::daemon
