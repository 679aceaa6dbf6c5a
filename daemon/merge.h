// SPDX-License-Identifier: Apache-2.0
// Puts together what several nodes answered about the same groups. Pure.
#pragma once

#include "proto/local_codec.h"

namespace dlrover::daemon {

/// Adds the groups of `from` to `into`. Of a group that both have: the word of the leader's node stands where
/// it is one of them, each rank is described by its own node; of the movers the worst is told of, copies are
/// summed up.
void merge_status(proto::local::StatusReplyT &into, proto::local::StatusReplyT from);
/// Who knows more.
void merge_outcome(proto::local::OutcomeReplyT &into, const proto::local::OutcomeReplyT &from);
void merge_rollback(proto::local::RollbackReplyT &into, const proto::local::RollbackReplyT &from);
void merge_scale(proto::local::ScaleReplyT &into, const proto::local::ScaleReplyT &from);
/// Adds the groups of `from` to `into`, behind each other the events of a group that both have.
void merge_events(proto::local::EventsReplyT &into, proto::local::EventsReplyT from);
/// In order of time, of each group; the newest that fit into `room` bytes, of the last group first. The
/// others count as dropped.
void put_in_order(proto::local::EventsReplyT &merged, std::size_t room);

}  // namespace dlrover::daemon
