// SPDX-License-Identifier: Apache-2.0
#include "ckpt/checksum.h"

#include <algorithm>
#include <bit>

namespace dlrover::ckpt {

const BlockKernel &block_kernel() noexcept {
#if defined(__x86_64__)
    static const BlockKernel &best = !__builtin_cpu_supports("avx2") ? sse2_block_kernel
                                     : __builtin_cpu_is("amd")       ? avx2_amd_block_kernel
                                                                     : avx2_block_kernel;
    return best;
#else
    return portable_block_kernel;
#endif
}

std::uint64_t combine_block_hashes(std::span<const std::uint64_t> hashes) {
    if (hashes.size() == 1) return hashes.front();
    static_assert(std::endian::native == std::endian::little, "the format is little-endian");
    return block_kernel().hash(hashes.data(), hashes.size_bytes());
}

std::vector<std::uint64_t> block_hashes(std::span<const std::byte> bytes) {
    std::vector<std::uint64_t> hashes(checksum_blocks(bytes.size()));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        std::size_t at = i * checksum_block_bytes;
        hashes[i] = block_kernel().hash(bytes.data() + at, std::min(checksum_block_bytes, bytes.size() - at));
    }
    return hashes;
}

std::uint64_t chunk_checksum(std::span<const std::byte> bytes) {
    return combine_block_hashes(block_hashes(bytes));
}

}  // namespace dlrover::ckpt
