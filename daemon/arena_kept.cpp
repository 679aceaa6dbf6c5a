// SPDX-License-Identifier: Apache-2.0
// An arena between two runs of a job.
#include <algorithm>
#include <utility>

#include "daemon/arena_slots.h"

namespace dlrover::daemon {

bool Arena::is_former(const GenerationId &generation) const {
    return generation.term < Term(std::uint64_t{options_.restart_count} << 32);
}

void Arena::keep_sealed() {
    for (auto &[rank, slots] : ranks_) {
        auto count = static_cast<std::uint32_t>(slots->held.size());
        ckpt::SlotTable before = std::exchange(slots->table, ckpt::SlotTable(count));
        for (std::uint32_t i = 0; i < count; ++i) {
            HeldSlot &held = slots->held[i];
            const ckpt::Slot &slot = before.slots()[i];
            if (slot.state == ckpt::SlotState::sealed && held.seal_on_record) {
                slots->table.restore_sealed(SlotIndex(i), slot.step, slot.generation);
                continue;
            }
            while (!held.segments.empty()) drop_last_segment(held);
        }
        drop_free_slots(rank, *slots);
    }
}

void Arena::adopt(Arena &before) {
    ranks_ = std::exchange(before.ranks_, {});
    next_segment_ = std::max(next_segment_, before.next_segment_);
    for (auto &[rank, slots] : ranks_) {
        slots->extend(options_.slots);
        slots->limit = options_.slots;
        slots->planned = false;
        slots->told_bytes = 0;
        for (auto &held : slots->held) {
            held.former = held.on_record;
            for (auto &segment : held.segments)
                if (!segment->ready) prefault(*segment);
        }
    }
    if (options_.group_key != before.options_.group_key) save_all();
}

/// Under the names of another group than before.
void Arena::save_all() {
    for (auto &[rank, slots] : ranks_)
        for (std::uint32_t i = 0; i < slots->held.size(); ++i) {
            for (auto &segment : slots->held[i].segments) save_segment(*segment);
            if (slots->held[i].on_record) save_slot(rank, SlotIndex(i));
        }
}

void Arena::drop_outdated_former() {
    for (auto &[rank, slots] : ranks_) {
        bool any = false;
        for (std::uint32_t i = 0; i < slots->held.size(); ++i) {
            if (!slots->held[i].former || !slots->table.is_outdated(SlotIndex(i))) continue;
            slots->table.void_slot(SlotIndex(i));
            any = true;
        }
        if (any) drop_free_slots(rank, *slots);
    }
}

MemoryBudget::Holding Arena::holding() const {
    MemoryBudget::Holding sum;
    for (const auto &[rank, slots] : ranks_)
        for (const auto &held : slots->held) {
            sum.noted_bytes += notes_of(held.seal, held.parity.get()).noted_bytes;
            for (const auto &segment : held.segments) {
                auto one = holding_of(segment->segment);
                sum.bytes += one.bytes;
                sum.segments += one.segments;
                sum.node_bytes += one.node_bytes;
            }
        }
    return sum;
}

}  // namespace dlrover::daemon
