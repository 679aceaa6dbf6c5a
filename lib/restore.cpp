// SPDX-License-Identifier: Apache-2.0
#include "lib/restore.h"

#include <algorithm>
#include <map>

#include "base/count_of.h"
#include "ckpt/checksum.h"
#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

using ckpt::checksum_block_bytes;

/// Of an ObjectSource or a KeeperObject.
template <typename Object>
Result<ckpt::ObjectTableView> read_table(const Object &object, std::uint32_t rank,
                                         std::optional<std::uint32_t> &damaged) {
    const ObjectLayout &layout = object.layout;
    if (layout.ledger.size() > ckpt::max_ledger_bytes)
        return Status(Code::corrupt, "the object's ledger is too large");
    auto bytes = ckpt::find_object_table(
        {object.base, object.bytes},
        {layout.data_bytes, layout.table_offset, layout.table_bytes, layout.table_xxh3});
    if (!bytes) {
        bool inside =
            layout.table_offset <= object.bytes && layout.table_bytes <= object.bytes - layout.table_offset;
        if (inside && layout.data_bytes <= object.bytes) damaged = rank;  // no error of the plan
        return bytes.take_status();
    }
    return ckpt::ObjectTableView::parse(*bytes, layout.data_bytes);
}

std::string quoted(const ckpt::ChunkInfo &chunk) {
    return "\"" + std::string(chunk.name.substr(0, 200)) + "\"";
}

/// Another rank's object, of which only the chunks that are kept for this one count.
class Keeper {
  public:
    static Result<Keeper> open(const KeeperObject &object, const ckpt::ObjectIdentity &own,
                               std::optional<std::uint32_t> &damaged) {
        auto table = read_table(object, object.rank, damaged);
        std::string whose = "the object of rank " + std::to_string(object.rank);
        if (!table) return std::move(table.take_status()).with_context(whose);
        ckpt::ObjectIdentity who = table->identity();
        if (who.rank.value() != object.rank || who.train_step != own.train_step ||
            who.generation != own.generation || who.lineage != own.lineage ||
            who.world_size != own.world_size)
            return Status(Code::corrupt,
                          whose + " is not of the same step, generation and world as this one");
        return Keeper(object, std::move(*table));
    }

    /// The place and the checksum of the bytes; none: they are not there.
    std::optional<std::pair<const std::byte *, std::uint64_t>> find(const ckpt::ChunkInfo &chunk) const {
        auto found = by_piece_.find(ckpt::hash_of_piece(chunk));
        if (found == by_piece_.end()) return std::nullopt;
        ckpt::ChunkInfo there = table_.chunk(found->second);
        if (!ckpt::same_piece(there, chunk)) return std::nullopt;
        return std::pair(base_ + there.offset, there.checksum);
    }
    bool verified() const noexcept { return verified_; }

  private:
    Keeper(const KeeperObject &object, ckpt::ObjectTableView table)
        : base_(object.base), verified_(object.verified), table_(std::move(table)) {
        for (std::uint64_t i = 0; i < table_.count(); ++i)
            if (ckpt::ChunkInfo chunk = table_.chunk(i); !chunk.keeper)
                by_piece_.emplace(ckpt::hash_of_piece(chunk), i);
    }

    const std::byte *base_;
    bool verified_;
    ckpt::ObjectTableView table_;
    std::unordered_map<std::uint64_t, std::uint64_t> by_piece_;
};

}  // namespace

ObjectReader::ObjectReader(ObjectLayout layout, ckpt::ObjectTableView table)
    : layout_(std::move(layout)), table_(std::move(table)) {
    for (std::uint64_t i = 0; i < table_.count(); ++i) by_name_.emplace(table_.chunk(i).name, i);
}

Result<ObjectReader> ObjectReader::open(const ObjectSource &source, const ExpectedObject &expected,
                                        unsigned threads, std::optional<std::uint32_t> *damaged) {
    std::optional<std::uint32_t> unused;
    std::optional<std::uint32_t> &bad = damaged != nullptr ? *damaged : unused;
    auto table = read_table(source, expected.rank, bad);
    if (!table) return table.take_status();
    ObjectReader reader(source.layout, std::move(*table));
    DLROVER_TRY(reader.check_identity(expected));
    DLROVER_TRY(reader.find_bytes(source, bad));
    if (std::ranges::all_of(reader.bytes_, &Bytes::verified)) return reader;
    Cpus near;
    if (threads > 1) near = near_cpus().for_memory({source.base, source.bytes});
    DLROVER_TRY(reader.check_data(threads, near, bad));
    return reader;
}

Status ObjectReader::check_identity(const ExpectedObject &expected) const {
    ckpt::ObjectIdentity identity = table_.identity();
    if (identity.train_step != layout_.train_step || identity.rank.value() != expected.rank)
        return Status(Code::corrupt, "the object is of step " + std::to_string(identity.train_step.value()) +
                                         ", rank " + std::to_string(identity.rank.value()) +
                                         ": not the one asked for");
    if (!expected.lineage.empty() && identity.lineage != expected.lineage)
        return Status(Code::corrupt, "the object belongs to another lineage (" + identity.lineage + ")");
    if (identity.world_size != expected.world_size)
        return Status(Code::unsupported, "the checkpoint was saved by " +
                                             count_of(identity.world_size, "rank") + ", this world has " +
                                             std::to_string(expected.world_size) +
                                             ": from memory only a world of that size goes on");
    return {};
}

Status ObjectReader::find_bytes(const ObjectSource &source, std::optional<std::uint32_t> &damaged) {
    if (!source.places.empty() && source.places.size() != count())
        return Status(Code::internal, "not every chunk has a place in memory");
    for (std::uint64_t i = 0; i < count(); ++i) {
        ckpt::ChunkInfo info = chunk(i);
        bytes_.push_back({source.places.empty() ? source.base + info.offset : source.places[i], info.checksum,
                          source.verified});
    }
    return source.places.empty() ? find_with_keepers(source.keepers, damaged) : Status();
}

Status ObjectReader::find_with_keepers(const std::vector<KeeperObject> &objects,
                                       std::optional<std::uint32_t> &damaged) {
    std::map<std::uint32_t, Keeper> keepers;
    for (const KeeperObject &object : objects) {
        auto keeper = Keeper::open(object, table_.identity(), damaged);
        if (!keeper) return keeper.take_status();
        keepers.emplace(object.rank, std::move(*keeper));
    }
    for (std::uint64_t i = 0; i < count(); ++i) {
        ckpt::ChunkInfo info = chunk(i);
        if (!info.keeper) continue;
        auto keeper = keepers.find(info.keeper->value());
        auto found = keeper != keepers.end() ? keeper->second.find(info) : std::nullopt;
        if (!found)
            return Status(Code::corrupt, "chunk " + quoted(info) + " should be in the object of rank " +
                                             std::to_string(info.keeper->value()) + ", and is not");
        bytes_[i] = {found->first, found->second, keeper->second.verified()};
    }
    return {};
}

Status ObjectReader::check_data(unsigned threads, const Cpus &near,
                                std::optional<std::uint32_t> &damaged) const {
    // Where the blocks of each chunk begin in one list of all that are to be looked at.
    std::vector<std::uint64_t> first{0};
    for (std::uint64_t i = 0; i < count(); ++i)
        first.push_back(first.back() + (bytes_[i].verified ? 0 : ckpt::checksum_blocks(chunk(i).bytes)));
    std::vector<std::uint64_t> hashes(first.back());
    auto hash_one = [&](std::uint64_t i) {
        auto after = std::upper_bound(first.begin(), first.end(), i);
        auto index = static_cast<std::uint64_t>(after - first.begin()) - 1;
        ckpt::ChunkInfo info = table_.chunk(index);
        std::uint64_t at = (i - first[index]) * checksum_block_bytes;
        auto n = std::min<std::uint64_t>(checksum_block_bytes, info.bytes - at);
        hashes[i] = ckpt::block_kernel().hash(data(index) + at, n);
    };
    parallel_for(
        hashes.size(), threads, hash_one, [] {}, near);
    for (std::uint64_t i = 0; i < count(); ++i) {
        if (bytes_[i].verified) continue;
        auto blocks = std::span(hashes).subspan(first[i], first[i + 1] - first[i]);
        if (ckpt::combine_block_hashes(blocks) == bytes_[i].checksum) continue;
        ckpt::ChunkInfo info = chunk(i);
        damaged = info.keeper.value_or(table_.identity().rank).value();
        std::string where =
            info.keeper ? ", in the object of rank " + std::to_string(info.keeper->value()) + "," : "";
        return Status(Code::corrupt, "the checksum of chunk " + quoted(info) + where + " is wrong");
    }
    return {};
}

std::optional<std::uint64_t> ObjectReader::find(std::string_view name) const {
    auto found = by_name_.find(name);
    if (found == by_name_.end()) return std::nullopt;
    return found->second;
}

}  // namespace dlrover::lib
