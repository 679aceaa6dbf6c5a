// SPDX-License-Identifier: Apache-2.0
// Host memory made known to the CUDA driver, so that a GPU copies into it without a stop in between.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/cuda_driver.h"

namespace dlrover::lib {

/// Registers a range piece by piece in a thread of its own, which lives only as long as there is something to
/// register. What is refused stays unregistered. Any thread.
class PinnedRange {
  public:
    PinnedRange(std::shared_ptr<const CudaDriver> driver, cuda::Context context, std::byte *base,
                std::uint64_t piece_bytes);
    /// Waits for the piece that is being registered, then unregisters all.
    ~PinnedRange();
    PinnedRange(const PinnedRange &) = delete;
    PinnedRange &operator=(const PinnedRange &) = delete;

    /// The memory from the base to here is to be registered, `later` each piece once somebody else has made
    /// its pages, so that none is charged to this process. Returns at once.
    void cover(std::uint64_t bytes);
    void cover_later(std::uint64_t bytes);
    /// How many of the bytes from `to` on lie in one registered piece, at most `bytes`; 0: none.
    std::uint64_t registered(const std::byte *to, std::uint64_t bytes) const;
    /// Waits until the thread has nothing to do; whether everything is registered.
    bool finished();

  private:
    void run();
    void cover_locked(std::uint64_t bytes);
    /// Whether the piece is to be registered now. Waits, without the lock in between.
    bool await_pages(std::unique_lock<std::mutex> &lock, std::uint64_t from, std::uint64_t bytes);
    Status register_piece(std::uint64_t from, std::uint64_t bytes) const;
    void start();

    const std::shared_ptr<const CudaDriver> driver_;
    const cuda::Context context_;
    std::byte *const base_;
    const std::uint64_t piece_bytes_;

    mutable std::mutex mutex_;
    std::condition_variable idle_, wake_;
    std::uint64_t wanted_ = 0;         ///< bytes
    std::vector<std::uint64_t> ends_;  ///< of the registered pieces, which follow each other from the base
    bool running_ = false, stopping_ = false, refused_ = false;
    bool at_once_ = false;  ///< pages that are missing are no reason to wait
    std::thread thread_;
};

}  // namespace dlrover::lib
