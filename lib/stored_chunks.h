// SPDX-License-Identifier: Apache-2.0
// Whole chunks read from storage, every byte verified, by several threads.
#pragma once

#include <span>

#include "lib/stored_files.h"

namespace dlrover::lib {

/// A chunk of that rank's file, which must be stored there.
struct ChunkRead {
    std::uint32_t rank = 0;
    std::uint64_t index = 0;
    std::byte *to = nullptr;  ///< none: it is only verified
};

/// What of several ranks' files is used at once.
inline constexpr std::size_t files_at_once = 64;

/// corrupt: one does not have its checksum; the sentence names file and chunk. After a failure what lies at
/// the places is worth nothing.
Status read_chunks(StoredFiles &files, std::span<const ChunkRead> reads, unsigned threads);

/// Calls body with parts of `items`, which are in order of their member `rank`, so that none has more than
/// files_at_once ranks.
template <typename Item, typename Body>
Status for_ranks(StoredFiles &files, std::span<Item> items, Body body) {
    while (!items.empty()) {
        std::size_t n = 0, ranks = 0;
        for (; n < items.size(); ++n)
            if ((n == 0 || items[n].rank != items[n - 1].rank) && ++ranks > files_at_once) break;
        DLROVER_TRY(body(items.first(n)));
        files.release();
        items = items.subspan(n);
    }
    return {};
}

}  // namespace dlrover::lib
