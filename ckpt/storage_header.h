// SPDX-License-Identifier: Apache-2.0
// The first 4096 bytes of a rank's file on storage (docs/format-storage.md): HDF5 leaves them to us, so that
// a file can be read and checked without HDF5.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace dlrover::ckpt {

inline constexpr std::size_t storage_block_bytes = 4096;
/// In the list of places: the chunk has no bytes in this file.
inline constexpr std::uint64_t not_stored = UINT64_MAX;

/// Little-endian, without gaps. Offsets count from the start of the file.
struct StorageHeader {
    char magic[8];
    std::uint32_t version, reserved;
    std::uint64_t file_bytes;
    std::uint64_t train_step, term, generation_number;
    std::uint32_t rank, world_size;
    std::uint64_t chunk_count;
    std::uint64_t places_offset, places_xxh3;  ///< chunk_count x u64: where each chunk's bytes are
    std::uint64_t table_offset, table_bytes, table_xxh3;
    std::uint64_t ledger_offset, ledger_bytes, ledger_xxh3;
    std::uint64_t rest_xxh3;  ///< of everything after the first 4096 bytes but the chunks
};
static_assert(sizeof(StorageHeader) == 136);

/// The block: header, zeros, and its XXH3-64 in the last 8 bytes. Sets magic and version.
std::vector<std::uint8_t> encode_storage_header(StorageHeader header);
/// Trusts nothing: what is accepted lies within `file_bytes`, the true length of the file. Precondition:
/// block.size() == storage_block_bytes.
Result<StorageHeader> decode_storage_header(std::span<const std::uint8_t> block, std::uint64_t file_bytes);
/// The checksum in its last 8 bytes: with it a manifest names the whole file.
std::uint64_t storage_header_xxh3(std::span<const std::uint8_t> block);

/// Bytes [offset, offset + bytes) of a file.
struct Extent {
    std::uint64_t offset, bytes;
};
/// What of [storage_block_bytes, file_bytes) no extent covers, in order. corrupt: extents overlap or lie
/// outside. Sorts `extents`.
Result<std::vector<Extent>> gaps_between(std::vector<Extent> &extents, std::uint64_t file_bytes);

}  // namespace dlrover::ckpt
