// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>

#include "base/status.h"
#include "local_types.h"
#include "proto/frame.h"

namespace dlrover::proto {

inline constexpr std::uint16_t local_protocol_version = 1;
/// Of WorkerStarted.variables and NextWorld: the texts, and what each of them takes in memory.
inline constexpr std::size_t max_next_world_bytes = 32u << 10;
inline constexpr const char *default_socket_path = "/run/dlrover/dlroverd.sock";

/// Payload of one frame (without the length).
Bytes encode_local(const local::MessageT &message);
Result<local::MessageT> decode_local(std::span<const std::uint8_t> payload);

/// A message with this body: make_local(7, local::SealT{...}).
template <typename BodyT>
local::MessageT make_local(std::uint32_t id, BodyT body) {
    local::MessageT message;
    message.id = id;
    message.body.Set(std::move(body));
    return message;
}

}  // namespace dlrover::proto
