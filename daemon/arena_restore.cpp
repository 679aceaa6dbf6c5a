// SPDX-License-Identifier: Apache-2.0
// The arena of a group as the keeper held it while there was no daemon.
#include <sys/stat.h>

#include <algorithm>

#include "base/units.h"
#include "common/log.h"
#include "daemon/arena_slots.h"

namespace dlrover::daemon {
namespace {

/// Of any daemon's memory.slots: the former one's may have been larger than ours.
constexpr std::uint32_t most_slots = 8;

bool has_size(int fd, std::uint64_t bytes) {
    struct stat st {};
    return ::fstat(fd, &st) == 0 && static_cast<std::uint64_t>(st.st_size) == bytes;
}

/// "3/1"
std::optional<std::pair<Rank, SlotIndex>> parse_slot_name(const std::string &rest) {
    auto slash = rest.find('/');
    if (slash == std::string::npos) return std::nullopt;
    auto rank = parse_uint(rest.substr(0, slash), 0, ~std::uint32_t{0});
    auto slot = parse_uint(rest.substr(slash + 1), 0, most_slots - 1);
    if (!rank || !slot) return std::nullopt;
    return std::pair(Rank(static_cast<std::uint32_t>(*rank)), SlotIndex(static_cast<std::uint32_t>(*slot)));
}

/// Null where it is not what a parity can be.
std::shared_ptr<const ParityObject> from_record(const std::unique_ptr<records::ParityRecordT> &record) {
    if (!record || record->ranks.empty() || record->ranks.size() > max_code_data ||
        record->index >= max_code_parity || record->objects.size() != record->ranks.size())
        return nullptr;
    auto parity = std::make_shared<ParityObject>();
    parity->index = record->index;
    for (auto rank : record->ranks) parity->ranks.emplace_back(rank);
    for (const auto &object : record->objects) {
        if (!object) return nullptr;
        parity->objects.push_back(*object);
    }
    return parity;
}

}  // namespace

void Arena::restore(const RecordName &name, const records::RecordT &record, UniqueFd fd) {
    if (const auto *segment = record.body.AsSegmentRecord())
        restore_segment(name, *segment, std::move(fd));
    else if (const auto *slot = record.body.AsSlotRecord())
        restore_slot(name, *slot);
}

void Arena::restore_segment(const RecordName &name, const records::SegmentRecordT &record, UniqueFd fd) {
    auto id = parse_uint(name.rest, 0, ~std::uint64_t{0} >> 1);
    if (!id || record.slot >= most_slots || !fd || !has_size(fd.get(), record.bytes)) {
        log::error("segment " + name.rest + " of group " + name.group + " came back damaged");
        return;
    }
    auto held = std::make_unique<HeldSegment>();
    held->segment = {SegmentId(*id), record.bytes, std::make_shared<const UniqueFd>(std::move(fd))};
    held->rank = Rank(record.rank);
    held->slot = SlotIndex(record.slot);
    held->place = record.place;
    held->ready = record.ready;
    held->record = HeldSegment::Record::kept;
    next_segment_ = std::max(next_segment_, *id + 1);
    services_.budget.add(options_.uid, holding_of(held->segment));
    if (!record.ready) services_.budget.begin_filling(held->segment.fd, record.bytes);
    RankSlots &slots = of(held->rank);
    slots.extend(record.slot + 1u);
    slots.held[record.slot].segments.push_back(std::move(held));
}

void Arena::restore_slot(const RecordName &name, const records::SlotRecordT &record) {
    auto place = parse_slot_name(name.rest);
    if (!place || (record.sealed && !record.seal)) return;
    auto [rank, slot] = *place;
    auto parity = from_record(record.parity);
    if (record.sealed && is_rank(rank) == (parity != nullptr)) return;
    RankSlots &slots = of(rank);
    slots.extend(slot.value() + 1);
    HeldSlot &held = slots.held[slot.value()];
    GenerationId generation = from_proto(record.generation);
    if (record.sealed) {
        set_seal(held, *record.seal, std::move(parity));
        held.seal_on_record = true;
        held.sealed_us = record.sealed_us;
        slots.table.restore_sealed(slot, TrainStep(record.train_step), generation);
    } else {
        slots.table.restore_granted(slot, TrainStep(record.train_step), generation);
    }
    held.world_size = record.world_size;
    held.on_record = true;
    held.former = is_former(generation);
}

/// The keeper has not taken all of its memory: what comes after that lies at other places than it did.
void Arena::drop_behind_gap(HeldSlot &held) {
    std::size_t whole = 0;
    while (whole < held.segments.size() && held.segments[whole]->place == whole) ++whole;
    while (held.segments.size() > whole) drop_last_segment(held);
}

void Arena::finish_restore() {
    for (auto &[rank, slots] : ranks_) {
        for (const auto &held : slots->held) slots->told_bytes = std::max(slots->told_bytes, held.capacity());
        for (std::uint32_t i = 0; i < slots->held.size(); ++i) {
            HeldSlot &held = slots->held[i];
            std::sort(held.segments.begin(), held.segments.end(),
                      [](const auto &a, const auto &b) { return a->place < b->place; });
            drop_behind_gap(held);
            for (auto &segment : held.segments)
                if (!segment->ready) prefault(*segment);
            const auto &seal = held.seal;
            if (slots->table.slots()[i].state == ckpt::SlotState::sealed &&
                seal.table_offset + seal.table_bytes > held.capacity())
                slots->table.void_slot(SlotIndex(i));
        }
    }
}

}  // namespace dlrover::daemon
