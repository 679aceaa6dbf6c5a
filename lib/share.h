// SPDX-License-Identifier: Apache-2.0
// Chunks that several ranks hold alike: which rank of the node keeps the bytes of which.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/object_table.h"
#include "lib/environment.h"

namespace dlrover::lib {

/// Smaller chunks stay each rank's own: they cost little, and many differ from rank to rank (states of
/// random generators, statistics of batches).
inline constexpr std::uint64_t share_bytes_from = 64u << 10;

/// The ranks of this node, numbered one after the other; this rank alone where nobody could keep anything
/// for it (no daemon).
struct NodeRanks {
    std::uint32_t first = 0, count = 1;
    bool has(std::uint32_t rank) const { return rank >= first && rank - first < count; }
};
NodeRanks node_ranks(const Environment &environment);

/// The ranks that hold some chunks alike.
class ReplicaSet {
  public:
    /// `ranks`: in any order, this one among them; none: all of the world.
    static Result<ReplicaSet> make(std::span<const std::uint32_t> ranks, const Environment &environment);

    /// In order, of this node.
    const std::vector<std::uint32_t> &here() const noexcept { return here_; }
    bool here_has(std::uint32_t rank) const;
    /// This node's bytes are those that go to storage: the lowest rank of all is here.
    bool writes() const noexcept { return writes_; }

    /// For each chunk the rank of this node that keeps it; none: every rank its own. Each rank of the set
    /// gets the same answer for the same chunks, in any order; bytes are spread evenly, the largest first.
    std::vector<std::optional<std::uint32_t>> deal(std::span<const ckpt::ChunkInfo> chunks) const;

  private:
    std::vector<std::uint32_t> here_;
    bool writes_ = true;
};

/// What this object and another rank's on this node owe each other: sums over hash_of_piece(), none 0.
struct SharedWith {
    std::uint32_t rank = 0;
    std::uint64_t kept_by = 0, kept_for = 0;
};

/// Collects those sums.
class SharedSums {
  public:
    void kept_by(std::uint32_t rank, std::uint64_t hash) { add(sums_[rank].kept_by, hash); }
    void kept_for(std::uint32_t rank, std::uint64_t hash) { add(sums_[rank].kept_for, hash); }
    std::vector<SharedWith> list() const;

  private:
    static void add(std::uint64_t &sum, std::uint64_t hash);
    std::map<std::uint32_t, SharedWith> sums_;
};

}  // namespace dlrover::lib
