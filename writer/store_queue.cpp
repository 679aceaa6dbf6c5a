// SPDX-License-Identifier: Apache-2.0
#include "writer/store_queue.h"

#include <chrono>
#include <thread>

#include "writer/attempt.h"
#include "writer/object_progress.h"

namespace dlrover::writer {

void StoreQueue::start() {
    std::thread([this] { run(); }).detach();
}

bool StoreQueue::submit(StoreOrder order) {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= max_waiting) return false;
    waiting_.push_back(std::move(order));
    wake_.notify_one();
    return true;
}

void StoreQueue::cancel(const Ticket &ticket) {
    std::lock_guard lock(mutex_);
    if (in_hand_cancelled_ && in_hand_ == ticket) *in_hand_cancelled_ = true;
    std::erase_if(waiting_, [&](const StoreOrder &order) {
        if (order.ticket != ticket) return false;
        answer(order, Status(Code::stale, "the order was cancelled"), 0);
        return true;
    });
}

void StoreQueue::cancel_all() {
    std::lock_guard lock(mutex_);
    waiting_.clear();
}

StoreOrder StoreQueue::next() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return !waiting_.empty(); });
    StoreOrder order = std::move(waiting_.front());
    waiting_.pop_front();
    in_hand_ = order.ticket;
    in_hand_cancelled_ = order.cancelled;
    return order;
}

void StoreQueue::answer(const StoreOrder &order, const Result<std::uint64_t> &stored, std::uint64_t time_us) {
    proto::local::ObjectStoredT answer;
    answer.rank = order.rank.value();
    answer.time_us = time_us;
    answer.ok = stored.ok();
    answer.memory_damaged = order.memory_damaged;
    std::string what = "rank " + std::to_string(answer.rank) + " of step " +
                       std::to_string(order.checkpoint.id.step.value());
    if (stored.ok())
        answer.bytes = *stored;
    else if (order.memory_damaged)
        answer.text = what + " is damaged in this node's memory: " + stored.status().message();
    else
        answer.text = what + " is not on storage: " + in_words(stored.status(), order.to);
    outbox_.put(order.ticket, std::move(answer));
}

void StoreQueue::run() {
    ckpt::StorageFrames frames(max_frame_bytes);
    for (;;) {
        StoreOrder order = next();
        auto start = std::chrono::steady_clock::now();
        ObjectProgress progress(outbox_, order.ticket, order.rank, order.place.data_bytes);
        auto stored = attempt<std::uint64_t>(
            [&] { return store_object(order, frames, [&](std::uint64_t bytes) { progress.add(bytes); }); });
        auto spent =
            std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
        answer(order, stored, static_cast<std::uint64_t>(spent.count()));
    }
}

}  // namespace dlrover::writer
