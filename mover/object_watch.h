// SPDX-License-Identifier: Apache-2.0
// Compares an object with its checksums while it comes: each part is read once, just after it was written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/block_kernel.h"
#include "ckpt/object_check.h"
#include "transport/bulk_wire.h"

namespace dlrover::mover {

/// What cannot be looked at on its way (what came before the object's table, what was filled in) is looked at
/// by verify().
class ObjectWatch {
  public:
    /// `memory`, from the object's start to its table's end, outlives it.
    ObjectWatch(std::span<const std::byte> memory, ckpt::KnownObject object);
    ObjectWatch(const ObjectWatch &) = delete;
    ObjectWatch &operator=(const ObjectWatch &) = delete;

    /// These bytes are there, and do not change any more. No byte is told twice. Thread: any, several at
    /// once, but one of a stream. Precondition: stream < transport::max_bulk_streams.
    void arrived(std::uint16_t stream, std::uint64_t offset, std::uint64_t bytes);
    /// All bytes are there: as ckpt::verify_object(). After the last arrived(), which happened before.
    Status verify(const std::atomic<bool> *stop = nullptr);

  private:
    /// What has a hash of its own: a block of a chunk, or of a parity.
    struct Piece {
        Piece(std::uint64_t o, std::uint64_t b) : offset(o), bytes(b), missing(b) {}
        Piece(Piece &&other) noexcept
            : offset(other.offset), bytes(other.bytes), missing(other.missing.load()), hash(other.hash) {}
        std::uint64_t offset, bytes;
        std::atomic<std::uint64_t> missing;
        std::optional<std::uint64_t> hash;
    };
    /// A piece whose parts come by one stream, in order: each is hashed while it is in the cache.
    struct Following {
        const Piece *piece = nullptr;
        std::uint64_t next = 0;  ///< where its next part begins
        ckpt::PartialHash hash;
    };
    struct Span {
        std::uint64_t offset, bytes;
    };
    void add_pieces(std::uint64_t offset, std::uint64_t bytes);
    bool read_table();
    template <typename Do>
    void for_pieces_in(const Span &span, Do &&act);
    void count_early(const Span &span);
    void follow(Following &following, const Piece &piece, const Span &span);
    void count(Following &following, Piece &piece, const Span &span, std::uint64_t part);
    Result<std::uint64_t> checksum(std::size_t first, std::uint64_t bytes, const std::atomic<bool> *stop);

    const std::span<const std::byte> memory_;
    const ckpt::KnownObject object_;
    std::atomic<bool> ready_{false};  ///< pieces_ are known, and stay; none are, where the table is no good
    std::mutex mutex_;                ///< of what follows, until ready_
    std::uint64_t table_missing_;
    std::vector<Span> early_;
    std::optional<ckpt::ObjectTableView> table_;
    std::vector<Piece> pieces_;                                     ///< by chunk
    std::vector<std::size_t> by_offset_;                            ///< of pieces_
    std::array<Following, transport::max_bulk_streams> following_;  ///< by stream
};

}  // namespace dlrover::mover
