// SPDX-License-Identifier: Apache-2.0
// Everything of a rank's file on storage but the chunks' bytes: made in memory, by HDF5.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/object_table.h"
#include "ckpt/storage_frame.h"

namespace dlrover::ckpt {

/// A sealed object as it lies in memory. Views: what they point to outlives the call and does not change.
struct SealedObject {
    std::span<const std::byte> data;  ///< the chunks, at the offsets of the table
    std::span<const std::uint8_t> table, ledger;
    /// Where each chunk's bytes are, one after another of the table, when they are not in `data`.
    std::span<const std::byte *const> scattered = {};
};

/// Where the chunks go: known before there is a frame, so that they can be written while it is being made.
/// The chunks, with zeros between them, are all there is in [begin, end), multiples of 4096.
struct ChunkPlaces {
    std::uint64_t begin = 2 * storage_block_bytes, end = begin;  ///< HDF5's file begins before
    std::vector<std::uint64_t> of;  ///< each chunk's offset; 0 where it is empty, or not_stored
};
ChunkPlaces place_chunks(const ObjectTableView &table);

struct StorageImage {
    UniqueFd memory;  ///< memfd as long as the file; a hole where the chunks go
    std::uint64_t file_bytes = 0;
    std::uint64_t header_xxh3 = 0;
};

/// `table`: of object.table, checked. `places`: place_chunks(table). `frames`: of files before; the same file
/// comes out whether there is one that fits or not.
Result<StorageImage> make_storage_image(const SealedObject &object, const ObjectTableView &table,
                                        const ChunkPlaces &places, StorageFrames &frames);

}  // namespace dlrover::ckpt
