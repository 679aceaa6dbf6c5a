// SPDX-License-Identifier: Apache-2.0
// Copies from the memory of GPUs into a save's memory, behind the program's back: on streams of our own,
// behind the work that the program had given to its stream, and before what it is told to wait with.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lib/cuda_lane.h"
#include "lib/store.h"

namespace dlrover::lib {

/// The GPU side of one context's saves. Any thread.
class CudaStage {
  public:
    struct Options {
        std::uint64_t piece_bytes = std::uint64_t{256} << 20;  ///< registered in one call
        CudaRing ring;
    };
    /// unsupported: no driver, or one that is too old.
    static Result<std::unique_ptr<CudaStage>> create(Options options);
    static Result<std::unique_ptr<CudaStage>> create() { return create(Options()); }
    CudaStage(std::shared_ptr<const CudaDriver> driver, Options options);
    ~CudaStage();
    CudaStage(const CudaStage &) = delete;
    CudaStage &operator=(const CudaStage &) = delete;

    /// Begins to copy, behind what `stream` (a CUstream, nullptr: the default stream) has been given so far,
    /// all from the memory of that stream's GPU. Only wait() says that it is done. The registration of the
    /// target's memory begins here; where it is not registered yet the ring is used.
    Status copy(std::span<const CudaCopy> copies, void *stream, const SaveTarget &target);
    /// Memory for saves from the GPU of `pointer` is registered in the background, as it is made ready.
    Status prepare(cuda::Pointer pointer, std::span<const SaveTarget> targets);
    /// All copies begun are made; or the first failure of this save.
    Status wait();
    /// What `stream` is given from now on runs behind the copies begun. Waits itself only for what goes
    /// through the ring, and where the stream is being captured into a graph.
    Status fence(void *stream);
    /// The save is over, well or not: nothing writes to its memory any more.
    void end();

  private:
    Result<CudaLane *> lane_of(std::span<const CudaCopy> copies);
    Result<CudaLane *> lane_in(cuda::Context context);
    Result<cuda::Context> context_of(cuda::Pointer pointer);
    Result<cuda::Context> primary_context(int ordinal);
    /// nullptr: there can be none.
    PinnedRange *range_of(const SaveTarget &target, cuda::Context context) const;
    PinnedRange *pinned(const SaveTarget &target, const CudaLane &lane) const;
    Status copy_in(CudaLane &lane, std::span<const CudaCopy> copies, cuda::Stream stream,
                   const PinnedRange *pinned);
    /// Under the mutex: what goes through the ring.
    Status pump();
    Status failed() const;
    Status note(Status status);

    const std::shared_ptr<const CudaDriver> driver_;
    const Options options_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<CudaLane>> lanes_;  ///< only grows
    struct Primary {
        int ordinal;
        cuda::Device device;
        cuda::Context context;
    };
    std::vector<Primary> primaries_;  ///< retained
    Code failure_ = Code::ok;         ///< of this save; sticks until end()
    std::string failure_text_;
};

}  // namespace dlrover::lib
