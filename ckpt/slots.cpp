// SPDX-License-Identifier: Apache-2.0
#include "ckpt/slots.h"

#include <algorithm>
#include <string>
#include <utility>

namespace dlrover::ckpt {

bool SlotTable::reusable(const Slot &slot) const {
    if (slot.readers != 0) return false;
    if (slot.state == SlotState::free) return true;
    return slot.state == SlotState::sealed && (outdated(slot) || given_up(slot));
}

bool SlotTable::outdated(const Slot &slot) const {
    if (!complete_ || slot.step > complete_->step) return false;
    if (kept_ == CheckpointId{slot.generation, slot.step}) return false;
    return slot.step < complete_->step || slot.generation < complete_->generation;
}

bool SlotTable::given_up(const Slot &slot) const {
    if (slot.state != SlotState::sealed || !given_up_ || slot.generation != given_up_->generation)
        return false;
    bool kept = (complete_ && slot.step <= complete_->step) || slot.step <= given_up_->complete;
    return slot.step < given_up_->below && !kept;
}

bool SlotTable::free_reusable() {
    bool gone = false;
    for (Slot &slot : slots_)
        if (slot.state == SlotState::sealed && reusable(slot)) {
            slot = Slot{};
            gone = true;
        }
    return gone;
}

Grant SlotTable::take(SlotIndex index, Holder holder, TrainStep step, GenerationId generation) {
    Slot &slot = slots_[index.value()];
    Grant grant{index, slot.state == SlotState::sealed};
    slot = Slot{SlotState::granted, holder, step, generation, 0};
    return grant;
}

bool SlotTable::granted_to(SlotIndex slot, Holder holder) const {
    return slot.value() < slots_.size() && slots_[slot.value()].state == SlotState::granted &&
           slots_[slot.value()].holder == holder;
}

Status SlotTable::seal(SlotIndex index, Holder holder, TrainStep step, GenerationId generation,
                       bool replaces) {
    if (!granted_to(index, holder) || slots_[index.value()].step != step ||
        slots_[index.value()].generation != generation)
        return Status(Code::stale, "slot " + std::to_string(index.value()) + " is not granted for step " +
                                       std::to_string(step.value()));
    auto is_same = [&](const Slot &slot) {
        return slot.state == SlotState::sealed && slot.step == step && slot.generation == generation;
    };
    for (Slot &slot : slots_)
        if (replaces && is_same(slot) && slot.readers == 0) slot = Slot{};
    if (!replaces && find({generation, step})) {
        slots_[index.value()] = Slot{};
        return Status(Code::already_exists,
                      "step " + std::to_string(step.value()) + " is sealed in another slot already");
    }
    slots_[index.value()].state = SlotState::sealed;
    slots_[index.value()].holder = 0;
    return {};
}

Status SlotTable::abort(SlotIndex index, Holder holder) {
    if (!granted_to(index, holder)) return Status(Code::stale, "the slot is not granted to this process");
    slots_[index.value()] = Slot{};
    return {};
}

void SlotTable::restore_sealed(SlotIndex slot, TrainStep step, GenerationId generation) {
    if (slot.value() < slots_.size()) slots_[slot.value()] = Slot{SlotState::sealed, 0, step, generation, 0};
}

void SlotTable::restore_granted(SlotIndex slot, TrainStep step, GenerationId generation) {
    if (slot.value() < slots_.size()) slots_[slot.value()] = Slot{SlotState::granted, 0, step, generation, 0};
}

void SlotTable::adopt_grants(Holder holder, GenerationId generation) {
    for (Slot &slot : slots_)
        if (slot.state == SlotState::granted && slot.holder == 0 && slot.generation == generation)
            slot.holder = holder;
}

void SlotTable::complete(const CheckpointId &id, const std::optional<CheckpointId> &keep) {
    kept_ = keep;
    auto order = [](const CheckpointId &c) { return std::pair(c.step, c.generation); };
    if (!complete_ || order(*complete_) < order(id)) complete_ = id;
}

void SlotTable::give_up(TrainStep below, GenerationId generation, std::optional<TrainStep> complete) {
    bool same = given_up_ && given_up_->generation == generation;
    given_up_ = GivenUp{generation, same ? std::max(below, given_up_->below) : below, complete};
    for (Slot &slot : slots_)
        if (given_up(slot) && slot.readers == 0) slot = Slot{};
}

void SlotTable::rewind(std::optional<CheckpointId> from, GenerationId generation) {
    complete_ = from;
    for (Slot &slot : slots_) {
        // What is of the same step and an earlier generation may be what is safe.
        auto order = [](const auto &c) { return std::pair(c.step, c.generation); };
        bool stays = from && order(slot) <= order(*from);
        if (slot.state == SlotState::sealed && slot.generation < generation && !stays && slot.readers == 0)
            slot = Slot{};
    }
}

void SlotTable::release_grants_before(GenerationId generation) {
    for (Slot &slot : slots_)
        if (slot.state == SlotState::granted && slot.generation < generation &&
            (slot.holder & lasting_holder) == 0)
            slot = Slot{};
}

void SlotTable::release_grants_of(Holder holder) {
    for (Slot &slot : slots_)
        if (slot.state == SlotState::granted && slot.holder == holder) slot = Slot{};
}

std::optional<SlotIndex> SlotTable::find(const CheckpointId &id) const {
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
        const Slot &s = slots_[i];
        if (s.state == SlotState::sealed && s.step == id.step && s.generation == id.generation)
            return SlotIndex(i);
    }
    return std::nullopt;
}

std::optional<SlotIndex> SlotTable::find_newest(TrainStep step) const {
    std::optional<SlotIndex> best;
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
        const Slot &s = slots_[i];
        if (s.state != SlotState::sealed || s.step != step) continue;
        if (!best || slots_[best->value()].generation < s.generation) best = SlotIndex(i);
    }
    return best;
}

void SlotTable::add_reader(SlotIndex slot) {
    ++slots_[slot.value()].readers;
}

void SlotTable::drop_reader(SlotIndex slot) {
    if (slots_[slot.value()].readers > 0) --slots_[slot.value()].readers;
}

}  // namespace dlrover::ckpt
