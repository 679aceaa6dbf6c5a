// SPDX-License-Identifier: Apache-2.0
// The inner loops over one block: checksum, copy, and copy with checksum in one pass over memory. Chosen once
// by what the processor can do.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlrover::ckpt {

/// A block to copy, and the hash of what was copied.
struct BlockCopy {
    void *to;  ///< a multiple of 64
    const void *from;
    std::size_t bytes;
    std::uint64_t hash = 0;  ///< filled in
};

/// Blocks that are copied in lockstep at most. Of what follows them in the same call the first lines are
/// fetched while they end.
constexpr std::size_t blocks_at_once = 4;

/// XXH3-64, seed 0, of what comes in parts.
struct alignas(64) PartialHash {
    unsigned char state[640];  ///< libxxhash's, which is 576 bytes
};

struct BlockKernel {
    const char *name;
    /// XXH3-64, seed 0.
    std::uint64_t (*hash)(const void *data, std::size_t bytes);
    /// Copies each of `blocks`, whose ranges do not overlap. Large blocks bypass the cache on the way out;
    /// visible to other processors at return.
    void (*copy_hash)(BlockCopy *blocks, std::size_t count);
    /// Copies alone, to and from any address, otherwise as copy_hash.
    void (*copy)(void *to, const void *from, std::size_t bytes);
    void (*hash_begin)(PartialHash &hash);
    void (*hash_add)(PartialHash &hash, const void *data, std::size_t bytes);
    std::uint64_t (*hash_end)(const PartialHash &hash);
};

extern const BlockKernel portable_block_kernel;
#if defined(__x86_64__)
extern const BlockKernel sse2_block_kernel;
extern const BlockKernel avx2_block_kernel, avx2_amd_block_kernel;
#endif

/// The fastest one for this processor.
const BlockKernel &block_kernel() noexcept;

}  // namespace dlrover::ckpt
