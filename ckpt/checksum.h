// SPDX-License-Identifier: Apache-2.0
// The checksum of a chunk: made of the XXH3-64 of its blocks, so that several threads can share a large
// chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/block_kernel.h"

namespace dlrover::ckpt {

inline constexpr std::size_t checksum_block_bytes = std::size_t{1} << 20;

constexpr std::uint64_t checksum_blocks(std::uint64_t bytes) noexcept {
    return bytes == 0 ? 1 : (bytes - 1) / checksum_block_bytes + 1;
}

/// One block: its hash. More: the XXH3-64 of the blocks' hashes, each as 8 bytes little-endian.
/// Precondition: at least one hash.
std::uint64_t combine_block_hashes(std::span<const std::uint64_t> hashes);

/// Of all blocks of a chunk, one at least, by this thread.
std::vector<std::uint64_t> block_hashes(std::span<const std::byte> bytes);

/// Checksum of a whole chunk, by this thread.
std::uint64_t chunk_checksum(std::span<const std::byte> bytes);

}  // namespace dlrover::ckpt
