// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#include "ckpt/block_kernel.h"

#define STREAM_64(to, from) memcpy(to, from, 64)
#define STREAM_FENCE() __atomic_thread_fence(__ATOMIC_RELEASE)
#define FETCH_AHEAD(line) __builtin_prefetch(line, 0, 2)
#include "ckpt/block_kernel_body.inc"

namespace dlrover::ckpt {
const BlockKernel portable_block_kernel{"portable",        kernel_hash,       kernel_copy_hash<true>,
                                        kernel_copy<true>, kernel_hash_begin, kernel_hash_add,
                                        kernel_hash_end};
}
