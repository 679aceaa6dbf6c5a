// SPDX-License-Identifier: Apache-2.0
// Parts of chunks read from where they are stored, block by block of their checksums: nothing that is not
// verified is given, and of what is not wanted no more is read than lies in the same blocks.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/box_runs.h"
#include "lib/piece_source.h"

namespace dlrover::lib {

/// Whether its table tells the hash of each of its blocks.
bool tells_blocks(const ckpt::ChunkInfo &chunk);

/// Those that hold a byte of the stretches in the first array, in order.
std::vector<std::uint64_t> blocks_of(ckpt::BoxRuns runs);

/// A part of a chunk that tells_blocks().
struct BlockRead {
    std::uint32_t rank = 0;
    std::uint64_t index = 0;
    ckpt::BoxRuns runs;                 ///< from the chunk to the memory for the part
    std::vector<std::uint64_t> blocks;  ///< blocks_of(runs)
};

/// Reads each of the blocks once, and gives what is wanted of them. corrupt: one does not have its hash, also
/// when it was read once more; what is in `out` is worth nothing then.
Status read_blocks(PieceSource &source, std::span<const BlockRead> reads, std::span<std::byte> out,
                   unsigned threads);

/// Which blocks are known to be right: a bit for each block of a chunk that was read from.
class VerifiedBlocks {
  public:
    bool contains(std::uint32_t rank, std::uint64_t index, std::span<const std::uint64_t> blocks) const;
    void add(std::uint32_t rank, std::uint64_t index, std::uint64_t chunk_bytes,
             std::span<const std::uint64_t> blocks);
    void add_whole(std::uint32_t rank, std::uint64_t index, std::uint64_t chunk_bytes);

  private:
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<bool>> chunks_;
};

}  // namespace dlrover::lib
