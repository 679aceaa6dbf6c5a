// SPDX-License-Identifier: Apache-2.0
// A step in the memory of several nodes, saved by a world of another size. Its tables are all at hand; an
// object comes to this node when something in it is wanted.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/mapping.h"
#include "lib/piece_source.h"
#include "lib/store.h"

namespace dlrover::lib {

struct SpreadStep {
    struct Table {
        std::uint64_t offset = 0, bytes = 0, data_bytes = 0, xxh3 = 0;
        bool here = false;  ///< the object is on this node already
    };
    CheckpointId id;
    std::string lineage;   ///< empty: any
    ckpt::Mapping memory;  ///< of the tables
    std::vector<Table> tables;
};

class MemoryPieces final : public PieceSource {
  public:
    /// The object of a rank, mapped for as long as this lives. `wait`: until it is here; without, it is asked
    /// for, and there is none.
    using Open = std::function<Result<std::optional<KeeperObject>>(std::uint32_t rank, bool wait)>;

    MemoryPieces(SpreadStep step, Open open);
    ~MemoryPieces() override;

    std::uint32_t ranks() const override { return static_cast<std::uint32_t>(step_.tables.size()); }
    std::vector<std::uint32_t> nearest() const override;
    Result<const ckpt::ObjectTableView *> find_table(std::uint32_t rank) override;
    Status load_tables(unsigned threads) override;
    const ckpt::ObjectTableView &table(std::uint32_t rank) const override { return *views_[rank]; }
    void expect(std::span<const std::uint32_t> ranks) override;
    Result<const RankPieces *> pieces(std::uint32_t rank) override;
    Status read_chunk(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out,
                      unsigned threads) override;
    Status judge(Status why) const override;
    /// The rank whose chunk or table was the first that did not have its checksum.
    std::optional<std::uint32_t> damaged() const;

  private:
    class Object;
    void note_damaged(std::uint32_t rank) const;
    Status parse(std::uint32_t rank);
    Status take(std::uint32_t rank, bool wait);
    Status check_identity(std::uint32_t rank) const;
    Status find_with_keeper(std::uint32_t &rank, std::uint64_t &index);

    SpreadStep step_;
    Open open_;
    std::vector<std::optional<ckpt::ObjectTableView>> views_;
    std::map<std::uint32_t, std::unique_ptr<Object>> objects_;
    std::map<std::uint32_t, std::unordered_map<std::uint64_t, std::uint64_t>>
        kept_;                                        ///< pieces by their hash
    mutable std::atomic<std::int64_t> damaged_ = -1;  ///< reading threads find it
};

}  // namespace dlrover::lib
