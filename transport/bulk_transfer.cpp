// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_transfer.h"

#include <algorithm>

namespace dlrover::transport {

Status copy_of(const Status &status) {
    return status.ok() ? Status() : Status(status.code(), status.message());
}

BulkTransfer::BulkTransfer(BulkTarget target, std::shared_ptr<Cancellation> cancellation)
    : target_(std::move(target)),
      cancellation_(std::move(cancellation)),
      taken_(bulk_blocks(target_.memory.size())),
      missing_(taken_.size()) {}

Status BulkTransfer::join(const BulkGreeting &greeting) {
    std::lock_guard lock(mutex_);
    if (over()) return Status(Code::permission_denied, "the transfer is over");
    if (joined_.empty()) joined_.resize(greeting.streams);
    if (joined_.size() != greeting.streams || joined_[greeting.stream])
        return Status(Code::permission_denied, "a stream that has joined already");
    joined_[greeting.stream] = true;
    ++active_;
    return {};
}

Result<std::span<std::byte>> BulkTransfer::take(const BulkBlock &block) {
    std::lock_guard lock(mutex_);
    auto place = taken_[block.offset / bulk_block_bytes];
    if (place) return Status(Code::corrupt, "a block came twice");
    place = true;
    --missing_;
    return target_.memory.subspan(block.offset, block.bytes);
}

Status BulkTransfer::spare(std::vector<BulkSpared> spared) {
    std::lock_guard lock(mutex_);
    if (spared_) return Status(Code::corrupt, "twice it is said what is left out");
    for (const BulkSpared &run : spared) {
        auto first = taken_.begin() + static_cast<std::ptrdiff_t>(run.first);
        auto end = first + static_cast<std::ptrdiff_t>(run.count);
        if (std::find(first, end, true) != end) return Status(Code::corrupt, "a block that came is left out");
        std::fill(first, end, true);
        missing_ -= run.count;
    }
    spared_ = std::move(spared);
    return {};
}

void BulkTransfer::take_all() {
    std::lock_guard lock(mutex_);
    missing_ = 0;
}

void BulkTransfer::end_stream() {
    std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_all();
}

void BulkTransfer::fail(Status why) {
    std::lock_guard lock(mutex_);
    if (failure_.ok() && !verified_) failure_ = std::move(why);
    cancellation_->cancel();
    changed_.notify_all();
}

/// A stream that hangs fails by its own limit; one that never joins by the deadline.
Status BulkTransfer::wait_for_streams(std::unique_lock<std::mutex> &lock) {
    auto ready = [&] { return ended_ == joined_.size() || closed_ || !failure_.ok(); };
    auto until = std::min(target_.deadline, BulkTarget::Time::clock::now() + std::chrono::hours(24));
    if (!changed_.wait_until(lock, until, ready)) return Status(Code::timeout, "not all of it came in time");
    if (!failure_.ok()) return copy_of(failure_);
    if (closed_) return Status(Code::unavailable, "the transfer was called off");
    if (missing_ != 0) return Status(Code::corrupt, "the sender ended before all of it was there");
    return {};
}

Status BulkTransfer::finish() {
    std::unique_lock lock(mutex_);
    DLROVER_TRY(wait_for_streams(lock));
    lock.unlock();
    if (spared_ && !spared_->empty()) DLROVER_TRY(target_.fill(*spared_));
    if (target_.verify) DLROVER_TRY(target_.verify());
    lock.lock();
    if (!failure_.ok()) return copy_of(failure_);
    if (closed_) return Status(Code::unavailable, "the transfer was called off");
    verified_ = true;
    return {};
}

bool BulkTransfer::leave() {
    std::lock_guard lock(mutex_);
    --active_;
    changed_.notify_all();
    if (active_ != 0 || told_ || closed_ || !over()) return false;
    return told_ = true;
}

Status BulkTransfer::outcome() const {
    std::lock_guard lock(mutex_);
    return copy_of(failure_);
}

bool BulkTransfer::expire(BulkTarget::Time now) {
    std::lock_guard lock(mutex_);
    if (now < target_.deadline || over()) return false;
    failure_ =
        Status(Code::timeout, joined_.empty() ? "nobody sent it in time" : "not all of it came in time");
    cancellation_->cancel();
    changed_.notify_all();
    if (active_ != 0 || told_) return false;
    return told_ = true;
}

void BulkTransfer::close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    cancellation_->cancel();
    changed_.notify_all();
    changed_.wait(lock, [&] { return active_ == 0; });
}

}  // namespace dlrover::transport
