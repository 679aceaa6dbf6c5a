// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_log.h"

#include <algorithm>
#include <vector>

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_text_bytes = 1024;
constexpr std::size_t max_record_bytes = 96u << 10;
constexpr int highest_weight = 2;

/// What happens all the time does not push out what happened once. The first to go have the lowest.
int weight_of(const proto::EventT &event) {
    switch (event.kind) {
        case proto::EventKind::CheckpointComplete:
        case proto::EventKind::CheckpointSkipped:
            return 0;
        case proto::EventKind::CheckpointStored:
            return 1;
        default:
            return highest_weight;
    }
}

}  // namespace

void EventLog::add(proto::EventT event) {
    if (event.text.size() > max_text_bytes) event.text.resize(max_text_bytes);
    events_.push_back(std::move(event));
    changed_ = true;
    if (events_.size() <= limit_) return;
    events_.erase(std::ranges::min_element(events_, {}, weight_of));  // the oldest of those
    ++dropped_;
}

void EventLog::load(records::EventsRecordT record) {
    dropped_ = record.dropped;
    for (auto &event : record.events)
        if (event) events_.push_back(std::move(*event));
}

std::vector<const proto::EventT *> EventLog::newest(std::size_t &room) const {
    std::vector<const proto::EventT *> found;
    for (auto event = events_.rbegin(); event != events_.rend() && size_of(*event) <= room; ++event) {
        room -= size_of(*event);
        found.push_back(&*event);
    }
    std::ranges::reverse(found);
    return found;
}

records::EventsRecordT EventLog::save() {
    records::EventsRecordT record;
    std::vector<bool> fits(events_.size());
    std::size_t bytes = 0;
    for (int weight = highest_weight; weight >= 0; --weight)
        for (std::size_t i = events_.size(); i-- > 0;) {
            if (weight_of(events_[i]) != weight) continue;
            bytes += size_of(events_[i]);
            if (bytes >= max_record_bytes) break;
            fits[i] = true;
        }
    for (std::size_t i = 0; i < events_.size(); ++i)
        if (fits[i]) record.events.push_back(std::make_unique<proto::EventT>(events_[i]));
    record.dropped = dropped_ + (events_.size() - record.events.size());
    changed_ = false;
    return record;
}

}  // namespace dlrover::daemon
