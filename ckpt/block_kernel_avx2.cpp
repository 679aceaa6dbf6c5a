// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "ckpt/block_kernel.h"

namespace {
inline void stream_64(char *to, const char *from) {
    auto *source = reinterpret_cast<const __m256i *>(from);
    auto *target = reinterpret_cast<__m256i *>(to);
    __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
}
}  // namespace
#define STREAM_64(to, from) stream_64(to, from)
#define STREAM_FENCE() _mm_sfence()
#include "ckpt/block_kernel_body.inc"

namespace dlrover::ckpt {
const BlockKernel avx2_block_kernel{"avx2", kernel_hash, kernel_copy_hash};
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
