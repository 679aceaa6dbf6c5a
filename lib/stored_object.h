// SPDX-License-Identifier: Apache-2.0
// One rank's object read from storage into private memory, where it is as in a slot.
#pragma once

#include "ckpt/mapping.h"
#include "lib/store.h"
#include "lib/stored_files.h"

namespace dlrover::lib {

struct StoredObject {
    ckpt::Mapping memory;  ///< read-only
    ObjectLayout layout;
    std::vector<const std::byte *> places;  ///< of each chunk
};

/// Every chunk verified, and replicas, which are not in this rank's file, fetched from the file of a rank
/// that has the same piece: the same bytes, or where no file has those, the only bytes that are stored for
/// it. Precondition: rank < files.ranks().
Result<StoredObject> read_stored_object(StoredFiles &files, std::uint32_t rank, unsigned threads);

/// One chunk of that rank's object, verified; a replica as above. Precondition: the rank's table has it.
Status read_stored_chunk(StoredFiles &files, std::uint32_t rank, std::uint64_t index, std::byte *out,
                         unsigned threads);

/// An object without chunks.
Result<StoredObject> empty_object(ckpt::ObjectIdentity who, std::string_view skeleton,
                                  std::span<const std::uint8_t> ledger);

/// For a rank that takes no object from there as its own: no chunks; skeleton and ledger of the rank of its
/// number, in a world of another size of rank 0.
Result<StoredObject> empty_stored_object(StoredFiles &files, std::uint32_t rank, std::uint32_t world_size);

}  // namespace dlrover::lib
