// SPDX-License-Identifier: Apache-2.0
// One checkpoint being made in a store's memory: chunks one after the other, then the table.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <unordered_set>

#include "ckpt/block_kernel.h"
#include "ckpt/object_table.h"
#include "lib/cuda_stage.h"
#include "lib/fresh_memory.h"
#include "lib/numa.h"
#include "lib/store.h"

namespace dlrover::lib {

/// A chunk and where its bytes come from.
struct ChunkSource {
    ckpt::ChunkInfo info;  ///< the offset is filled in here
    const std::byte *data = nullptr;
};

/// One thread at a time; touches only the target's memory.
class ObjectWriter {
  public:
    ObjectWriter(SaveTarget target, ckpt::ObjectIdentity identity, unsigned threads);

    /// Copies and checksums all of them, sharing the blocks among the threads. After a failure the object can
    /// only be thrown away.
    Status add(std::span<ChunkSource> chunks);
    /// Begins to copy chunks from the memory of a GPU, as CudaStage::copy(). The stage must live until
    /// settle() or the end of the save.
    Status add_cuda(std::span<ChunkSource> chunks, CudaStage &stage, void *stream);
    /// Chunks that the ranks `here` of this node hold alike, each with the one that keeps it. Those of others
    /// are named in the table; this rank's own have to be added by one of the above afterwards.
    Status add_shared(std::span<const ckpt::ChunkInfo> chunks, std::span<const std::uint32_t> here);
    /// Waits for the copies begun, and takes their checksums from what has arrived.
    Status settle();
    Status set_skeleton(std::string_view json) { return table_.set_skeleton(json); }
    Status set_ledger(std::span<const std::uint8_t> bytes);
    /// Settles, and writes the table behind the data.
    Result<ObjectLayout> finish();
    const SaveTarget &target() const noexcept { return target_; }
    std::chrono::nanoseconds copy_time() const noexcept { return copy_time_; }

  private:
    /// An entry of the table that has no hashes yet.
    struct Staged {
        std::uint64_t index, offset, bytes;
    };
    Status place(std::span<ChunkSource> chunks);
    Status add_kept(ckpt::ChunkInfo chunk);
    void promise(const ckpt::ChunkInfo &chunk, std::span<const std::uint32_t> here);
    void keep_promise(const ckpt::ChunkInfo &chunk);
    void copy(std::span<const ChunkSource> chunks, std::span<ckpt::BlockCopy> blocks,
              const std::function<void()> &meanwhile);
    void set_hashes(std::uint64_t first, std::span<const ChunkSource> chunks,
                    std::span<const ckpt::BlockCopy> blocks);
    Status add_to_table(std::span<const ChunkSource> chunks);
    void checksum_staged();
    unsigned threads_for(std::uint64_t bytes) const;
    Cpus near_target(unsigned threads) const;
    Status too_small(std::uint64_t needed) const;

    SaveTarget target_;
    std::optional<FreshMemory> fresh_;  ///< none: all pages of the target are there
    unsigned threads_;
    Rank rank_;
    ckpt::ObjectTableWriter table_;
    std::uint64_t end_ = 0;
    std::vector<std::uint8_t> ledger_;
    SharedSums shared_;
    std::unordered_multiset<std::uint64_t> promised_;  ///< to others, and not added yet: hash_of_piece()
    CudaStage *stage_ = nullptr;                       ///< while staged_ has something
    std::vector<Staged> staged_;
    std::chrono::nanoseconds copy_time_{0};
    bool broken_ = false;
};

}  // namespace dlrover::lib
