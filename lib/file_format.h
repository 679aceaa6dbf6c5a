// SPDX-License-Identifier: Apache-2.0
// The last bytes of a checkpoint file: where the object's parts are.
#pragma once

#include <cstring>
#include <string>

#include "base/status.h"
#include "lib/store.h"

namespace dlrover::lib {

/// Little-endian, without gaps.
struct FileFooter {
    char magic[8];
    std::uint32_t version, reserved;
    std::uint64_t train_step, data_bytes, table_offset, table_bytes, table_xxh3;
    std::uint64_t ledger_offset, ledger_bytes, ledger_xxh3;
    std::uint64_t zero[5];
    std::uint64_t footer_xxh3;  ///< of the bytes before it
};
static_assert(sizeof(FileFooter) == 128);

FileFooter make_footer(const ObjectLayout &layout, std::uint64_t ledger_offset);
/// Checks the footer against the file's length and its own checksum.
Status check_footer(const FileFooter &footer, std::uint64_t file_bytes);

}  // namespace dlrover::lib
