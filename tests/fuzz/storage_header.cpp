// SPDX-License-Identifier: Apache-2.0
// The header of a rank's file on storage that others may have written to. The input is the header's fields,
// then the file's length.
#include "ckpt/storage_header.h"

#include <cstring>

#include "fuzz.h"

namespace dlrover::fuzz {

bool run(std::span<const std::uint8_t> input) {
    ckpt::StorageHeader fields;
    std::uint64_t file_bytes;
    if (input.size() != sizeof fields + sizeof file_bytes) return false;
    std::memcpy(&fields, input.data(), sizeof fields);
    std::memcpy(&file_bytes, input.data() + sizeof fields, sizeof file_bytes);
    // Sums up, as whoever can write the file can.
    auto header = ckpt::decode_storage_header(ckpt::encode_storage_header(fields), file_bytes);
    if (!header) return false;
    auto inside = [&](std::uint64_t at, std::uint64_t bytes) {
        return bytes == 0 ||
               (at >= ckpt::storage_block_bytes && at <= file_bytes && bytes <= file_bytes - at);
    };
    require(inside(header->places_offset, header->chunk_count * 8), "the places lie in the file");
    require(inside(header->table_offset, header->table_bytes), "the table lies in the file");
    require(inside(header->ledger_offset, header->ledger_bytes), "the ledger lies in the file");
    std::vector<ckpt::Extent> extents{{header->places_offset, header->term},
                                      {header->rest_xxh3, header->train_step}};
    auto gaps = ckpt::gaps_between(extents, file_bytes);
    for (std::size_t i = 0; gaps.ok() && i < gaps->size(); ++i)
        require(inside((*gaps)[i].offset, (*gaps)[i].bytes), "gaps lie in the file");
    return true;
}

std::vector<Bytes> seeds() {
    ckpt::StorageHeader fields{};
    std::uint64_t file_bytes = fields.file_bytes = 20000;
    fields.world_size = 1;
    fields.chunk_count = 4;
    fields.places_offset = 5000;
    fields.table_offset = 6000;
    fields.table_bytes = 14000;
    fields.ledger_offset = 4096;
    fields.ledger_bytes = 3;
    Bytes seed(sizeof fields + sizeof file_bytes);
    std::memcpy(seed.data(), &fields, sizeof fields);
    std::memcpy(seed.data() + sizeof fields, &file_bytes, sizeof file_bytes);
    return {seed};
}

}  // namespace dlrover::fuzz
