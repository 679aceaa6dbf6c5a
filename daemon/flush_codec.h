// SPDX-License-Identifier: Apache-2.0
// What daemons say to each other about checkpoints on their way to storage <-> bytes (proto/flush.fbs).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "flush_types.h"
#include "proto/frame.h"

namespace dlrover::daemon {

struct FlushWord {
    using Kind = proto::flush::Kind;
    Kind kind = Kind::None;
    std::uint64_t order = 0;
    CheckpointId id;
    std::uint32_t world_size = 0;
    std::string text;         ///< at most 1 KiB
    std::vector<Rank> ranks;  ///< whose copies are meant, not a node's own objects; at most max_flush_ranks
    std::vector<Rank> lacks;  ///< Lacks: whose objects are not there; at most max_flush_ranks
    friend bool operator==(const FlushWord &, const FlushWord &) = default;
};

/// Of a Trouble that is of no order: that node does not see the mark in the folder for checkpoints.
inline constexpr std::uint64_t no_order = 0;

/// What is above it is not sent.
inline constexpr std::size_t max_flush_ranks = 4096;

proto::Bytes encode_flush_word(const FlushWord &word);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<FlushWord> decode_flush_word(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::daemon
