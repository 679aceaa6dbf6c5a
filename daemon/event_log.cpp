// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_log.h"

#include <algorithm>

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_text_bytes = 1024;
constexpr std::size_t max_record_bytes = 96u << 10;

std::size_t size_of(const proto::EventT &event) {
    return 128 + event.node.size() + event.text.size();
}

}  // namespace

void EventLog::add(proto::EventT event) {
    if (event.text.size() > max_text_bytes) event.text.resize(max_text_bytes);
    events_.push_back(std::move(event));
    changed_ = true;
    if (events_.size() <= limit_) return;
    // What happens all the time does not push out what happened once.
    auto routine = std::find_if(events_.begin(), events_.end(), [](const proto::EventT &e) {
        return e.kind == proto::EventKind::CheckpointComplete;
    });
    events_.erase(routine == events_.end() ? events_.begin() : routine);
    ++dropped_;
}

void EventLog::load(records::EventsRecordT record) {
    dropped_ = record.dropped;
    for (auto &event : record.events)
        if (event) events_.push_back(std::move(*event));
}

records::EventsRecordT EventLog::save() {
    records::EventsRecordT record;
    std::size_t bytes = 0, count = 0;
    while (count < events_.size() &&
           (bytes += size_of(events_[events_.size() - 1 - count])) < max_record_bytes)
        ++count;
    record.dropped = dropped_ + (events_.size() - count);
    for (std::size_t i = events_.size() - count; i < events_.size(); ++i)
        record.events.push_back(std::make_unique<proto::EventT>(events_[i]));
    changed_ = false;
    return record;
}

}  // namespace dlrover::daemon
