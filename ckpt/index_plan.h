// SPDX-License-Identifier: Apache-2.0
// Which global tensors a checkpoint's chunks make up. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/object_table.h"

namespace dlrover::ckpt {

/// A chunk of the index: chunk `index` of rank `rank`'s table.
struct ChunkRef {
    Rank rank;
    std::uint64_t index = 0;
};

/// A global tensor of which every element is in exactly one of `pieces`.
struct GlobalTensor {
    std::string name;
    DType dtype = DType::Bytes;
    std::vector<std::uint64_t> shape;
    std::vector<ChunkRef> pieces;  ///< in order of rank; one for a tensor without elements
};

struct IndexPlan {
    std::vector<GlobalTensor> tensors;  ///< in order of name
    std::vector<std::string>
        left_out;  ///< names that are no one tensor: ranks disagree, or a part is missing
};

/// `tables`: one per rank, in order; chunks with replica 0 count. Where several ranks have the same piece
/// with the same checksum, the lowest rank's is taken; with different checksums the name is a value of each
/// rank's own, and left out.
IndexPlan plan_index(const std::vector<const ObjectTableView *> &tables);

}  // namespace dlrover::ckpt
