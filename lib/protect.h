// SPDX-License-Identifier: Apache-2.0
// The memory that a program has registered to be saved and filled again.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/global_tensors.h"
#include "lib/restore.h"
#include "lib/save.h"

namespace dlrover::lib {

/// Registered memory: one contiguous piece of a global array, or this rank's own (all of its array).
struct ProtectedPiece {
    std::string name;
    ckpt::DType dtype = ckpt::DType::Bytes;
    std::vector<std::uint64_t> global_shape, global_offset, local_shape;
    std::byte *data = nullptr;  ///< the program's; nullptr only where there are no elements
    std::uint64_t bytes = 0;
};

/// A checkpoint that another number of ranks has saved.
struct OtherWorld {
    std::uint64_t step = 0;
    std::uint32_t saved_by = 0, world_size = 0;
};

/// Pieces by id. Not thread-safe: the context's protected_mutex.
class ProtectedMemory {
  public:
    /// This rank's own memory of `count` elements.
    Status protect(int id, void *data, std::uint64_t count, std::uint32_t dtype);
    /// A piece of a global array. Replaces what had the id; a refused piece changes nothing. `bytes` is
    /// filled in.
    Status protect_array(int id, ProtectedPiece piece);
    /// not_found: nothing has this id.
    Status unprotect(int id);

    /// What a save must ask for; 0: nothing is protected.
    std::uint64_t save_bound() const;
    /// For ObjectWriter::add(); views into this object. Refused when two ids are one piece, or there is none.
    Result<std::vector<ChunkSource>> sources() const;

    /// Elements saved under this id. not_found: none.
    Result<std::uint64_t> saved_count(const ObjectReader &saved, int id) const;
    /// Fills all of it, after every piece was found to be what was saved.
    Status fill(const ObjectReader &saved, unsigned threads) const;

    /// The same two from what another number of ranks has saved: arrays only, put together by their places.
    /// unsupported: this rank's own memory is protected, too, or an array is no one tensor there. While they
    /// are read, as much memory again is needed: a failure leaves the program's as it was.
    Status gather(GlobalTensors &saved, const OtherWorld &world) const;
    Result<std::uint64_t> gathered_count(GlobalTensors &saved, const OtherWorld &world, int id) const;

  private:
    Status put(int id, ProtectedPiece piece);
    Status check_distinct() const;
    Status check_pieces() const;
    Status check_gather(GlobalTensors &saved, const OtherWorld &world) const;
    static bool is_own(const ProtectedPiece &piece);

    std::map<int, ProtectedPiece> pieces_;
    mutable bool distinct_ = true;  ///< no two of pieces_ are one piece, as far as was looked
};

}  // namespace dlrover::lib
