// SPDX-License-Identifier: Apache-2.0
// Page tables of slots whose memory somebody else is making ready, before the first save needs them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace dlrover::lib {

/// At once, by this thread and at most threads - 1 others: page tables, and pages where there are none.
void populate_now(std::span<std::byte> memory, unsigned threads);

/// From one look for memory to the next, having waited so long already.
std::chrono::milliseconds pause_after(std::chrono::milliseconds waited);

/// A thread that populates ranges one after the other, each part once it has its memory: what it is not given
/// in time it leaves alone, so that no page is charged to this process. The ranges must stay mapped until
/// stop() or the end of this object.
class BackgroundPopulate {
  public:
    BackgroundPopulate() = default;
    ~BackgroundPopulate() { stop(); }
    BackgroundPopulate(const BackgroundPopulate &) = delete;
    BackgroundPopulate &operator=(const BackgroundPopulate &) = delete;

    /// Instead of what it was doing. Without a thread to be had: nothing happens.
    void start(std::vector<std::span<std::byte>> ranges);
    /// Returns soon: parts are small.
    void stop();
    /// Whether nothing of the range that begins there is left to do.
    bool done(const std::byte *begin) const;

  private:
    void run();
    bool populate_when_ready(std::span<std::byte> part);

    std::vector<std::span<std::byte>> ranges_;
    std::atomic<std::size_t> finished_{0};  ///< of ranges_, in order
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace dlrover::lib
