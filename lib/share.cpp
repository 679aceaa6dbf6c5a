// SPDX-License-Identifier: Apache-2.0
#include "lib/share.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

namespace dlrover::lib {
namespace {

bool comes_first(const ckpt::ChunkInfo &a, const ckpt::ChunkInfo &b) {
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    if (int order = a.name.compare(b.name); order != 0) return order < 0;
    return std::lexicographical_compare(a.global_offset.begin(), a.global_offset.end(),
                                        b.global_offset.begin(), b.global_offset.end());
}

}  // namespace

NodeRanks node_ranks(const Environment &e) {
    NodeRanks alone{e.rank, 1};
    bool known = e.managed && e.local_rank < e.local_world_size && e.local_rank <= e.rank;
    if (!known || e.local_world_size > e.world_size - (e.rank - e.local_rank)) return alone;
    return {e.rank - e.local_rank, e.local_world_size};
}

Result<ReplicaSet> ReplicaSet::make(std::span<const std::uint32_t> ranks, const Environment &environment) {
    NodeRanks node = node_ranks(environment);
    std::vector<std::uint32_t> all(ranks.begin(), ranks.end());
    if (all.empty()) {
        all.resize(environment.world_size);
        std::iota(all.begin(), all.end(), 0u);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    if (all.back() >= environment.world_size)
        return Status(Code::invalid_argument, "the world has no rank " + std::to_string(all.back()));
    if (!std::binary_search(all.begin(), all.end(), environment.rank))
        return Status(Code::invalid_argument, "rank " + std::to_string(environment.rank) +
                                                  " is not among the ranks that hold these chunks");
    ReplicaSet set;
    set.writes_ = node.has(all.front());
    std::copy_if(all.begin(), all.end(), std::back_inserter(set.here_),
                 [&](std::uint32_t rank) { return node.has(rank); });
    return set;
}

bool ReplicaSet::here_has(std::uint32_t rank) const {
    return std::binary_search(here_.begin(), here_.end(), rank);
}

std::vector<std::optional<std::uint32_t>> ReplicaSet::deal(std::span<const ckpt::ChunkInfo> chunks) const {
    std::vector<std::optional<std::uint32_t>> keepers(chunks.size());
    if (here_.size() < 2) return keepers;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < chunks.size(); ++i)
        if (chunks[i].bytes >= share_bytes_from) order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return comes_first(chunks[a], chunks[b]); });
    std::vector<std::uint64_t> load(here_.size());
    for (std::size_t i : order) {
        auto least = std::min_element(load.begin(), load.end());
        *least += chunks[i].bytes;
        keepers[i] = here_[static_cast<std::size_t>(least - load.begin())];
    }
    return keepers;
}

/// Never back to 0, which says that there is nothing.
void SharedSums::add(std::uint64_t &sum, std::uint64_t hash) {
    sum += hash;
    if (sum == 0) sum = 1;
}

std::vector<SharedWith> SharedSums::list() const {
    std::vector<SharedWith> list;
    for (auto [rank, sums] : sums_) {
        sums.rank = rank;
        list.push_back(sums);
    }
    return list;
}

}  // namespace dlrover::lib
