// SPDX-License-Identifier: Apache-2.0
#include "lib/restore.h"

#include <algorithm>
#include <atomic>

#include "ckpt/checksum.h"
#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

using ckpt::checksum_block_bytes;

Result<std::span<const std::uint8_t>> find_table(const ObjectSource &source) {
    const ObjectLayout &layout = source.layout;
    if (layout.ledger.size() > ckpt::max_ledger_bytes)
        return Status(Code::corrupt, "the object's ledger is too large");
    return ckpt::find_object_table({source.base, source.bytes}, {layout.data_bytes, layout.table_offset,
                                                                 layout.table_bytes, layout.table_xxh3});
}

/// Where the blocks of each chunk begin in one list of all blocks; one more entry for the end.
std::vector<std::uint64_t> first_blocks(const ckpt::ObjectTableView &table) {
    std::vector<std::uint64_t> first{0};
    for (std::uint64_t i = 0; i < table.count(); ++i)
        first.push_back(first.back() + ckpt::checksum_blocks(table.chunk(i).bytes));
    return first;
}

}  // namespace

ObjectReader::ObjectReader(const std::byte *base, ObjectLayout layout, ckpt::ObjectTableView table)
    : base_(base), layout_(std::move(layout)), table_(std::move(table)) {
    for (std::uint64_t i = 0; i < table_.count(); ++i) by_name_.emplace(table_.chunk(i).name, i);
}

Result<ObjectReader> ObjectReader::open(const ObjectSource &source, const ExpectedObject &expected,
                                        unsigned threads) {
    auto table_bytes = find_table(source);
    if (!table_bytes) return table_bytes.take_status();
    auto table = ckpt::ObjectTableView::parse(*table_bytes, source.layout.data_bytes);
    if (!table) return table.take_status();
    ObjectReader reader(source.base, source.layout, std::move(*table));
    DLROVER_TRY(reader.check_identity(expected));
    if (!source.verified) DLROVER_TRY(reader.check_data(threads));
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
        return Status(Code::unsupported,
                      "the checkpoint was saved by " + std::to_string(identity.world_size) +
                          " ranks, this world has " + std::to_string(expected.world_size) +
                          ": from memory and plain files only a world of that size goes on");
    return {};
}

Status ObjectReader::check_data(unsigned threads) const {
    std::vector<std::uint64_t> first = first_blocks(table_);
    std::vector<std::uint64_t> hashes(first.back());
    parallel_for(hashes.size(), threads, [&](std::uint64_t i) {
        auto after = std::upper_bound(first.begin(), first.end(), i);
        auto index = static_cast<std::uint64_t>(after - first.begin()) - 1;
        ckpt::ChunkInfo info = table_.chunk(index);
        std::uint64_t at = (i - first[index]) * checksum_block_bytes;
        auto n = std::min<std::uint64_t>(checksum_block_bytes, info.bytes - at);
        hashes[i] = ckpt::block_kernel().hash(data(info) + at, n);
    });
    for (std::uint64_t i = 0; i < count(); ++i) {
        auto blocks = std::span(hashes).subspan(first[i], first[i + 1] - first[i]);
        ckpt::ChunkInfo info = chunk(i);
        if (ckpt::combine_block_hashes(blocks) != info.checksum)
            return Status(Code::corrupt, "the checksum of chunk \"" + std::string(info.name) + "\" is wrong");
    }
    return {};
}

std::optional<std::uint64_t> ObjectReader::find(std::string_view name) const {
    auto found = by_name_.find(name);
    if (found == by_name_.end()) return std::nullopt;
    return found->second;
}

}  // namespace dlrover::lib
