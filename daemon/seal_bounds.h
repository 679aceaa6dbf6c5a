// SPDX-License-Identifier: Apache-2.0
// What a seal may say of its object, whoever says it. Pure.
#pragma once

#include "ckpt/object_table.h"
#include "local_types.h"

namespace dlrover::daemon {

/// The object lies in the first `capacity` bytes of its slot: data, then table. No part of it is longer than
/// its readers take.
inline bool is_within(const proto::local::SealT &seal, std::uint64_t capacity) {
    return seal.data_bytes <= seal.table_offset && seal.table_offset <= capacity &&
           seal.table_bytes <= capacity - seal.table_offset && seal.table_bytes <= ckpt::max_table_bytes &&
           seal.ledger.size() <= ckpt::max_ledger_bytes;
}

/// What its record has besides a few fixed words.
inline std::uint64_t noted_bytes(const proto::local::SealT &seal) {
    constexpr std::uint64_t bytes_per_rank = 32;
    return seal.ledger.size() + seal.shared.size() * bytes_per_rank;
}

}  // namespace dlrover::daemon
