// SPDX-License-Identifier: Apache-2.0
// Huge pages for the memory of checkpoints.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace dlrover::ckpt {

/// Where ordinary pages have 4 KiB.
inline constexpr std::uint64_t huge_page_bytes = std::uint64_t{2} << 20;

/// Transparent huge pages for what of the range, mapped from a memfd, is not there yet. They come where the
/// system gives them to shared memory that asks (/sys/kernel/mm/transparent_hugepage/shmem_enabled), and has
/// some.
inline void ask_huge_pages(void *at, std::uint64_t bytes) noexcept {
    if (bytes >= huge_page_bytes) ::madvise(at, bytes, MADV_HUGEPAGE);
}

}  // namespace dlrover::ckpt
