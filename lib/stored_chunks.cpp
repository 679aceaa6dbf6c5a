// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_chunks.h"

#include <algorithm>
#include <vector>

#include "ckpt/checksum.h"
#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

using ckpt::checksum_block_bytes;

/// A chunk that can be read.
struct Source {
    const RankPieces *pieces;
    std::uint64_t index, bytes, checksum;
    std::byte *to;
    std::uint64_t first_hash;
};

/// What one call reads: a few blocks of one chunk.
struct Window {
    std::size_t source;
    std::uint64_t at, bytes;
};

Status read_window(const Source &source, const Window &window, std::vector<std::uint64_t> &hashes) {
    std::vector<std::byte> scratch(source.to == nullptr ? window.bytes : 0);
    std::span out(source.to == nullptr ? scratch.data() : source.to + window.at, window.bytes);
    DLROVER_TRY(source.pieces->read_bytes(source.index, window.at, out));
    std::uint64_t next = source.first_hash + window.at / checksum_block_bytes;
    for (std::uint64_t at = 0; at < window.bytes; at += checksum_block_bytes) {
        auto n = std::min<std::uint64_t>(checksum_block_bytes, window.bytes - at);
        hashes[next++] = ckpt::block_kernel().hash(out.data() + at, n);
    }
    return {};
}

bool matches(const Source &source, std::span<const std::uint64_t> hashes) {
    if (source.bytes == 0) return ckpt::chunk_checksum({}) == source.checksum;
    auto own = hashes.subspan(source.first_hash, ckpt::checksum_blocks(source.bytes));
    return ckpt::combine_block_hashes(own) == source.checksum;
}

/// All ranks pass over a checkpoint that is called damaged: it has to be wrong twice.
Status check(const Source &source, std::vector<std::uint64_t> &hashes) {
    if (matches(source, hashes)) return {};
    if (!source.pieces->forget(source.index)) return source.pieces->wrong_chunk(source.index);
    for (std::uint64_t at = 0; at < source.bytes; at += window_bytes)
        DLROVER_TRY(read_window(source, {0, at, std::min(window_bytes, source.bytes - at)}, hashes));
    return matches(source, hashes) ? Status() : source.pieces->wrong_chunk(source.index);
}

Status read_sources(std::span<const Source> sources, std::uint64_t blocks, unsigned threads) {
    std::vector<std::uint64_t> hashes(blocks);
    std::vector<Window> windows;
    for (std::size_t i = 0; i < sources.size(); ++i)
        for (std::uint64_t at = 0; at < sources[i].bytes; at += window_bytes)
            windows.push_back({i, at, std::min(window_bytes, sources[i].bytes - at)});
    DLROVER_TRY(parallel_try(windows.size(), threads, [&](std::uint64_t i) {
        return read_window(sources[windows[i].source], windows[i], hashes);
    }));
    for (const Source &source : sources) DLROVER_TRY(check(source, hashes));
    return {};
}

}  // namespace

Status read_chunks(PieceSource &source, std::span<const ChunkRead> reads, unsigned threads) {
    std::vector<ChunkRead> ordered(reads.begin(), reads.end());
    std::stable_sort(ordered.begin(), ordered.end(), [](auto &a, auto &b) { return a.rank < b.rank; });
    return for_ranks(source, std::span<const ChunkRead>(ordered), [&](std::span<const ChunkRead> some) {
        std::vector<Source> sources;
        std::uint64_t blocks = 0;
        for (const ChunkRead &read : some) {
            auto pieces = source.pieces(read.rank);
            if (!pieces) return pieces.take_status();
            ckpt::ChunkInfo chunk = (*pieces)->table().chunk(read.index);
            sources.push_back({*pieces, read.index, chunk.bytes, chunk.checksum, read.to, blocks});
            blocks += ckpt::checksum_blocks(chunk.bytes);
        }
        return read_sources(sources, blocks, threads);
    });
}

}  // namespace dlrover::lib
