// SPDX-License-Identifier: Apache-2.0
// The table of a checkpoint object, as a user's process left it in its slot. The first byte shifts the table
// in memory.
#include "ckpt/object_table.h"

#include <cstring>

#include "ckpt/checksum.h"
#include "fuzz.h"

namespace dlrover::fuzz {

bool run(std::span<const std::uint8_t> input) {
    if (input.empty()) return false;
    constexpr std::uint64_t data_bytes = 4u << 20;
    std::size_t shift = input[0] % 8;
    std::vector<std::uint8_t> memory(shift + input.size());
    std::memcpy(memory.data() + shift, input.data() + 1, input.size() - 1);
    auto view = ckpt::ObjectTableView::parse({memory.data() + shift, input.size() - 1}, data_bytes);
    if (!view) return false;
    view->identity();
    for (std::uint64_t i = 0; i < view->count(); ++i) {
        auto chunk = view->chunk(i);
        require(chunk.keeper || (chunk.offset <= data_bytes && chunk.bytes <= data_bytes - chunk.offset),
                "a chunk lies in the data, or elsewhere");
        require(chunk.blocks.empty() || chunk.blocks.size() == ckpt::checksum_blocks(chunk.bytes),
                "every block has a hash, or none");
    }
    return true;
}

std::vector<Bytes> seeds() {
    auto make = [](std::size_t chunks, bool kept = false, std::uint64_t rows = 4) {
        ckpt::ObjectTableWriter writer({TrainStep(5), Rank(1), 4, {Term(1), 2}, "lab/1000/job 7"});
        for (std::size_t i = 0; i < chunks; ++i) {
            std::string name = "layer." + std::to_string(i);
            std::uint64_t shape[] = {rows, 8}, offset[] = {0, 0};
            ckpt::ChunkInfo chunk;
            chunk.name = name;
            chunk.dtype = ckpt::format::DType::Float32;
            chunk.global_shape = shape;
            chunk.global_offset = offset;
            chunk.local_shape = shape;
            if (kept) {
                chunk.keeper = Rank(2);
                chunk.replica = 1;
            } else {
                chunk.offset = i * 128;
            }
            chunk.bytes = rows * 32;
            require(kept ? writer.add(chunk).ok() : writer.add_unhashed(chunk).ok(),
                    "the writer takes a proper chunk");
            std::vector<std::uint64_t> hashes(ckpt::checksum_blocks(chunk.bytes), i);
            if (!kept) writer.set_hashes(i, hashes);
        }
        require(writer.set_skeleton("{}").ok(), "the writer takes a skeleton");
        auto table = writer.finish();
        require(table.ok(), "the writer finishes");
        table->insert(table->begin(), static_cast<std::uint8_t>(chunks));
        return *table;
    };
    return {make(0), make(1), make(5), make(3, true), make(2, false, 100'000)};
}

}  // namespace dlrover::fuzz
