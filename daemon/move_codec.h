// SPDX-License-Identifier: Apache-2.0
// What daemons say to each other about objects on their way from node to node <-> bytes (proto/move.fbs).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "local_types.h"
#include "move_types.h"
#include "proto/frame.h"

namespace dlrover::daemon {

struct MoveWord {
    using Kind = proto::move::Kind;
    Kind kind = Kind::None;
    std::uint64_t number = 0;  ///< of the offering node
    CheckpointId id;
    Rank rank;
    // Offer
    std::uint32_t world_size = 0;
    std::uint16_t ways = 0;
    proto::local::SealT object;
    bool asked = false;
    // Accept
    std::uint16_t port = 0, way = 0;
    std::uint64_t transfer = 0;
    std::vector<std::uint8_t> key;
    std::string text;  ///< at most 1 KiB
    // FetchTable, Table
    std::uint64_t at = 0;
    std::vector<std::uint8_t> bytes;  ///< at most max_table_piece_bytes
};

inline constexpr std::size_t max_table_piece_bytes = std::size_t{256} << 10;

proto::Bytes encode_move_word(const MoveWord &word);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<MoveWord> decode_move_word(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::daemon
