// SPDX-License-Identifier: Apache-2.0
// The footer of a checkpoint file on storage that others may have written to. The last 8 bytes are the file's
// length.
#include <cstddef>
#include <cstring>

#include "ckpt/block_kernel.h"
#include "fuzz.h"
#include "lib/file_format.h"

namespace dlrover::fuzz {

bool run(std::span<const std::uint8_t> input) {
    lib::FileFooter footer;
    std::uint64_t file_bytes;
    if (input.size() != sizeof footer + sizeof file_bytes) return false;
    std::memcpy(&footer, input.data(), sizeof footer);
    std::memcpy(&file_bytes, input.data() + sizeof footer, sizeof file_bytes);
    if (file_bytes < sizeof footer) return false;  // it was read from the file
    // Whoever can write the file can also sum it up.
    footer.footer_xxh3 = ckpt::block_kernel().hash(&footer, offsetof(lib::FileFooter, footer_xxh3));
    if (!lib::check_footer(footer, file_bytes).ok()) return false;
    auto inside = [&](std::uint64_t at, std::uint64_t bytes) {
        return at <= file_bytes && bytes <= file_bytes - at;
    };
    require(inside(0, footer.data_bytes), "data lies in the file");
    require(inside(footer.table_offset, footer.table_bytes), "the table lies in the file");
    require(inside(footer.ledger_offset, footer.ledger_bytes), "the ledger lies in the file");
    return true;
}

std::vector<Bytes> seeds() {
    lib::ObjectLayout layout{};
    layout.data_bytes = 4096;
    layout.table_offset = 4096;
    layout.table_bytes = 512;
    auto footer = lib::make_footer(layout, 4608);
    std::uint64_t file_bytes = footer.ledger_offset + footer.ledger_bytes + sizeof footer;
    Bytes seed(sizeof footer + sizeof file_bytes);
    std::memcpy(seed.data(), &footer, sizeof footer);
    std::memcpy(seed.data() + sizeof footer, &file_bytes, sizeof file_bytes);
    return {seed};
}

}  // namespace dlrover::fuzz
