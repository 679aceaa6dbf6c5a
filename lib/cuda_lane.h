// SPDX-License-Identifier: Apache-2.0
// One CUDA context's part of a stage: the stream of our own, and a small pinned ring for memory that is not
// registered.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "lib/pinned_range.h"

namespace dlrover::lib {

struct CudaCopy {
    std::byte *to = nullptr;
    cuda::Pointer from = 0;
    std::uint64_t bytes = 0;
};

struct CudaRing {
    std::uint64_t block_bytes = std::uint64_t{4} << 20;
    std::size_t blocks = 4;
};

/// Not thread-safe, but for context() and done(). Every call but these needs a CudaScope of its context.
class CudaLane {
  public:
    static Result<std::unique_ptr<CudaLane>> create(std::shared_ptr<const CudaDriver> driver,
                                                    cuda::Context context, CudaRing ring);
    ~CudaLane();
    CudaLane(const CudaLane &) = delete;
    CudaLane &operator=(const CudaLane &) = delete;

    /// What is copied from now on comes behind what `stream` has been given so far.
    Status begin_behind(cuda::Stream stream);
    /// Begins the parts that lie in registered memory, small ones at the end of the run; the others are
    /// queued for the ring.
    Status begin(const CudaCopy &copy, const PinnedRange *pinned);
    /// Ends a run of begin(): done() is behind its direct copies, and the ring is filled.
    Status end_run();
    /// Everything that was queued goes through the ring and arrives.
    Status pump();
    /// Waits for everything that is on its way and forgets the rest.
    void stop();

    bool busy() const noexcept { return busy_; }
    cuda::Context context() const noexcept { return context_; }
    /// Behind all direct copies so far.
    cuda::Event done() const noexcept { return done_; }

  private:
    CudaLane(std::shared_ptr<const CudaDriver> driver, cuda::Context context, CudaRing ring);
    Status begin_direct(const CudaCopy &copy);
    /// The small ones, together where the driver can.
    Status begin_small();
    bool begin_batch();
    Status create_ring();
    Status issue();
    Status take_oldest();
    std::byte *block(std::uint64_t part) const noexcept;

    const std::shared_ptr<const CudaDriver> driver_;
    const cuda::Context context_;
    const CudaRing ring_;
    cuda::Stream stream_ = nullptr;
    cuda::Event ready_ = nullptr, done_ = nullptr;
    std::vector<CudaCopy> small_;           ///< into registered memory, not yet begun
    bool batches_ = true;                   ///< the driver has refused none
    std::byte *blocks_ = nullptr;           ///< the ring; made at its first use
    std::vector<cuda::Event> block_ready_;  ///< the block has what it was to get
    std::deque<CudaCopy> parts_;            ///< of at most a block each; the first under_way_ are in the ring
    std::size_t under_way_ = 0;
    std::uint64_t taken_ = 0;  ///< parts that have gone through since the beginning
    bool busy_ = false;
};

}  // namespace dlrover::lib
