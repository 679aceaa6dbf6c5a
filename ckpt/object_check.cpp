// SPDX-License-Identifier: Apache-2.0
#include "ckpt/object_check.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ckpt/checksum.h"

namespace dlrover::ckpt {

std::optional<std::uint64_t> checksum_unless(const std::atomic<bool> *stop,
                                             std::span<const std::byte> bytes) {
    std::vector<std::uint64_t> hashes(checksum_blocks(bytes.size()));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        if (stop != nullptr && stop->load(std::memory_order_relaxed)) return std::nullopt;
        std::size_t at = i * checksum_block_bytes;
        hashes[i] = block_kernel().hash(bytes.data() + at, std::min(checksum_block_bytes, bytes.size() - at));
    }
    return combine_block_hashes(hashes);
}

Status check_owner(const ObjectTableView &table, const KnownObject &object) {
    ObjectIdentity wanted = object.who;
    wanted.lineage = table.identity().lineage;
    return check_identity(wanted, table.identity()).with_context("another object arrived");
}

Status check_checksum(const ChunkInfo &chunk, std::uint64_t found) {
    if (found == chunk.checksum) return {};
    return Status(Code::corrupt,
                  "chunk \"" + std::string(chunk.name.substr(0, 200)) + "\" does not match its checksum");
}

/// A part of a code: its bytes say nothing by themselves.
Status check_parity(std::uint64_t found, const ObjectPlace &place) {
    if (found == place.table_xxh3) return {};
    return Status(Code::corrupt, "a parity does not match its checksum");
}

Status verify_object(std::span<const std::byte> memory, const KnownObject &object,
                     const std::atomic<bool> *stop) {
    const ObjectPlace &place = object.place;
    if (object.parity) {
        if (memory.size() != place.data_bytes) return check_parity(~place.table_xxh3, place);
        auto found = checksum_unless(stop, memory);
        return found ? check_parity(*found, place) : Status(Code::stale, "the order was cancelled");
    }
    auto bytes = find_object_table(memory, place);
    if (!bytes) return bytes.take_status();
    auto table = ObjectTableView::parse(*bytes, place.data_bytes);
    if (!table) return table.take_status();
    DLROVER_TRY(check_owner(*table, object));
    for (std::uint64_t i = 0; i < table->count(); ++i) {
        ChunkInfo chunk = table->chunk(i);
        if (chunk.keeper) continue;  // another rank's object has its bytes
        auto checksum = checksum_unless(stop, memory.subspan(chunk.offset, chunk.bytes));
        if (!checksum) return Status(Code::stale, "the order was cancelled");
        DLROVER_TRY(check_checksum(chunk, *checksum));
    }
    return {};
}

}  // namespace dlrover::ckpt
