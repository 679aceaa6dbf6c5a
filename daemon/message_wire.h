// SPDX-License-Identifier: Apache-2.0
// What both halves of message_codec.h have in common.
#pragma once

#include <cstddef>

namespace dlrover::daemon {

constexpr std::size_t max_message_text = 8192;  ///< bytes
/// Of a promise on its own, as it is kept.
constexpr const char *promise_identifier = "DLR1";

}  // namespace dlrover::daemon
