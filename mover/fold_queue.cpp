// SPDX-License-Identifier: Apache-2.0
#include "mover/fold_queue.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "ckpt/checksum.h"
#include "ckpt/erasure.h"

namespace dlrover::mover {
namespace {

using Clock = std::chrono::steady_clock;
/// Between two looks at clock and cancellation.
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;

Status check_going(const FoldOrder &order, const std::atomic<bool> &stop) {
    if (stop) return Status(Code::stale, "the order was cancelled");
    if (Clock::now() >= order.deadline) return Status(Code::timeout, "it was not added up in time");
    return {};
}

/// What is behind the sum so far counts as zeros.
Status add_up(std::byte *into, const std::byte *from, const FoldOrder &order, const std::atomic<bool> &stop) {
    for (std::uint64_t at = 0; at < order.bytes; at += block_bytes) {
        DLROVER_TRY(check_going(order, stop));
        std::uint64_t n = std::min(block_bytes, order.bytes - at);
        std::uint64_t there = std::clamp(order.sum_bytes, at, at + n) - at;
        std::memset(into + at + there, 0, n - there);
        ckpt::fold_bytes({into + at, n}, {from + at, n}, order.factor);
    }
    return {};
}

}  // namespace

Result<std::uint64_t> fold_part(FoldOrder order, const std::atomic<bool> &stop) {
    DLROVER_TRY(check_going(order, stop));
    auto into = ckpt::SegmentRange::map(std::move(order.into), ckpt::Access::read_write);
    if (!into) return into.take_status();
    auto from = ckpt::SegmentRange::map(std::move(order.from), ckpt::Access::read_only);
    if (!from) return from.take_status();
    std::uint64_t sum_bytes = std::max(order.sum_bytes, order.bytes);
    if (order.bytes > from->bytes() || sum_bytes > into->bytes())
        return Status(Code::invalid_argument, "the part is longer than its memory");
    DLROVER_TRY(add_up(into->base(), from->base(), order, stop));
    if (!order.last) return std::uint64_t{0};
    std::span<const std::byte> sum(into->base(), sum_bytes);
    if (!order.object) {
        auto checksum = ckpt::checksum_unless(&stop, sum);
        return checksum ? Result<std::uint64_t>(*checksum) : Status(Code::stale, "the order was cancelled");
    }
    const auto &place = order.object->place;
    std::uint64_t end = place.table_offset + place.table_bytes;
    if (end < place.table_offset || end > sum_bytes)
        return Status(Code::invalid_argument, "the object is longer than what it was made of");
    DLROVER_TRY(ckpt::verify_object(sum.first(end), *order.object, &stop)
                    .with_context("the parts did not give the object"));
    return std::uint64_t{0};
}

void FoldQueue::start() {
    std::thread([this] { run(); }).detach();
}

bool FoldQueue::submit(FoldOrder order) {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= max_waiting) return false;
    waiting_.push_back(std::move(order));
    wake_.notify_one();
    return true;
}

void FoldQueue::cancel(const helper::Ticket &ticket) {
    std::lock_guard lock(mutex_);
    if (in_hand_ == ticket) stop_ = true;
    std::erase_if(waiting_, [&](const FoldOrder &order) {
        if (order.ticket != ticket) return false;
        answer(ticket, Status(Code::stale, "the order was cancelled"), 0);
        return true;
    });
}

void FoldQueue::cancel_all() {
    std::unique_lock lock(mutex_);
    waiting_.clear();
    stop_ = true;
    idle_.wait(lock, [&] { return !busy_; });
}

FoldOrder FoldQueue::next() {
    std::unique_lock lock(mutex_);
    in_hand_ = {};
    busy_ = false;
    idle_.notify_all();
    wake_.wait(lock, [&] { return !waiting_.empty(); });
    FoldOrder order = std::move(waiting_.front());
    waiting_.pop_front();
    in_hand_ = order.ticket;
    busy_ = true;
    stop_ = false;
    return order;
}

void FoldQueue::answer(const helper::Ticket &ticket, const Result<std::uint64_t> &sum,
                       std::uint64_t time_us) {
    proto::local::ObjectFoldedT answer;
    answer.ok = sum.ok();
    if (sum.ok())
        answer.xxh3 = *sum;
    else
        answer.text = sum.status().message();
    answer.time_us = time_us;
    outbox_.put(ticket, std::move(answer));
}

void FoldQueue::run() {
    for (;;) {
        FoldOrder order = next();
        auto ticket = order.ticket;
        auto start = Clock::now();
        auto sum = fold_part(std::move(order), stop_);
        auto spent = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
        answer(ticket, sum, static_cast<std::uint64_t>(spent.count()));
    }
}

}  // namespace dlrover::mover
