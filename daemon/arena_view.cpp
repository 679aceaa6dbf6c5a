// SPDX-License-Identifier: Apache-2.0
// What an arena holds, for those who look.
#include <algorithm>

#include "daemon/arena_slots.h"

namespace dlrover::daemon {

std::uint32_t Arena::slots(Rank rank) const {
    auto slots = ranks_.find(rank);
    return slots == ranks_.end() ? options_.slots : static_cast<std::uint32_t>(slots->second->held.size());
}

bool Arena::holds(Rank rank, const CheckpointId &id) const {
    auto slots = ranks_.find(rank);
    if (slots == ranks_.end()) return false;
    auto slot = slots->second->table.find(id);
    return slot && slots->second->held[slot->value()].seal_on_record;
}

std::uint32_t Arena::world_size(Rank rank, const CheckpointId &id) const {
    if (!holds(rank, id)) return 0;
    const RankSlots &slots = *ranks_.at(rank);
    return slots.held[slots.table.find(id)->value()].world_size;
}

std::vector<Rank> Arena::holders(const CheckpointId &id) const {
    std::vector<Rank> ranks;
    for (const auto &[rank, slots] : ranks_)
        if (is_rank(rank) && slots->table.find(id)) ranks.push_back(rank);
    return ranks;
}

std::vector<elastic::Seal> Arena::seals() const {
    std::vector<elastic::Seal> seals;
    for (const auto &[rank, slots] : ranks_)
        for (std::size_t i = 0; is_rank(rank) && i < slots->held.size(); ++i) {
            const ckpt::Slot &slot = slots->table.slots()[i];
            if (slot.state == ckpt::SlotState::sealed && slots->held[i].seal_on_record)
                seals.push_back({slot.step, rank, slots->held[i].world_size, slot.generation,
                                 slots->held[i].seal.to_storage});
        }
    return seals;
}

std::shared_ptr<const ParityObject> Arena::parity(Rank place, const CheckpointId &id) const {
    if (is_rank(place) || !holds(place, id)) return nullptr;
    const RankSlots &slots = *ranks_.at(place);
    return slots.held[slots.table.find(id)->value()].parity;
}

std::vector<elastic::Parity> Arena::parities() const {
    std::vector<elastic::Parity> parities;
    for (const auto &[place, slots] : ranks_)
        for (std::size_t i = 0; i < slots->held.size(); ++i) {
            const ckpt::Slot &slot = slots->table.slots()[i];
            const HeldSlot &held = slots->held[i];
            if (slot.state == ckpt::SlotState::sealed && held.seal_on_record && held.parity)
                parities.push_back({{slot.generation, slot.step},
                                    held.world_size,
                                    held.parity->index,
                                    held.parity->ranks,
                                    held.parity->to_storage()});
        }
    return parities;
}

std::uint64_t Arena::parity_bytes() const {
    std::uint64_t sum = 0;
    for (const auto &[place, slots] : ranks_)
        for (const HeldSlot &held : slots->held)
            if (held.parity && held.seal_on_record) sum += held.seal.data_bytes;
    return sum;
}

std::pair<std::uint64_t, std::uint32_t> Arena::sealed_bytes(TrainStep step) const {
    std::pair<std::uint64_t, std::uint32_t> sum{0, 0};
    for (const auto &[rank, slots] : ranks_)
        if (auto slot = slots->table.find_newest(step)) {
            const auto &seal = slots->held[slot->value()].seal;
            sum.first += seal.table_offset + seal.table_bytes;
            ++sum.second;
        }
    return sum;
}

std::optional<std::int64_t> Arena::sealed_time_us(TrainStep step) const {
    std::optional<std::int64_t> newest;
    for (const auto &[rank, slots] : ranks_)
        if (auto slot = slots->table.find_newest(step))
            newest = std::max(newest.value_or(0), slots->held[slot->value()].sealed_us);
    return newest;
}

}  // namespace dlrover::daemon
