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

struct StorageImage {
    UniqueFd memory;  ///< memfd as long as the file; holes where the chunks go
    std::uint64_t file_bytes = 0;
    std::shared_ptr<const StorageFrame> frame;  ///< says where each chunk goes
    std::uint64_t header_xxh3 = 0;
};

/// `table`: of object.table, checked. `frames`: of files before; the same file comes out whether there is one
/// that fits or not.
Result<StorageImage> make_storage_image(const SealedObject &object, const ObjectTableView &table,
                                        StorageFrames &frames);

}  // namespace dlrover::ckpt
