// SPDX-License-Identifier: Apache-2.0
// Gives the daemon's segments their pages from inside the step, so that the kernel charges them to the job.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "agent/loop.h"
#include "base/unique_fd.h"
#include "ckpt/segment.h"
#include "proto/local_codec.h"

namespace dlrover::agent {

/// Works on a thread of its own, which begins with the first segment. Thread: the loop's.
class Filler {
  public:
    using OnFilled = std::function<void(proto::local::SegmentFilledT)>;
    Filler(Loop &loop, OnFilled on_filled) : loop_(loop), on_filled_(std::move(on_filled)) {}
    /// Waits for the chunk in work.
    ~Filler();
    Filler(const Filler &) = delete;
    Filler &operator=(const Filler &) = delete;

    /// `on_filled` follows.
    Status fill(const proto::local::FillSegmentT &order, UniqueFd segment);

  private:
    Status begin();
    Status room(std::uint64_t more_bytes) const;
    void on_ready();

    Loop &loop_;
    OnFilled on_filled_;
    UniqueFd wake_;
    std::atomic<std::uint64_t> floor_bytes_{0}, job_floor_bytes_{0};
    std::mutex mutex_;
    std::vector<proto::local::SegmentFilledT> filled_;  ///< guarded by mutex_
    std::unique_ptr<ckpt::Prefaulter> prefaulter_;
};

}  // namespace dlrover::agent
