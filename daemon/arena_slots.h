// SPDX-License-Identifier: Apache-2.0
// What an arena holds; for the arena's own source files.
#pragma once

#include "daemon/arena.h"

namespace dlrover::daemon {

struct Arena::HeldSegment {
    Segment segment;
    Rank rank;
    SlotIndex slot;
    std::uint16_t place = 0;
    bool ready = false;
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

struct Arena::HeldSlot {
    std::vector<std::unique_ptr<HeldSegment>> segments;
    local::SealT seal;
    std::uint32_t world_size = 0;
    std::int64_t sealed_us = 0;
    bool on_record = false;       ///< a record may be there, of a grant or a seal
    bool seal_on_record = false;  ///< of the present seal
    std::uint64_t capacity() const {
        std::uint64_t sum = 0;
        for (const auto &s : segments) sum += s->segment.bytes;
        return sum;
    }
};

struct Arena::RankSlots {
    explicit RankSlots(std::uint32_t count) : table(count), held(count) {}
    ckpt::SlotTable table;
    std::vector<HeldSlot> held;
};

}  // namespace dlrover::daemon
