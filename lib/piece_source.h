// SPDX-License-Identifier: Apache-2.0
// What the ranks that saved a checkpoint have put into it, wherever it is: on storage, or in the memory of
// several nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "ckpt/box_runs.h"
#include "ckpt/object_table.h"

namespace dlrover::lib {

/// The chunks of one rank that are with it. Any number of threads may read; offsets and shapes in elements.
class RankPieces {
  public:
    virtual ~RankPieces() = default;
    virtual const ckpt::ObjectTableView &table() const = 0;
    /// Bytes [at, at + out.size()) of the chunk, not verified. Precondition: inside the chunk.
    virtual Status read_bytes(std::uint64_t index, std::uint64_t at, std::span<std::byte> out) const = 0;
    /// A part of the chunk into a place of a larger array, not verified.
    virtual Status read_part_into(std::uint64_t index, std::span<const std::uint64_t> offset,
                                  std::span<const std::uint64_t> shape, const ckpt::BoxPlace &to,
                                  std::span<std::byte> out) const = 0;
    /// What was read of the chunk may be wrong on this node alone: the next read is of where it is stored.
    /// false: there is nothing between.
    virtual bool forget(std::uint64_t) const { return false; }
    /// The sentence for a chunk whose bytes do not have its checksum.
    virtual Status wrong_chunk(std::uint64_t index) const = 0;
};

/// One thread at a time, but for reading from the pieces that it gave. Everything may block.
class PieceSource {
  public:
    virtual ~PieceSource() = default;
    virtual std::uint32_t ranks() const = 0;
    /// Those whose pieces are nearest first: of several that have the same piece the first one is read.
    virtual std::vector<std::uint32_t> nearest() const = 0;
    /// That rank's table, which lives as long as this. Precondition: rank < ranks().
    virtual Result<const ckpt::ObjectTableView *> find_table(std::uint32_t rank) = 0;
    /// Every rank's table is in memory afterwards, by the work of `threads` threads.
    virtual Status load_tables(unsigned threads) = 0;
    /// Precondition: it is in memory.
    virtual const ckpt::ObjectTableView &table(std::uint32_t rank) const = 0;
    /// These ranks' pieces are about to be asked for: they may all be brought near at once.
    virtual void expect(std::span<const std::uint32_t>) {}
    /// Lives as long as this, and may be read from until release(). Precondition: rank < ranks().
    virtual Result<const RankPieces *> pieces(std::uint32_t rank) = 0;
    virtual void release() {}
    /// One chunk of that rank's object, verified; also one whose bytes are with another rank.
    virtual Status read_chunk(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out,
                              unsigned threads) = 0;
    /// What a failure means for the checkpoint, and what becomes of it.
    virtual Status judge(Status why) const = 0;
};

}  // namespace dlrover::lib
