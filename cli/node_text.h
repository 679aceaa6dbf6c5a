// SPDX-License-Identifier: Apache-2.0
// `dlrover node check`, for people and as JSON.
#pragma once

#include <string>

#include "proto/local_codec.h"

namespace dlrover::cli {

/// Nothing is wrong with the node. What the site does not allow is no fault of it.
bool is_sound(const proto::local::NodeCheckReplyT &reply);
std::string node_check_text(const proto::local::NodeCheckReplyT &reply);
std::string node_check_json(const proto::local::NodeCheckReplyT &reply);

}  // namespace dlrover::cli
