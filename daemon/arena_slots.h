// SPDX-License-Identifier: Apache-2.0
// What an arena holds; for the arena's own source files.
#pragma once

#include <algorithm>

#include "daemon/arena.h"

namespace dlrover::daemon {

inline constexpr std::size_t max_segments_per_slot = proto::max_frame_fds;
/// With one, a crash in mid-copy would leave no common step.
inline constexpr std::uint32_t least_slots = 2;
/// Of another node's rank: the safe step, and the one that comes.
inline constexpr std::uint32_t guest_slots = 2;

/// resource_exhausted: no slot can ever have so many.
Status check_slot_bytes(std::uint64_t bytes);

struct Arena::HeldSegment {
    enum class Record : std::uint8_t { asked, kept, refused };
    Segment segment;
    Rank rank;
    SlotIndex slot;
    std::uint16_t place = 0;
    bool ready = false;
    Record record = Record::asked;  ///< with the keeper
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

struct Arena::HeldSlot {
    std::vector<std::unique_ptr<HeldSegment>> segments;
    local::SealT seal;
    std::shared_ptr<const ParityObject> parity;  ///< of a sealed one
    std::uint32_t world_size = 0;
    std::int64_t sealed_us = 0;
    bool on_record = false;       ///< a record may be there, of a grant or a seal
    bool seal_on_record = false;  ///< of the present seal
    bool former = false;          ///< has the object and the memory of the job's run before
    /// Whether the keeper has all of its memory, as far as it has answered.
    bool is_kept() const {
        return std::ranges::none_of(segments,
                                    [](const auto &s) { return s->record == HeldSegment::Record::refused; });
    }
    std::uint64_t capacity() const {
        std::uint64_t sum = 0;
        for (const auto &s : segments) sum += s->segment.bytes;
        return sum;
    }
};

struct Arena::RankSlots {
    explicit RankSlots(std::uint32_t count) : table(count), held(count), limit(count) {}
    ckpt::SlotTable table;
    std::vector<HeldSlot> held;
    std::uint32_t limit;                ///< slots that may grow; a former daemon may have granted more
    bool planned = false;               ///< whether `limit` was chosen in this world
    EventLoop::Time chosen_at{0};       ///< then
    std::optional<unsigned> numa_node;  ///< where its worker runs
    std::uint64_t told_bytes = 0;       ///< of a checkpoint; 0: not known yet

    /// As many at least.
    void extend(std::uint32_t count) {
        table.extend(count);
        held.resize(table.slots().size());
    }
    std::uint32_t with_memory() const {
        return static_cast<std::uint32_t>(
            std::count_if(held.begin(), held.end(), [](const auto &h) { return !h.segments.empty(); }));
    }
    /// What of `count` slots of `bytes` is still to be taken.
    MemoryBudget::Holding lacking(std::uint32_t count, std::uint64_t bytes) const;
    /// The first to have memory: those that have some, the largest first.
    std::vector<SlotIndex> by_memory() const;
    bool may_grow(SlotIndex slot) const {
        auto slots = by_memory();
        return std::find(slots.begin(), slots.begin() + limit, slot) != slots.begin() + limit;
    }
};

}  // namespace dlrover::daemon
