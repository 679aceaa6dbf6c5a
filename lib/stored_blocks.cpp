// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_blocks.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ckpt/checksum.h"
#include "lib/parallel.h"
#include "lib/stored_chunks.h"

namespace dlrover::lib {
namespace {

using ckpt::checksum_block_bytes;

/// What one call reads: a few blocks, one behind the other.
struct Window {
    const BlockRead *read;
    const RankPieces *pieces;
    std::uint64_t at, bytes;
    bool straight;  ///< all of it is wanted, and in one stretch
};

/// `stretch`: where the one begins that the first wanted byte of `next` is in.
void add_window(std::vector<Window> &windows, const Window &next, std::uint64_t stretch) {
    Window *last = windows.empty() ? nullptr : &windows.back();
    bool goes_on = last != nullptr && last->read == next.read && last->straight == next.straight &&
                   last->at + last->bytes == next.at && last->bytes + next.bytes <= window_bytes &&
                   (!next.straight || stretch <= last->at);
    if (goes_on)
        last->bytes += next.bytes;
    else
        windows.push_back(next);
}

void add_windows(std::vector<Window> &windows, const BlockRead &read, const RankPieces &pieces) {
    std::uint64_t chunk_bytes = pieces.table().chunk(read.index).bytes;
    ckpt::BoxRuns runs = read.runs;
    for (std::uint64_t block : read.blocks) {
        std::uint64_t at = block * checksum_block_bytes;
        std::uint64_t bytes = std::min<std::uint64_t>(checksum_block_bytes, chunk_bytes - at);
        runs.skip_to(at);
        bool straight = runs.a() <= at && at + bytes <= runs.a() + runs.bytes();
        add_window(windows, {&read, &pieces, at, bytes, straight}, runs.a());
    }
}

bool matches(const ckpt::ChunkInfo &chunk, std::uint64_t at, std::span<const std::byte> bytes) {
    std::uint64_t block = at / checksum_block_bytes;
    for (; !bytes.empty(); ++block) {
        auto some = bytes.first(std::min(checksum_block_bytes, bytes.size()));
        std::uint64_t right = chunk.blocks.empty() ? chunk.checksum : chunk.blocks[block];
        if (ckpt::block_kernel().hash(some.data(), some.size()) != right) return false;
        bytes = bytes.subspan(some.size());
    }
    return true;
}

/// All ranks pass over a checkpoint that is called damaged: it has to be wrong twice.
Status read_verified(const Window &window, std::span<std::byte> to) {
    const RankPieces &pieces = *window.pieces;
    std::uint64_t index = window.read->index;
    ckpt::ChunkInfo chunk = pieces.table().chunk(index);
    DLROVER_TRY(pieces.read_bytes(index, window.at, to));
    if (matches(chunk, window.at, to)) return {};
    if (!pieces.forget(index)) return pieces.wrong_chunk(index);
    DLROVER_TRY(pieces.read_bytes(index, window.at, to));
    return matches(chunk, window.at, to) ? Status() : pieces.wrong_chunk(index);
}

Status read_window(const Window &window, std::span<std::byte> out) {
    ckpt::BoxRuns runs = window.read->runs;
    runs.skip_to(window.at);
    if (window.straight)
        return read_verified(window, out.subspan(runs.b() + (window.at - runs.a()), window.bytes));
    auto scratch = std::make_unique_for_overwrite<std::byte[]>(window.bytes);
    DLROVER_TRY(read_verified(window, {scratch.get(), window.bytes}));
    for (std::uint64_t end = window.at + window.bytes; !runs.done() && runs.a() < end; runs.next()) {
        std::uint64_t first = std::max(runs.a(), window.at), last = std::min(runs.a() + runs.bytes(), end);
        std::memcpy(out.data() + runs.b() + (first - runs.a()), scratch.get() + (first - window.at),
                    last - first);
    }
    return {};
}

}  // namespace

bool tells_blocks(const ckpt::ChunkInfo &chunk) {
    return !chunk.blocks.empty() || chunk.bytes <= checksum_block_bytes;
}

std::vector<std::uint64_t> blocks_of(ckpt::BoxRuns runs) {
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t at = 0;; at = (blocks.back() + 1) * checksum_block_bytes) {
        runs.skip_to(at);
        if (runs.done()) return blocks;
        blocks.push_back(std::max(runs.a(), at) / checksum_block_bytes);
    }
}

Status read_blocks(PieceSource &source, std::span<const BlockRead> reads, std::span<std::byte> out,
                   unsigned threads) {
    std::vector<Window> windows;
    for (const BlockRead &read : reads) {
        auto pieces = source.pieces(read.rank);
        if (!pieces) return pieces.take_status();
        add_windows(windows, read, **pieces);
    }
    return parallel_try(windows.size(), threads,
                        [&](std::uint64_t i) { return read_window(windows[i], out); });
}

bool VerifiedBlocks::contains(std::uint32_t rank, std::uint64_t index,
                              std::span<const std::uint64_t> blocks) const {
    auto chunk = chunks_.find({rank, index});
    return chunk != chunks_.end() &&
           std::ranges::all_of(blocks, [&](std::uint64_t block) { return chunk->second[block]; });
}

void VerifiedBlocks::add(std::uint32_t rank, std::uint64_t index, std::uint64_t chunk_bytes,
                         std::span<const std::uint64_t> blocks) {
    std::vector<bool> &chunk = chunks_[{rank, index}];
    chunk.resize(ckpt::checksum_blocks(chunk_bytes));
    for (std::uint64_t block : blocks) chunk[block] = true;
}

void VerifiedBlocks::add_whole(std::uint32_t rank, std::uint64_t index, std::uint64_t chunk_bytes) {
    chunks_[{rank, index}].assign(ckpt::checksum_blocks(chunk_bytes), true);
}

}  // namespace dlrover::lib
