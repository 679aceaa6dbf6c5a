// SPDX-License-Identifier: Apache-2.0
#include "lib/background_populate.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/signals_blocked.h"
#include "ckpt/mapping.h"
#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t part_bytes = std::size_t{16} << 20;
constexpr std::size_t shared_part_bytes = std::size_t{4} << 20;
constexpr std::chrono::milliseconds shortest_pause(10), longest_pause(1000);
constexpr std::chrono::minutes patience(10);  // with one part: then the memory is not coming

}  // namespace

// From the end: whoever else is making the pages ready begins at the front, and the two do not stand in each
// other's way.
void populate_now(std::span<std::byte> memory, unsigned threads) {
    std::size_t parts = (memory.size() + shared_part_bytes - 1) / shared_part_bytes;
    parallel_for(parts, threads, [&](std::uint64_t i) {
        auto part = memory.subspan((parts - 1 - i) * shared_part_bytes);
        ckpt::populate(part.data(), std::min(part.size(), shared_part_bytes));
    });
}

// What comes late is found late by no more than a part of that.
std::chrono::milliseconds pause_after(std::chrono::milliseconds waited) {
    return std::clamp(waited / 16, shortest_pause, longest_pause);
}

void BackgroundPopulate::start(std::vector<std::span<std::byte>> ranges) {
    stop();
    ranges_ = std::move(ranges);
    finished_ = 0;
    stopping_ = false;
    SignalsBlocked guard;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error &) {
    }
}

void BackgroundPopulate::stop() {
    if (!thread_.joinable()) return;
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

bool BackgroundPopulate::done(const std::byte *begin) const {
    auto finished = std::span(ranges_).first(finished_.load());
    return std::ranges::any_of(finished, [&](auto range) { return range.data() == begin; });
}

void BackgroundPopulate::run() {
    for (auto range : ranges_) {
        for (std::size_t at = 0; at < range.size(); at += part_bytes)
            if (!populate_when_ready(range.subspan(at, std::min(part_bytes, range.size() - at)))) return;
        ++finished_;
    }
}

bool BackgroundPopulate::populate_when_ready(std::span<std::byte> part) {
    auto begun = Clock::now();
    std::unique_lock lock(mutex_);
    while (!stopping_ && !ckpt::has_pages(part.data(), part.size())) {
        auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
        if (waited >= patience) return false;
        wake_.wait_for(lock, pause_after(waited));
    }
    if (stopping_) return false;
    lock.unlock();
    ckpt::populate(part.data(), part.size());
    return true;
}

}  // namespace dlrover::lib
