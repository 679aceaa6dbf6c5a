// SPDX-License-Identifier: Apache-2.0
#include "mover/send_queue.h"

#include <chrono>
#include <thread>

#include "mover/here_already.h"

namespace dlrover::mover {
namespace {

/// Whose the wrong bytes are that the other side has found. corrupt: this node's.
Status look_at_own(const SendOrder &order, const Status &said) {
    if (said.code() != Code::corrupt || !order.object) return {};
    return ckpt::verify_object(order.job.memory, *order.object, order.job.cancellation->flag())
        .with_context("it is damaged in this node's memory");
}

/// `damaged`: this node's memory does not hold that object any more.
Status send_object(SendOrder &order, bool &damaged) {
    auto range = ckpt::SegmentRange::map(std::move(order.segments), ckpt::Access::read_only);
    if (!range) return range.take_status();
    if (order.bytes > range->bytes())
        return Status(Code::invalid_argument, "the object is longer than its memory");
    order.job.memory = {range->base(), order.bytes};
    if (order.object && !order.object->parity) order.job.begin = order.object->place.table_offset;
    if (order.object && !order.object->parity)
        order.job.spare = [&order](std::span<const transport::BulkHave> haves) {
            return find_spared(order.job.memory, order.object->place, haves);
        };
    Status sent = transport::bulk_send(order.job);
    Status own = look_at_own(order, sent);
    damaged = own.code() == Code::corrupt;
    return damaged ? std::move(own) : std::move(sent);
}

/// What is wrong with the object, or with the order, is so the next time.
bool may_do_better(Code code) {
    return code == Code::unavailable || code == Code::timeout || code == Code::resource_exhausted ||
           code == Code::system || code == Code::permission_denied;
}

}  // namespace

void SendQueue::start() {
    std::thread([this] { run(); }).detach();
}

bool SendQueue::submit(SendOrder order) {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= max_waiting) return false;
    waiting_.push_back(std::move(order));
    wake_.notify_one();
    return true;
}

void SendQueue::cancel(const helper::Ticket &ticket) {
    std::lock_guard lock(mutex_);
    if (in_hand_cancellation_ && in_hand_ == ticket) in_hand_cancellation_->cancel();
    std::erase_if(waiting_, [&](const SendOrder &order) {
        if (order.ticket != ticket) return false;
        answer(ticket, Status(Code::stale, "the order was cancelled"), 0);
        return true;
    });
}

void SendQueue::cancel_all() {
    std::lock_guard lock(mutex_);
    waiting_.clear();
    if (in_hand_cancellation_) in_hand_cancellation_->cancel();
}

SendOrder SendQueue::next() {
    std::unique_lock lock(mutex_);
    in_hand_cancellation_.reset();
    wake_.wait(lock, [&] { return !waiting_.empty(); });
    SendOrder order = std::move(waiting_.front());
    waiting_.pop_front();
    in_hand_ = order.ticket;
    in_hand_cancellation_ = order.job.cancellation;
    return order;
}

void SendQueue::answer(const helper::Ticket &ticket, const Status &status, std::uint64_t time_us,
                       bool damaged) {
    proto::local::ObjectSentT answer;
    answer.ok = status.ok();
    answer.retry = !status.ok() && may_do_better(status.code());
    answer.text = status.message();
    answer.damaged = damaged;
    answer.time_us = time_us;
    outbox_.put(ticket, std::move(answer));
}

void SendQueue::run() {
    for (;;) {
        SendOrder order = next();
        auto start = std::chrono::steady_clock::now();
        bool damaged = false;
        Status status = send_object(order, damaged);
        auto spent =
            std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
        answer(order.ticket, status, static_cast<std::uint64_t>(spent.count()), damaged);
    }
}

}  // namespace dlrover::mover
