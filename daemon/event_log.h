// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>

#include "common_types.h"
#include "daemon/records.h"

namespace dlrover::daemon {

/// The newest lines of a group's time line; where room is short, complete and skipped checkpoints go first,
/// then stored ones.
class EventLog {
  public:
    explicit EventLog(std::size_t limit) : limit_(limit) {}
    void add(proto::EventT event);
    void load(records::EventsRecordT record);
    const std::deque<proto::EventT> &events() const noexcept { return events_; }
    std::uint64_t dropped() const noexcept { return dropped_; }
    /// Those that fit a record; marks them as saved.
    records::EventsRecordT save();
    bool changed() const noexcept { return changed_; }

  private:
    std::size_t limit_;
    std::deque<proto::EventT> events_;
    std::uint64_t dropped_ = 0;
    bool changed_ = false;
};

}  // namespace dlrover::daemon
