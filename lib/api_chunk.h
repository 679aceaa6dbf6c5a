// SPDX-License-Identifier: Apache-2.0
// A chunk as the C interface names it.
#pragma once

#include "ckpt/object_table.h"
#include "lib/dlrover.h"

namespace dlrover::lib {

/// Without place, bytes and checksum. The spans point into `chunk`.
inline Result<ckpt::ChunkInfo> to_info(const dlrover_chunk &chunk) {
    auto dtype = ckpt::to_dtype(chunk.dtype);
    if (!dtype || chunk.ndim > DLROVER_MAX_DIMS || chunk.name == nullptr)
        return Status(Code::invalid_argument, "a chunk's name, type or number of dimensions is wrong");
    ckpt::ChunkInfo info;
    info.name = chunk.name;
    info.dtype = *dtype;
    info.global_shape = {chunk.global_shape, chunk.ndim};
    info.global_offset = {chunk.global_offset, chunk.ndim};
    info.local_shape = {chunk.local_shape, chunk.ndim};
    info.replica = chunk.replica;
    return info;
}

}  // namespace dlrover::lib
