// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common_types.h"
#include "daemon/records.h"

namespace dlrover::daemon {

/// In memory and in a message, about.
inline std::size_t size_of(const proto::EventT &event) {
    return 128 + event.node.size() + event.text.size();
}

/// The newest lines of a group's time line; where room is short, complete and skipped checkpoints go first,
/// then stored ones.
class EventLog {
  public:
    explicit EventLog(std::size_t limit) : limit_(limit) {}
    void add(proto::EventT event);
    void load(records::EventsRecordT record);
    const std::deque<proto::EventT> &events() const noexcept { return events_; }
    /// The newest of them that fit, in order; `room`, in bytes, is less by that.
    std::vector<const proto::EventT *> newest(std::size_t &room) const;
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
