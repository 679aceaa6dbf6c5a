// SPDX-License-Identifier: Apache-2.0
// What daemons say to each other about a node that is to join a group <-> bytes (proto/join.fbs).
#pragma once

#include <span>

#include "base/status.h"
#include "join_types.h"
#include "proto/frame.h"

namespace dlrover::daemon {

namespace join = proto::join;

proto::Bytes encode_join_word(const join::WordT &word);
/// corrupt: the bytes do not verify, or a value is out of range. What the step says is not checked.
Result<join::WordT> decode_join_word(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::daemon
