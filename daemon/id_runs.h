// SPDX-License-Identifier: Apache-2.0
// Lists of ids in few words: the nodes of a world of thousands are nearly one run of numbers. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dlrover::daemon {

inline constexpr std::uint32_t id_run = 1u << 31;
inline constexpr unsigned id_run_stride_shift = 24;
inline constexpr std::uint32_t max_id_run = (1u << id_run_stride_shift) - 1, max_id_stride = 0x7f;

/// The ids as they are, but for runs: a word with the highest bit set says that `count` (its low 24 bits) ids
/// follow, each one more than the one `stride` (the 7 bits between) places before it.
/// stride: places after which a run goes on, at least 1. shortest: runs of less stay as they are, so that the
/// lists of small groups read as what they are. Precondition: every id is below 2^31.
template <typename IdType>
std::vector<std::uint32_t> pack_runs(const std::vector<IdType> &ids, std::size_t stride = 1,
                                     std::size_t shortest = 16) {
    std::vector<std::uint32_t> words;
    auto goes_on = [&](std::size_t i) {
        return i >= stride && ids[i].value() == ids[i - stride].value() + 1;
    };
    for (std::size_t i = 0; i < ids.size();) {
        std::size_t end = i;
        while (end < ids.size() && end - i < max_id_run && goes_on(end)) ++end;
        if (stride <= max_id_stride && end - i >= shortest) {
            words.push_back(id_run | static_cast<std::uint32_t>(stride) << id_run_stride_shift |
                            static_cast<std::uint32_t>(end - i));
            i = end;
            continue;
        }
        for (end = std::max(end, i + 1); i < end; ++i) words.push_back(ids[i].value());
    }
    return words;
}

/// None: an id that is not below `limit`, more than `most` ids, or a run without a beginning.
template <typename IdType>
std::optional<std::vector<IdType>> unpack_runs(std::span<const std::uint32_t> words, std::uint32_t limit,
                                               std::size_t most) {
    std::vector<IdType> ids;
    for (std::uint32_t word : words) {
        bool run = (word & id_run) != 0;
        std::uint32_t stride = word >> id_run_stride_shift & max_id_stride,
                      count = run ? word & max_id_run : 1;
        if (count > most - ids.size()) return std::nullopt;
        if (run && (stride == 0 || stride > ids.size())) return std::nullopt;
        std::size_t at = ids.size();
        ids.resize(at + count, IdType(word));
        std::uint32_t highest = run ? 0 : word;
        for (; run && at < ids.size(); ++at) {
            std::uint32_t next = ids[at - stride].value() + 1;
            ids[at] = IdType(next);
            highest = std::max(highest, next);
        }
        if (highest >= limit) return std::nullopt;
    }
    return ids;
}

}  // namespace dlrover::daemon
