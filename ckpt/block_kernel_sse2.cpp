// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <emmintrin.h>
#include <string.h>
#include <xxhash.h>

#include "ckpt/block_kernel.h"

namespace {
inline void stream_64(char *to, const char *from) {
    auto *source = reinterpret_cast<const __m128i *>(from);
    auto *target = reinterpret_cast<__m128i *>(to);
    __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2),
            d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
}
}  // namespace
#define STREAM_64(to, from) stream_64(to, from)
#define STREAM_FENCE() _mm_sfence()
#define FETCH_AHEAD(line) _mm_prefetch(line, _MM_HINT_T1)
#include "ckpt/block_kernel_body.inc"

namespace dlrover::ckpt {
const BlockKernel sse2_block_kernel{
    "sse2",          kernel_hash,    kernel_copy_hash<true>, kernel_copy<true>, kernel_hash_begin,
    kernel_hash_add, kernel_hash_end};
}
#endif
