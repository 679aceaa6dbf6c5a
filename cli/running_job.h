// SPDX-License-Identifier: Apache-2.0
// A group that runs, and that a person changes: which one is meant, and how it is now.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "proto/local_codec.h"

namespace dlrover::cli {

inline constexpr std::chrono::milliseconds look_again{300};

/// "1234.0"
std::string name_of(const proto::local::GroupStatusT &group);
bool has_ended(const proto::local::GroupStatusT &group);
/// reply: of one job. invalid_argument: several of its groups have not ended, or none; then `hint` is added.
Result<const proto::local::GroupStatusT *> live_group(const proto::local::StatusReplyT &reply,
                                                      const std::string &hint);
/// The group as it is now.
Result<std::unique_ptr<proto::local::GroupStatusT>> look_at(const proto::local::GroupStatusT &group);

}  // namespace dlrover::cli
