// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/local_codec.h"

namespace dlrover::cli {

/// One line a group: the list `dlrover status` prints without a job.
std::string status_list(const proto::local::StatusReplyT &reply);
/// All of one group, several lines.
std::string status_details(const proto::local::GroupStatusT &group);
/// {"groups": [...]}; field names are those of proto/local.fbs.
std::string status_json(const proto::local::StatusReplyT &reply);

const char *state_name(proto::local::GroupState state);
/// "97.2 %"; "-" while no training step was reported.
std::string goodput_percent(const proto::local::GoodputT *goodput);

}  // namespace dlrover::cli
