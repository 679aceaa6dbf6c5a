// SPDX-License-Identifier: Apache-2.0
#include "mover/object_check.h"

#include "ckpt/checksum.h"

namespace dlrover::mover {
namespace {

/// A part of a code: its bytes say nothing by themselves.
Status verify_parity(std::span<const std::byte> memory, const ckpt::ObjectPlace &place) {
    if (memory.size() == place.data_bytes && ckpt::chunk_checksum(memory) == place.table_xxh3) return {};
    return Status(Code::corrupt, "a parity does not match its checksum");
}

}  // namespace

Status verify_object(std::span<const std::byte> memory, const KnownObject &object,
                     const std::atomic<bool> *stop) {
    const ckpt::ObjectPlace &place = object.place;
    if (object.parity) return verify_parity(memory, place);
    auto bytes = ckpt::find_object_table(memory, place);
    if (!bytes) return bytes.take_status();
    auto table = ckpt::ObjectTableView::parse(*bytes, place.data_bytes);
    if (!table) return table.take_status();
    ckpt::ObjectIdentity wanted = object.who;
    wanted.lineage = table->identity().lineage;
    DLROVER_TRY(ckpt::check_identity(wanted, table->identity()).with_context("another object arrived"));
    for (std::uint64_t i = 0; i < table->count(); ++i) {
        ckpt::ChunkInfo chunk = table->chunk(i);
        if (chunk.keeper) continue;  // another rank's object has its bytes
        if (stop != nullptr && stop->load()) return Status(Code::stale, "the order was cancelled");
        if (ckpt::chunk_checksum(memory.subspan(chunk.offset, chunk.bytes)) != chunk.checksum)
            return Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) +
                                             "\" does not match its checksum");
    }
    return {};
}

}  // namespace dlrover::mover
