// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/local_codec.h"

namespace dlrover::cli {

/// The time line of one group: time since its first event, node, what happened, how long it took.
std::string events_text(const proto::local::GroupEventsT &group);
/// {"groups": [{"job_id":…, "events": [...]}]}; field names are those of proto/common.fbs.
std::string events_json(const proto::local::EventsReplyT &reply);

/// "world-published"
const char *event_name(proto::EventKind kind);

}  // namespace dlrover::cli
