// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_header.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ckpt/block_kernel.h"
#include "ckpt/format_version.h"
#include "ckpt/object_table.h"

namespace dlrover::ckpt {
namespace {

constexpr char storage_magic[8] = {'D', 'L', 'R', 'S', 'T', 'O', 'R', '1'};
constexpr std::uint32_t storage_version = 1;
constexpr std::size_t checksum_at = storage_block_bytes - sizeof(std::uint64_t);

bool inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t file_bytes) {
    if (bytes == 0) return true;
    return offset >= storage_block_bytes && offset <= file_bytes && bytes <= file_bytes - offset;
}

Status check_header(const StorageHeader &header, std::uint64_t file_bytes) {
    if (header.file_bytes != file_bytes)
        return Status(Code::corrupt, "the file has " + std::to_string(file_bytes) + " bytes instead of " +
                                         std::to_string(header.file_bytes));
    if (header.chunk_count > max_chunks || header.table_bytes > max_table_bytes ||
        header.ledger_bytes > max_ledger_bytes)
        return Status(Code::corrupt, "a length in the file's header is beyond its limit");
    if (!inside(header.places_offset, header.chunk_count * sizeof(std::uint64_t), file_bytes) ||
        !inside(header.table_offset, header.table_bytes, file_bytes) ||
        !inside(header.ledger_offset, header.ledger_bytes, file_bytes))
        return Status(Code::corrupt, "the file's header points outside the file");
    if (header.world_size == 0 || header.rank >= header.world_size)
        return Status(Code::corrupt, "the file's header names a rank outside its world");
    return {};
}

}  // namespace

std::vector<std::uint8_t> encode_storage_header(StorageHeader header) {
    std::memcpy(header.magic, storage_magic, sizeof storage_magic);
    header.version = storage_version;
    header.reserved = 0;
    std::vector<std::uint8_t> block(storage_block_bytes);
    std::memcpy(block.data(), &header, sizeof header);
    std::uint64_t hash = block_kernel().hash(block.data(), checksum_at);
    std::memcpy(block.data() + checksum_at, &hash, sizeof hash);
    return block;
}

std::uint64_t storage_header_xxh3(std::span<const std::uint8_t> block) {
    std::uint64_t hash;
    std::memcpy(&hash, block.data() + checksum_at, sizeof hash);
    return hash;
}

Result<StorageHeader> decode_storage_header(std::span<const std::uint8_t> block, std::uint64_t file_bytes) {
    StorageHeader header;
    std::memcpy(&header, block.data(), sizeof header);
    if (std::memcmp(header.magic, storage_magic, sizeof storage_magic) != 0)
        return Status(Code::corrupt, "not a rank's file of a checkpoint");
    if (storage_header_xxh3(block) != block_kernel().hash(block.data(), checksum_at))
        return Status(Code::corrupt, "the checksum of the file's header is wrong");
    if (header.version != storage_version)
        return other_version("a checkpoint's file", header.version, storage_version);
    DLROVER_TRY(check_header(header, file_bytes));
    return header;
}

Result<std::vector<Extent>> gaps_between(std::vector<Extent> &extents, std::uint64_t file_bytes) {
    std::sort(extents.begin(), extents.end(), [](auto &a, auto &b) { return a.offset < b.offset; });
    std::vector<Extent> gaps;
    std::uint64_t at = storage_block_bytes;
    for (const Extent &extent : extents) {
        if (extent.bytes == 0) continue;
        if (extent.offset < at) return Status(Code::corrupt, "two chunks share bytes of the file");
        if (!inside(extent.offset, extent.bytes, file_bytes))
            return Status(Code::corrupt, "a chunk lies outside the file");
        if (extent.offset > at) gaps.push_back({at, extent.offset - at});
        at = extent.offset + extent.bytes;
    }
    if (at < file_bytes) gaps.push_back({at, file_bytes - at});
    return gaps;
}

}  // namespace dlrover::ckpt
