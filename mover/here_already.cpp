// SPDX-License-Identifier: Apache-2.0
#include "mover/here_already.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace dlrover::mover {
namespace {

using transport::bulk_block_bytes, transport::BulkHave, transport::BulkSpared;

BulkHave name_of(const ckpt::ChunkInfo &chunk) {
    return {ckpt::hash_of_piece(chunk), chunk.bytes, chunk.checksum};
}

bool has_bytes(const ckpt::ChunkInfo &chunk) {
    return chunk.bytes != 0 && !chunk.keeper;
}

Result<ckpt::ObjectTableView> read_table(std::span<const std::byte> memory, const ckpt::ObjectPlace &place) {
    auto bytes = ckpt::find_object_table(memory, place);
    if (!bytes) return bytes.take_status();
    return ckpt::ObjectTableView::parse(*bytes, place.data_bytes);
}

struct Range {
    std::uint64_t begin = 0, end = 0;
    friend auto operator<=>(const Range &, const Range &) = default;
};

/// Whether a block that was left out has bytes of it. `spared`: in order.
bool touches(std::span<const BulkSpared> spared, std::uint64_t begin, std::uint64_t bytes) {
    std::uint64_t first = begin / bulk_block_bytes, last = (begin + bytes - 1) / bulk_block_bytes;
    auto run = std::upper_bound(spared.begin(), spared.end(), last,
                                [](std::uint64_t block, const BulkSpared &s) { return block < s.first; });
    return run != spared.begin() && std::prev(run)->first + std::prev(run)->count > first;
}

/// From a chunk's end to where the next one may begin.
Range behind(const ckpt::ChunkInfo &chunk) {
    std::uint64_t end = chunk.offset + chunk.bytes;
    return {end, ckpt::align_object_offset(end).value_or(end)};
}

/// A chunk's end, or, where only zeros follow, that of what aligns the next one. Bytes that are none of a
/// chunk's have no checksum, but a parity is made of them, too.
std::uint64_t end_with_zeros(std::span<const std::byte> data, const ckpt::ChunkInfo &chunk) {
    auto [end, next] = behind(chunk);
    if (end >= data.size()) return data.size();
    next = std::min<std::uint64_t>(next, data.size());
    auto gap = data.subspan(end, next - end);
    bool zeros = std::ranges::all_of(gap, [](std::byte b) { return b == std::byte{0}; });
    return zeros ? next : end;
}

/// Calls write(begin, end) for each part of [begin, end) that lies in blocks which were left out. The others
/// have come, and were compared with their checksums.
template <typename Write>
void in_spared(std::span<const BulkSpared> spared, Range range, Write write) {
    auto run =
        std::upper_bound(spared.begin(), spared.end(), range.begin / bulk_block_bytes,
                         [](std::uint64_t block, const BulkSpared &s) { return block < s.first + s.count; });
    for (; run != spared.end() && run->first * bulk_block_bytes < range.end; ++run) {
        std::uint64_t begin = std::max(range.begin, run->first * bulk_block_bytes);
        std::uint64_t end = std::min(range.end, (run->first + run->count) * bulk_block_bytes);
        if (begin < end) write(begin, end);
    }
}

/// Of those that the other side has, in the first `data_end` bytes; adjacent ones are one.
std::vector<Range> find_known(std::span<const std::byte> memory, std::uint64_t data_end,
                              const ckpt::ObjectTableView &table, std::span<const BulkHave> haves) {
    std::vector<BulkHave> sorted(haves.begin(), haves.end());
    std::sort(sorted.begin(), sorted.end());
    std::vector<Range> ranges;
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ckpt::ChunkInfo chunk = table.chunk(i);
        if (!has_bytes(chunk) || !std::binary_search(sorted.begin(), sorted.end(), name_of(chunk))) continue;
        ranges.push_back({chunk.offset, end_with_zeros(memory.first(data_end), chunk)});
    }
    std::sort(ranges.begin(), ranges.end());
    std::vector<Range> joined;
    for (const Range &range : ranges)
        if (!joined.empty() && range.begin <= joined.back().end)
            joined.back().end = std::max(joined.back().end, range.end);
        else
            joined.push_back(range);
    return joined;
}

}  // namespace

void HereAlready::add(std::span<const std::byte> memory, const ckpt::KnownObject &object) {
    if (object.parity) return;
    auto table = read_table(memory, object.place);
    if (!table) return;
    ckpt::ObjectIdentity wanted = object.who;
    wanted.lineage = table->identity().lineage;
    if (!ckpt::check_identity(wanted, table->identity()).ok()) return;
    for (std::uint64_t i = 0; i < table->count(); ++i)
        if (ckpt::ChunkInfo chunk = table->chunk(i); has_bytes(chunk))
            chunks_.emplace(name_of(chunk), memory.data() + chunk.offset);
}

std::vector<BulkHave> HereAlready::list() const {
    std::vector<BulkHave> haves;
    haves.reserve(chunks_.size());
    for (const auto &[have, at] : chunks_) haves.push_back(have);
    if (haves.size() <= transport::max_bulk_haves) return haves;
    auto larger = [](const BulkHave &a, const BulkHave &b) { return a.bytes > b.bytes; };
    auto end = haves.begin() + transport::max_bulk_haves;
    std::nth_element(haves.begin(), end, haves.end(), larger);
    haves.erase(end, haves.end());
    return haves;
}

Status HereAlready::fill(std::span<std::byte> memory, const ckpt::ObjectPlace &place,
                         std::span<const BulkSpared> spared, const std::atomic<bool> *stop) const {
    auto table = read_table(memory, place);
    if (!table) return table.take_status();
    std::uint64_t data_end = std::min(place.data_bytes, place.table_offset);
    for (std::uint64_t i = 0; i < table->count(); ++i) {
        ckpt::ChunkInfo chunk = table->chunk(i);
        if (!has_bytes(chunk) || !touches(spared, chunk.offset, chunk.bytes)) continue;
        if (stop != nullptr && stop->load(std::memory_order_relaxed))
            return Status(Code::stale, "the order was cancelled");
        auto found = chunks_.find(name_of(chunk));
        if (found == chunks_.end())
            return Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) +
                                             "\" was left out, and is not here");
        Range gap = behind(chunk);
        in_spared(spared, {chunk.offset, gap.begin}, [&](std::uint64_t begin, std::uint64_t end) {
            std::memcpy(memory.data() + begin, found->second + (begin - chunk.offset), end - begin);
        });
        in_spared(spared, {gap.begin, std::min(gap.end, data_end)},
                  [&](std::uint64_t begin, std::uint64_t end) {
                      std::memset(memory.data() + begin, 0, end - begin);
                  });
    }
    return {};
}

std::vector<BulkSpared> find_spared(std::span<const std::byte> memory, const ckpt::ObjectPlace &place,
                                    std::span<const BulkHave> haves) {
    auto table = read_table(memory, place);
    if (!table) return {};
    std::uint64_t data_end = std::min(place.data_bytes, place.table_offset);
    std::vector<BulkSpared> spared;
    for (const Range &range : find_known(memory, data_end, *table, haves)) {
        std::uint64_t first = transport::bulk_blocks(range.begin), end = range.end / bulk_block_bytes;
        if (end > first) spared.push_back({first, end - first});
    }
    return spared;
}

}  // namespace dlrover::mover
