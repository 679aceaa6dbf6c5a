// SPDX-License-Identifier: Apache-2.0
// What a node has already of an object that comes: replicas that its own ranks saved (data parallelism), or
// copies of them. That is not sent again. Pure, but for the memory that it reads and writes.
#pragma once

#include <atomic>
#include <map>
#include <span>
#include <vector>

#include "ckpt/object_check.h"
#include "transport/bulk_wire.h"

namespace dlrover::mover {

/// The bytes of the chunks of objects that are here. Two chunks count as the same when name, place, type,
/// shape and checksum are.
class HereAlready {
  public:
    /// Chunks of the object that lies in `memory`, which must outlive this; nothing of one that is not as
    /// `object` says, or of a parity. Their bytes are not looked at.
    void add(std::span<const std::byte> memory, const ckpt::KnownObject &object);
    /// The largest chunks, at most transport::max_bulk_haves.
    std::vector<transport::BulkHave> list() const;
    /// Writes to the blocks of `memory` that were left out, when the object's table has come: the bytes of
    /// each chunk, and zeros to what lies between chunks. Then every byte is as on the other side. corrupt:
    /// one of them is not here; stale: `stop`, which is asked before each chunk, said so.
    Status fill(std::span<std::byte> memory, const ckpt::ObjectPlace &place,
                std::span<const transport::BulkSpared> spared, const std::atomic<bool> *stop = nullptr) const;

  private:
    std::map<transport::BulkHave, const std::byte *> chunks_;
};

/// The blocks of an object (its data, then its table) of which the other side has every byte. Zeros that lie
/// between two chunks only to align them count as part of the first. None where the table is not as `place`
/// says.
std::vector<transport::BulkSpared> find_spared(std::span<const std::byte> memory,
                                               const ckpt::ObjectPlace &place,
                                               std::span<const transport::BulkHave> haves);

}  // namespace dlrover::mover
