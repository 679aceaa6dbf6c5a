// SPDX-License-Identifier: Apache-2.0
#include "lib/memory_pieces.h"

#include <algorithm>
#include <cstring>

#include "base/count_of.h"
#include "ckpt/block_kernel.h"
#include "lib/parallel.h"
#include "lib/stored_chunks.h"

namespace dlrover::lib {
namespace {

std::string whose(std::uint32_t rank) {
    return "the object of rank " + std::to_string(rank);
}

}  // namespace

/// Its table is the one that all plans were made from.
class MemoryPieces::Object final : public RankPieces {
  public:
    Object(const std::byte *base, const MemoryPieces &all, std::uint32_t rank)
        : base_(base), all_(all), table_(*all.views_[rank]), rank_(rank) {}

    const ckpt::ObjectTableView &table() const override { return table_; }
    Status read_bytes(std::uint64_t index, std::uint64_t at, std::span<std::byte> out) const override {
        std::memcpy(out.data(), base_ + table_.chunk(index).offset + at, out.size());
        return {};
    }
    Status read_part_into(std::uint64_t index, std::span<const std::uint64_t> offset,
                          std::span<const std::uint64_t> shape, const ckpt::BoxPlace &to,
                          std::span<std::byte> out) const override {
        ckpt::ChunkInfo chunk = table_.chunk(index);
        const std::byte *from = base_ + chunk.offset;
        for (ckpt::BoxRuns runs({chunk.local_shape, offset}, to, shape, ckpt::element_bytes(chunk.dtype));
             !runs.done(); runs.next())
            std::memcpy(out.data() + runs.b(), from + runs.a(), runs.bytes());
        return {};
    }
    Status wrong_chunk(std::uint64_t index) const override {
        all_.note_damaged(rank_);
        return Status(Code::corrupt, "the checksum of chunk \"" +
                                         std::string(table_.chunk(index).name.substr(0, 200)) + "\" in " +
                                         whose(rank_) + " is wrong");
    }

  private:
    const std::byte *base_;
    const MemoryPieces &all_;
    const ckpt::ObjectTableView &table_;
    std::uint32_t rank_;
};

MemoryPieces::MemoryPieces(SpreadStep step, Open open)
    : step_(std::move(step)), open_(std::move(open)), views_(step_.tables.size()) {}

MemoryPieces::~MemoryPieces() = default;

std::vector<std::uint32_t> MemoryPieces::nearest() const {
    std::vector<std::uint32_t> order;
    for (bool here : {true, false})
        for (std::uint32_t rank = 0; rank < ranks(); ++rank)
            if (step_.tables[rank].here == here) order.push_back(rank);
    return order;
}

Status MemoryPieces::check_identity(std::uint32_t rank) const {
    ckpt::ObjectIdentity who = views_[rank]->identity();
    if (!step_.lineage.empty() && who.lineage != step_.lineage)
        return Status(Code::corrupt, whose(rank) + " belongs to another lineage (" + who.lineage + ")");
    if (who.rank.value() == rank && who.world_size == ranks() && who.train_step == step_.id.step &&
        who.generation == step_.id.generation)
        return {};
    return Status(Code::corrupt, whose(rank) + " is not of the step, generation and world that was chosen");
}

Status MemoryPieces::parse(std::uint32_t rank) {
    if (views_[rank]) return {};
    const SpreadStep::Table &entry = step_.tables[rank];
    std::span memory(step_.memory.base(), step_.memory.bytes());
    auto bytes = ckpt::find_object_table(memory, {0, entry.offset, entry.bytes, entry.xxh3});
    if (!bytes) {
        bool inside = entry.offset <= memory.size() && entry.bytes <= memory.size() - entry.offset;
        if (inside) note_damaged(rank);  // no error of the plan
        return std::move(bytes.take_status()).with_context(whose(rank));
    }
    auto view = ckpt::ObjectTableView::parse(*bytes, entry.data_bytes);
    if (!view) return std::move(view.take_status()).with_context(whose(rank));
    views_[rank].emplace(std::move(*view));
    return check_identity(rank);
}

Result<const ckpt::ObjectTableView *> MemoryPieces::find_table(std::uint32_t rank) {
    DLROVER_TRY(parse(rank));
    return &*views_[rank];
}

Status MemoryPieces::load_tables(unsigned threads) {
    return parallel_try(ranks(), threads,
                        [&](std::uint64_t rank) { return parse(static_cast<std::uint32_t>(rank)); });
}

/// Where it does not wait there may be none afterwards.
Status MemoryPieces::take(std::uint32_t rank, bool wait) {
    if (objects_.contains(rank)) return {};
    DLROVER_TRY(parse(rank));
    auto object = open_(rank, wait);
    if (!object || !*object) return object.take_status();
    if ((*object)->bytes < step_.tables[rank].data_bytes)
        return Status(Code::corrupt, whose(rank) + " is shorter than its table says");
    objects_.emplace(rank, std::make_unique<Object>((*object)->base, *this, rank));
    return {};
}

/// Whatever is wrong shows when it is read.
void MemoryPieces::expect(std::span<const std::uint32_t> wanted) {
    for (std::uint32_t rank : wanted) (void)take(rank, false).ok();
}

Result<const RankPieces *> MemoryPieces::pieces(std::uint32_t rank) {
    DLROVER_TRY(take(rank, true));
    return objects_.at(rank).get();
}

/// From a chunk that another rank keeps to that one's.
Status MemoryPieces::find_with_keeper(std::uint32_t &rank, std::uint64_t &index) {
    ckpt::ChunkInfo chunk = views_[rank]->chunk(index);
    if (!chunk.keeper) return {};
    std::uint32_t keeper = chunk.keeper->value();
    if (keeper >= ranks()) return Status(Code::corrupt, "a chunk is kept by a rank that did not save");
    DLROVER_TRY(parse(keeper));
    auto [entry, fresh] = kept_.try_emplace(keeper);
    auto &there = entry->second;
    for (std::uint64_t i = 0; fresh && i < views_[keeper]->count(); ++i)
        if (ckpt::ChunkInfo other = views_[keeper]->chunk(i); !other.keeper)
            there.emplace(ckpt::hash_of_piece(other), i);
    auto found = there.find(ckpt::hash_of_piece(chunk));
    if (found == there.end() || !ckpt::same_piece(views_[keeper]->chunk(found->second), chunk))
        return Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) +
                                         "\" should be in " + whose(keeper) + ", and is not");
    rank = keeper;
    index = found->second;
    return {};
}

Status MemoryPieces::read_chunk(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out,
                                unsigned threads) {
    DLROVER_TRY(parse(rank));
    if (views_[rank]->chunk(index).bytes == 0) return {};
    DLROVER_TRY(find_with_keeper(rank, index));
    ChunkRead read{rank, index, out.data()};
    return read_chunks(*this, std::span(&read, 1), threads);
}

Status MemoryPieces::judge(Status why) const {
    return std::move(why).with_context("step " + std::to_string(step_.id.step.value()) +
                                       " in memory, saved by " + count_of(ranks(), "rank"));
}

void MemoryPieces::note_damaged(std::uint32_t rank) const {
    std::int64_t none = -1;
    damaged_.compare_exchange_strong(none, rank);
}

std::optional<std::uint32_t> MemoryPieces::damaged() const {
    std::int64_t rank = damaged_;
    return rank < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(rank));
}

}  // namespace dlrover::lib
