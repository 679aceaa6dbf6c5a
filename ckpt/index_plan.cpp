// SPDX-License-Identifier: Apache-2.0
#include "ckpt/index_plan.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace dlrover::ckpt {
namespace {

struct Piece {
    ChunkInfo chunk;
    ChunkRef ref;
};

bool equal(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// Of an array that fits into memory or is a part of one: no overflow for pieces; saturates for the whole.
std::uint64_t elements(std::span<const std::uint64_t> shape) {
    std::uint64_t result = 1;
    if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
    for (std::uint64_t n : shape)
        if (__builtin_mul_overflow(result, n, &result)) return UINT64_MAX;
    return result;
}

bool overlap(const ChunkInfo &a, const ChunkInfo &b) {
    for (std::size_t i = 0; i < a.local_shape.size(); ++i)
        if (a.global_offset[i] >= b.global_offset[i] + b.local_shape[i] ||
            b.global_offset[i] >= a.global_offset[i] + a.local_shape[i])
            return false;
    return true;
}

/// Of one place, by shape: copies of a piece are side by side also where a rank has an empty one there.
bool place_before(const Piece &a, const Piece &b) {
    if (equal(a.chunk.global_offset, b.chunk.global_offset))
        return std::ranges::lexicographical_compare(a.chunk.local_shape, b.chunk.local_shape);
    return std::ranges::lexicographical_compare(a.chunk.global_offset, b.chunk.global_offset);
}

/// Sorted by place, without a second copy of the same piece; false: they disagree.
bool unify(std::vector<Piece> &pieces) {
    std::stable_sort(pieces.begin(), pieces.end(), place_before);
    std::vector<Piece> kept;
    for (const Piece &piece : pieces) {
        const ChunkInfo &c = piece.chunk, &first = pieces.front().chunk;
        if (c.dtype != first.dtype || !equal(c.global_shape, first.global_shape)) return false;
        bool again = !kept.empty() && equal(kept.back().chunk.global_offset, c.global_offset) &&
                     equal(kept.back().chunk.local_shape, c.local_shape);
        if (again && kept.back().chunk.checksum != c.checksum) return false;
        if (!again) kept.push_back(piece);
    }
    pieces = std::move(kept);
    return true;
}

/// Sorted by place, pieces can only overlap those before them that reach into their first coordinate.
bool disjoint(const std::vector<Piece> &pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i)
        for (std::size_t j = i + 1; j < pieces.size(); ++j) {
            const ChunkInfo &a = pieces[i].chunk, &b = pieces[j].chunk;
            if (a.global_offset.empty() || overlap(a, b)) return false;
            if (b.global_offset[0] >= a.global_offset[0] + a.local_shape[0]) break;
        }
    return true;
}

bool covers_all(std::vector<Piece> &pieces) {
    std::uint64_t whole = elements(pieces.front().chunk.global_shape), sum = 0;
    if (whole == 0) {
        pieces.resize(1);
        return true;
    }
    std::erase_if(pieces, [](const Piece &p) { return p.chunk.bytes == 0; });
    for (const Piece &piece : pieces)
        if (__builtin_add_overflow(sum, elements(piece.chunk.local_shape), &sum)) return false;
    return sum == whole && disjoint(pieces);
}

struct NamedRefs {
    std::string_view name;
    std::vector<ChunkRef> refs;  ///< in order of rank and chunk
};

/// In order of name. Many ranks have few names: each is looked up, not sorted.
std::vector<NamedRefs> refs_by_name(const std::vector<const ObjectTableView *> &tables) {
    std::vector<NamedRefs> names;
    std::unordered_map<std::string_view, std::size_t> places;
    for (std::uint32_t rank = 0; rank < tables.size(); ++rank)
        for (std::uint64_t i = 0; i < tables[rank]->count(); ++i) {
            ChunkInfo chunk = tables[rank]->chunk(i);
            if (chunk.replica != 0) continue;
            auto [place, added] = places.try_emplace(chunk.name, names.size());
            if (added) names.push_back({chunk.name, {}});
            names[place->second].refs.push_back({Rank(rank), i});
        }
    std::sort(names.begin(), names.end(), [](auto &a, auto &b) { return a.name < b.name; });
    return names;
}

void add_name(std::vector<Piece> &pieces, IndexPlan &plan) {
    ChunkInfo first = pieces.front().chunk;
    if (!unify(pieces) || !covers_all(pieces)) {
        plan.left_out.emplace_back(first.name);
        return;
    }
    GlobalTensor tensor{
        std::string(first.name), first.dtype, {first.global_shape.begin(), first.global_shape.end()}, {}};
    for (const Piece &piece : pieces) tensor.pieces.push_back(piece.ref);
    plan.tensors.push_back(std::move(tensor));
}

}  // namespace

IndexPlan plan_index(const std::vector<const ObjectTableView *> &tables) {
    IndexPlan plan;
    std::vector<Piece> pieces;
    for (const NamedRefs &name : refs_by_name(tables)) {
        pieces.clear();
        for (const ChunkRef &ref : name.refs)
            pieces.push_back({tables[ref.rank.value()]->chunk(ref.index), ref});
        add_name(pieces, plan);
    }
    return plan;
}

}  // namespace dlrover::ckpt
