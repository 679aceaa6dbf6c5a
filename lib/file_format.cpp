// SPDX-License-Identifier: Apache-2.0
#include "lib/file_format.h"

#include <cstddef>

#include "ckpt/block_kernel.h"
#include "ckpt/format_version.h"
#include "ckpt/object_table.h"

namespace dlrover::lib {
namespace {

constexpr char file_magic[8] = {'D', 'L', 'R', 'F', 'I', 'L', 'E', '1'};
constexpr std::uint32_t file_version = 1;

std::uint64_t footer_hash(const FileFooter &footer) {
    return ckpt::block_kernel().hash(&footer, offsetof(FileFooter, footer_xxh3));
}

bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t whole) {
    return length <= whole && offset <= whole - length;
}

}  // namespace

FileFooter make_footer(const ObjectLayout &layout, std::uint64_t ledger_offset) {
    FileFooter footer{};
    std::memcpy(footer.magic, file_magic, sizeof file_magic);
    footer.version = file_version;
    footer.train_step = layout.train_step.value();
    footer.data_bytes = layout.data_bytes;
    footer.table_offset = layout.table_offset;
    footer.table_bytes = layout.table_bytes;
    footer.table_xxh3 = layout.table_xxh3;
    footer.ledger_offset = ledger_offset;
    footer.ledger_bytes = layout.ledger.size();
    footer.ledger_xxh3 = ckpt::block_kernel().hash(layout.ledger.data(), layout.ledger.size());
    footer.footer_xxh3 = footer_hash(footer);
    return footer;
}

Status check_footer(const FileFooter &footer, std::uint64_t file_bytes) {
    if (std::memcmp(footer.magic, file_magic, sizeof file_magic) != 0)
        return Status(Code::corrupt, "not a checkpoint file, or cut short");
    if (footer.footer_xxh3 != footer_hash(footer))
        return Status(Code::corrupt, "the footer's checksum is wrong");
    if (footer.version != file_version)
        return ckpt::other_version("a checkpoint file", footer.version, file_version);
    std::uint64_t content = file_bytes - sizeof(FileFooter);
    if (footer.data_bytes > content || !inside(footer.table_offset, footer.table_bytes, content) ||
        !inside(footer.ledger_offset, footer.ledger_bytes, content) ||
        footer.ledger_bytes > ckpt::max_ledger_bytes)
        return Status(Code::corrupt, "the footer points outside the file");
    return {};
}

}  // namespace dlrover::lib
