// SPDX-License-Identifier: Apache-2.0
#include "lib/pinned_range.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <system_error>

#include "base/signals_blocked.h"
#include "ckpt/mapping.h"
#include "lib/background_populate.h"

namespace dlrover::lib {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes patience(10);  // with one piece: then its pages are not coming

void warn_of_refusal(const Status &why) {
    static std::atomic<bool> warned{false};
    if (warned.exchange(true)) return;
    std::fprintf(stderr,
                 "dlrover: checkpoint memory could not be registered for the GPU (%s): tensors on a GPU go "
                 "through a small buffer, which is slower\n",
                 why.message().c_str());
}

}  // namespace

PinnedRange::PinnedRange(std::shared_ptr<const CudaDriver> driver, cuda::Context context, std::byte *base,
                         std::uint64_t piece_bytes)
    : driver_(std::move(driver)), context_(context), base_(base), piece_bytes_(piece_bytes) {}

PinnedRange::~PinnedRange() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
    CudaScope scope(*driver_, context_);
    std::uint64_t begin = 0;
    for (std::uint64_t end : ends_) {
        (void)driver_->cuMemHostUnregister(base_ + begin);
        begin = end;
    }
}

void PinnedRange::cover(std::uint64_t bytes) {
    {
        std::lock_guard lock(mutex_);
        at_once_ = true;
        cover_locked(bytes);
    }
    wake_.notify_all();
}

void PinnedRange::cover_later(std::uint64_t bytes) {
    std::lock_guard lock(mutex_);
    cover_locked(bytes);
}

void PinnedRange::cover_locked(std::uint64_t bytes) {
    wanted_ = std::max(wanted_, bytes);
    bool all = !ends_.empty() && ends_.back() >= wanted_;
    if (!running_ && !refused_ && !all) start();
}

void PinnedRange::start() {
    if (thread_.joinable()) thread_.join();  // it has ended, or is about to without needing the lock
    SignalsBlocked guard;
    try {
        thread_ = std::thread([this] { run(); });
        running_ = true;
    } catch (const std::system_error &) {  // no thread to be had: the next save tries again
    }
}

bool PinnedRange::await_pages(std::unique_lock<std::mutex> &lock, std::uint64_t from, std::uint64_t bytes) {
    auto begun = Clock::now();
    while (!stopping_ && !at_once_) {
        lock.unlock();
        bool there = ckpt::has_pages(base_ + from, bytes);
        lock.lock();
        auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
        if (there) break;
        if (waited >= patience) return false;
        wake_.wait_for(lock, pause_after(waited), [this] { return stopping_ || at_once_; });
    }
    return !stopping_;
}

Status PinnedRange::register_piece(std::uint64_t from, std::uint64_t bytes) const {
    CudaScope scope(*driver_, context_);
    DLROVER_TRY(scope.status());
    return driver_->check(driver_->cuMemHostRegister(base_ + from, bytes, cuda::host_portable),
                          "registering memory");
}

void PinnedRange::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        std::uint64_t from = ends_.empty() ? 0 : ends_.back();
        if (stopping_ || refused_ || from >= wanted_) break;
        std::uint64_t bytes = std::min(piece_bytes_, wanted_ - from);
        if (!await_pages(lock, from, bytes)) break;
        lock.unlock();
        Status registered = register_piece(from, bytes);
        if (!registered.ok()) warn_of_refusal(registered);
        lock.lock();
        if (registered.ok())
            ends_.push_back(from + bytes);
        else
            refused_ = true;
    }
    running_ = false;
    idle_.notify_all();
}

std::uint64_t PinnedRange::registered(const std::byte *to, std::uint64_t bytes) const {
    auto offset = static_cast<std::uint64_t>(to - base_);
    std::lock_guard lock(mutex_);
    auto end = std::upper_bound(ends_.begin(), ends_.end(), offset);
    return end == ends_.end() ? 0 : std::min(bytes, *end - offset);
}

bool PinnedRange::finished() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !running_; });
    return !refused_ && !ends_.empty() && ends_.back() >= wanted_;
}

}  // namespace dlrover::lib
