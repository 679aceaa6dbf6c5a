// SPDX-License-Identifier: Apache-2.0
#include "mover/object_watch.h"

#include <algorithm>
#include <numeric>

#include "ckpt/checksum.h"

namespace dlrover::mover {
namespace {

using ckpt::checksum_block_bytes;

std::uint64_t overlap(std::uint64_t a, std::uint64_t a_bytes, std::uint64_t b, std::uint64_t b_bytes) {
    std::uint64_t from = std::max(a, b), to = std::min(a + a_bytes, b + b_bytes);
    return to > from ? to - from : 0;
}

}  // namespace

ObjectWatch::ObjectWatch(std::span<const std::byte> memory, ckpt::KnownObject object)
    : memory_(memory), object_(std::move(object)), table_missing_(object_.place.table_bytes) {
    if (!object_.parity || memory_.size() != object_.place.data_bytes) return;
    add_pieces(0, memory_.size());
    by_offset_.resize(pieces_.size());
    std::iota(by_offset_.begin(), by_offset_.end(), 0);
    ready_ = true;
}

void ObjectWatch::add_pieces(std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += checksum_block_bytes)
        pieces_.emplace_back(offset + at, std::min<std::uint64_t>(checksum_block_bytes, bytes - at));
}

/// False: verify() will say what is wrong with it.
bool ObjectWatch::read_table() {
    auto bytes = ckpt::find_object_table(memory_, object_.place);
    if (!bytes) return false;
    auto table = ckpt::ObjectTableView::parse(*bytes, object_.place.data_bytes);
    if (!table) return false;
    table_ = std::move(*table);
    for (std::uint64_t i = 0; i < table_->count(); ++i)
        if (ckpt::ChunkInfo chunk = table_->chunk(i); !chunk.keeper) add_pieces(chunk.offset, chunk.bytes);
    by_offset_.resize(pieces_.size());
    std::iota(by_offset_.begin(), by_offset_.end(), 0);
    std::ranges::sort(by_offset_, {}, [this](std::size_t i) { return pieces_[i].offset; });
    return true;
}

template <typename Do>
void ObjectWatch::for_pieces_in(const Span &span, Do &&act) {
    // None is longer than a block.
    std::uint64_t from = span.offset - std::min<std::uint64_t>(span.offset, checksum_block_bytes);
    auto offset_of = [this](std::size_t i) { return pieces_[i].offset; };
    for (auto it = std::ranges::lower_bound(by_offset_, from, {}, offset_of);
         it != by_offset_.end() && offset_of(*it) < span.offset + span.bytes; ++it) {
        Piece &piece = pieces_[*it];
        std::uint64_t part = overlap(piece.offset, piece.bytes, span.offset, span.bytes);
        if (part > 0) act(piece, part);
    }
}

/// Before there are pieces.
void ObjectWatch::count_early(const Span &span) {
    early_.push_back(span);
    const auto &place = object_.place;
    table_missing_ -=
        std::min(table_missing_, overlap(span.offset, span.bytes, place.table_offset, place.table_bytes));
    if (table_missing_ > 0) return;
    if (!read_table()) {
        table_missing_ = 1;  // no more of it comes
        return;
    }
    for (const Span &one :
         early_)  // these are no longer in the cache: verify() looks at what is whole by them
        for_pieces_in(one, [](Piece &piece, std::uint64_t part) { piece.missing -= part; });
    early_ = {};
    ready_.store(true, std::memory_order_release);
}

/// The part of `span` that is the piece's goes into its hash, if what is before it did.
void ObjectWatch::follow(Following &following, const Piece &piece, const Span &span) {
    std::uint64_t from = std::max(piece.offset, span.offset);
    std::uint64_t to = std::min(piece.offset + piece.bytes, span.offset + span.bytes);
    if (from == piece.offset) {
        following.piece = &piece;
        ckpt::block_kernel().hash_begin(following.hash);
    } else if (following.piece != &piece || following.next != from) {
        return;
    }
    ckpt::block_kernel().hash_add(following.hash, memory_.data() + from, to - from);
    following.next = to;
}

void ObjectWatch::count(Following &following, Piece &piece, const Span &span, std::uint64_t part) {
    bool whole = part == piece.bytes;
    if (!whole) follow(following, piece, span);
    if (piece.missing.fetch_sub(part, std::memory_order_acq_rel) != part) return;
    bool followed = !whole && following.piece == &piece && following.next == piece.offset + piece.bytes;
    piece.hash = followed ? ckpt::block_kernel().hash_end(following.hash)
                          : ckpt::block_kernel().hash(memory_.data() + piece.offset, piece.bytes);
}

void ObjectWatch::arrived(std::uint16_t stream, std::uint64_t offset, std::uint64_t bytes) {
    Span span{offset, bytes};
    if (!ready_.load(std::memory_order_acquire)) {
        std::lock_guard lock(mutex_);
        if (!ready_) return count_early(span);
    }
    Following &following = following_[stream];
    for_pieces_in(span, [&](Piece &piece, std::uint64_t part) { count(following, piece, span, part); });
}

/// Of the chunk whose pieces begin with `first`.
Result<std::uint64_t> ObjectWatch::checksum(std::size_t first, std::uint64_t bytes,
                                            const std::atomic<bool> *stop) {
    if (bytes == 0) return ckpt::chunk_checksum({});
    std::vector<std::uint64_t> hashes(ckpt::checksum_blocks(bytes));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        if (stop != nullptr && stop->load(std::memory_order_relaxed))
            return Status(Code::stale, "the order was cancelled");
        const Piece &piece = pieces_[first + i];
        hashes[i] =
            piece.hash ? *piece.hash : ckpt::block_kernel().hash(memory_.data() + piece.offset, piece.bytes);
    }
    return ckpt::combine_block_hashes(hashes);
}

Status ObjectWatch::verify(const std::atomic<bool> *stop) {
    if (!ready_) return ckpt::verify_object(memory_, object_, stop);
    if (object_.parity) {
        auto found = checksum(0, memory_.size(), stop);
        if (!found) return found.take_status();
        return ckpt::check_parity(*found, object_.place);
    }
    DLROVER_TRY(ckpt::check_owner(*table_, object_));
    std::size_t next = 0;
    for (std::uint64_t i = 0; i < table_->count(); ++i) {
        ckpt::ChunkInfo chunk = table_->chunk(i);
        if (chunk.keeper) continue;
        auto found = checksum(next, chunk.bytes, stop);
        if (!found) return found.take_status();
        DLROVER_TRY(ckpt::check_checksum(chunk, *found));
        next += chunk.bytes == 0 ? 0 : ckpt::checksum_blocks(chunk.bytes);
    }
    return {};
}

}  // namespace dlrover::mover
