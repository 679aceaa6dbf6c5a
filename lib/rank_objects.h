// SPDX-License-Identifier: Apache-2.0
// What each rank put into a checkpoint: what is no one tensor of all ranks is found here alone.
#pragma once

#include <memory>
#include <span>

#include "ckpt/object_table.h"

namespace dlrover::lib {

class ObjectReader;
class PieceSource;

/// One thread at a time. A rank that did not save it is invalid_argument; one that is out of reach
/// unsupported.
class RankObjects {
  public:
    virtual ~RankObjects() = default;
    virtual Result<std::uint64_t> count(std::uint32_t rank) = 0;
    /// Views live as long as this.
    virtual Result<ckpt::ChunkInfo> chunk(std::uint32_t rank, std::uint64_t index) = 0;
    virtual Result<std::string_view> skeleton(std::uint32_t rank) = 0;
    /// The whole chunk, verified, into memory of its size. corrupt: damaged.
    virtual Status read(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out) = 0;
};

/// From memory and plain files: the object of rank `own` alone. `object` outlives this.
std::unique_ptr<RankObjects> own_object(const ObjectReader &object, std::uint32_t own);

/// Every rank's. Tables are read when they are asked for.
std::unique_ptr<RankObjects> all_objects(std::shared_ptr<PieceSource> source, unsigned threads);

}  // namespace dlrover::lib
