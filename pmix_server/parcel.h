// SPDX-License-Identifier: Apache-2.0
// What dlrover-pmixds say to each other <-> bytes (proto/pmix.fbs).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "pmix_types.h"
#include "proto/frame.h"

namespace dlrover::pmix {

using Outcome = proto::pmix::Outcome;
using Message = proto::pmix::MessageT;
using Parcel = proto::pmix::ParcelT;

/// Of a fence's data, all nodes' together, and of a rank's.
inline constexpr std::size_t max_data_bytes = std::size_t{2} << 20;
inline constexpr std::size_t max_piece_bytes = std::size_t{64} << 10;
/// With room for what is around the data.
inline constexpr std::size_t max_message_bytes = max_data_bytes + 1024;

/// Precondition: at most max_data_bytes.
proto::Bytes encode_message(const Message &message);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<Message> decode_message(std::span<const std::uint8_t> bytes);

proto::Bytes encode_parcel(const Parcel &parcel);
/// corrupt: as above; a piece lies inside its message.
Result<Parcel> decode_parcel(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::pmix
