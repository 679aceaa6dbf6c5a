// SPDX-License-Identifier: Apache-2.0
// Whole chunks read from where they are stored, every byte verified, by several threads.
#pragma once

#include <span>

#include "ckpt/checksum.h"
#include "lib/piece_source.h"

namespace dlrover::lib {

/// A chunk of that rank's, which must be with it.
struct ChunkRead {
    std::uint32_t rank = 0;
    std::uint64_t index = 0;
    std::byte *to = nullptr;  ///< none: it is only verified
};

/// One call reads no more of a chunk: whole blocks of it.
inline constexpr std::uint64_t window_bytes = 8 * ckpt::checksum_block_bytes;

/// What of several ranks' pieces is used at once.
inline constexpr std::size_t files_at_once = 64;

/// corrupt: one does not have its checksum; the sentence names it. After a failure what lies at
/// the places is worth nothing.
Status read_chunks(PieceSource &source, std::span<const ChunkRead> reads, unsigned threads);

/// Calls body with parts of `items`, which are in order of their member `rank`, so that none has more than
/// files_at_once ranks.
template <typename Item, typename Body>
Status for_ranks(PieceSource &source, std::span<Item> items, Body body) {
    while (!items.empty()) {
        std::size_t n = 0, ranks = 0;
        for (; n < items.size(); ++n)
            if ((n == 0 || items[n].rank != items[n - 1].rank) && ++ranks > files_at_once) break;
        DLROVER_TRY(body(items.first(n)));
        source.release();
        items = items.subspan(n);
    }
    return {};
}

}  // namespace dlrover::lib
