// SPDX-License-Identifier: Apache-2.0
// elastic::Message and elastic::Promise <-> bytes (proto/peer.fbs). What comes out of decode is safe to feed
// to a Member of a group of `node_count` nodes: every node number is below it, every list bounded, every text
// at most 8 KiB.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "elastic/messages.h"
#include "proto/frame.h"

namespace dlrover::daemon {

proto::Bytes encode_message(const elastic::Message &message);
/// corrupt: the bytes do not verify or a value is out of range.
Result<elastic::Message> decode_message(std::span<const std::uint8_t> bytes, std::uint32_t node_count);

proto::Bytes encode_promise(const elastic::Promise &promise);
Result<elastic::Promise> decode_promise(std::span<const std::uint8_t> bytes, std::uint32_t node_count);

}  // namespace dlrover::daemon
