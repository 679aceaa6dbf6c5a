// SPDX-License-Identifier: Apache-2.0
#include "daemon/arena.h"

#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "daemon/arena_slots.h"
#include "daemon/seal_bounds.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

Status check_seal(const local::SealT &seal, std::uint64_t capacity) {
    return is_within(seal, capacity)
               ? Status()
               : Status(Code::invalid_argument,
                        "the object does not lie inside its slot, or its table or ledger is too long");
}

std::unique_ptr<records::ParityRecordT> to_record(const ParityObject &parity) {
    auto record = std::make_unique<records::ParityRecordT>();
    record->index = parity.index;
    for (Rank rank : parity.ranks) record->ranks.push_back(rank.value());
    for (const auto &object : parity.objects)
        record->objects.push_back(std::make_unique<local::SealT>(object));
    return record;
}

std::pair<std::uint64_t, std::uint64_t> shared_with(const local::SealT &seal, Rank rank) {
    for (const auto &with : seal.shared)
        if (with && with->rank == rank.value()) return {with->kept_by, with->kept_for};
    return {0, 0};
}

}  // namespace

Arena::Arena(ArenaServices services, ArenaOptions options)
    : services_(services),
      options_(std::move(options)),
      // Ids of a former daemon are lower: monotonic time goes on.
      next_segment_(static_cast<std::uint64_t>(services_.loop.now().count())) {}

Arena::~Arena() {
    *alive_ = false;
    for (auto &[rank, slots] : ranks_)
        for (auto &held : slots->held) {
            set_seal(held, {});
            for (auto &segment : held.segments) release_segment(*segment);
        }
}

Arena::RankSlots &Arena::of(Rank rank) {
    auto &slots = ranks_[rank];
    if (slots) return *slots;
    slots = std::make_unique<RankSlots>(options_.slots);
    return *slots;
}

void Arena::expect(ArenaTenants tenants) {
    tenants_ = std::move(tenants);
    for (auto &[rank, slots] : ranks_) {
        slots->planned = false;
        slots->limit = options_.slots;
    }
}

void Arena::place(Rank rank, std::optional<unsigned> numa_node) {
    of(rank).numa_node = numa_node;
}

std::string Arena::slot_name(Rank rank, SlotIndex slot) const {
    return record_name("slot", options_.group_key) + "/" + std::to_string(rank.value()) + "/" +
           std::to_string(slot.value());
}

std::string Arena::segment_name(SegmentId id) const {
    return record_name("segment", options_.group_key) + "/" + std::to_string(id.value());
}

// ---- saving ----

Result<std::optional<Arena::Place>> Arena::begin(Rank rank, ckpt::Holder holder, TrainStep step,
                                                 GenerationId generation, std::uint64_t bytes) {
    DLROVER_TRY(check_slot_bytes(bytes));
    RankSlots &slots = of(rank);
    bytes = std::max<std::uint64_t>(bytes, 1);  // no slot, and no record of one, without a segment
    if (!slots.planned) DLROVER_TRY(plan(rank, slots, bytes));
    slots.told_bytes = std::max(slots.told_bytes, bytes);
    choose_again(rank, slots);
    auto granted = grant(rank, holder, {generation, step}, bytes);
    if (!granted) return granted.take_status();
    if (!*granted) return std::optional<Place>();
    SlotIndex slot = (*granted)->slot;
    save_slot(rank, slot);
    Place place = place_of(slots.held[slot.value()], slot);
    place.overwrites = (*granted)->overwrites;
    return std::optional<Place>(std::move(place));
}

/// None: no slot may be written now.
Result<std::optional<ckpt::Grant>> Arena::grant(Rank rank, ckpt::Holder holder, const CheckpointId &id,
                                                std::uint64_t bytes) {
    RankSlots &slots = of(rank);
    Status memory;
    auto grant = slots.table.grant(holder, id.step, id.generation, [&](SlotIndex slot) {
        const HeldSlot &held = slots.held[slot.value()];
        if (held.capacity() < bytes && !slots.may_grow(slot)) return false;
        Status status = check_room(rank, held, bytes);
        bool room = status.ok();
        if (!room) memory = std::move(status);
        return room;
    });
    // Where two are large enough, those are only in use.
    auto large =
        std::ranges::count_if(slots.held, [&](const HeldSlot &held) { return held.capacity() >= bytes; });
    if (!grant && !memory.ok() && large < least_slots) return memory;
    if (!grant) return grant;
    Status grown = grow(rank, slots, grant->slot, bytes);
    if (!grown.ok()) {
        (void)slots.table.abort(grant->slot, holder).ok();
        drop_free_slots(rank, slots);
        return grown;
    }
    set_seal(slots.held[grant->slot.value()], {});
    return grant;
}

Result<std::optional<Arena::Place>> Arena::begin_copy(Rank rank, ckpt::Holder holder, const CheckpointId &id,
                                                      std::uint64_t bytes, RecordKeeper::Done done) {
    DLROVER_TRY(check_slot_bytes(bytes));
    RankSlots &slots = of(rank);
    bytes = std::max<std::uint64_t>(bytes, 1);
    if (!is_own(rank)) {
        slots.limit = std::min(slots.limit, guest_slots);
        drop_unsafe(rank, slots, id);
    } else if (!slots.planned) {
        DLROVER_TRY(plan(rank, slots, bytes));
    }
    slots.told_bytes = std::max(slots.told_bytes, bytes);
    auto granted = grant(rank, holder, id, bytes);
    if (!granted) return granted.take_status();
    if (!*granted) return std::optional<Place>();
    SlotIndex slot = (*granted)->slot;
    save_slot(rank, slot, std::move(done));
    Place place = place_of(slots.held[slot.value()], slot);
    place.overwrites = (*granted)->overwrites;
    return std::optional<Place>(std::move(place));
}

Result<Arena::Place> Arena::extend(Rank rank, SlotIndex slot, ckpt::Holder holder, std::uint64_t bytes) {
    RankSlots &slots = of(rank);
    HeldSlot &held = slots.held[slot.value()];
    const ckpt::Slot &state = slots.table.slots()[slot.value()];
    if (state.state != ckpt::SlotState::granted || state.holder != holder)
        return Status(Code::stale, "the slot is not granted to this process");
    if (held.capacity() < bytes) DLROVER_TRY(add_room(rank, held, slot, bytes));
    slots.told_bytes = std::max(slots.told_bytes, bytes);
    if (held.segments.size() > max_segments_per_slot)
        return Status(Code::resource_exhausted, "the slot is in too many pieces");
    return place_of(held, slot);
}

/// The step that gets its copies now needs a slot. What lies between the newest freed one and it was given up
/// before it was safe: it is not going to be.
void Arena::drop_unsafe(Rank rank, RankSlots &slots, const CheckpointId &id) {
    std::uint32_t taken = 0;
    for (const ckpt::Slot &slot : slots.table.slots()) taken += slot.state != ckpt::SlotState::free;
    const auto &freed = slots.table.freed();
    for (std::uint32_t i = 0; i < slots.held.size() && taken >= slots.limit; ++i) {
        const ckpt::Slot &slot = slots.table.slots()[i];
        CheckpointId there{slot.generation, slot.step};
        if (slot.state != ckpt::SlotState::sealed || slot.readers != 0 || there >= id || there == freed ||
            there == slots.table.kept())
            continue;
        slots.table.void_slot(SlotIndex(i));
        --taken;
    }
    drop_free_slots(rank, slots);
}

Arena::Place Arena::place_of(const HeldSlot &held, SlotIndex slot) const {
    Place place{slot, {}, held.capacity(), false};
    for (const auto &segment : held.segments) place.segments.push_back(segment->segment);
    return place;
}

Status Arena::seal(Rank rank, ckpt::Holder holder, GenerationId generation, std::uint32_t world_size,
                   local::SealT seal, RecordKeeper::Done done, std::shared_ptr<const ParityObject> parity) {
    RankSlots &slots = of(rank);
    SlotIndex slot(seal.slot);
    if (slot.value() >= slots.held.size()) return Status(Code::invalid_argument, "there is no such slot");
    HeldSlot &held = slots.held[slot.value()];
    DLROVER_TRY(check_seal(seal, held.capacity()));
    auto notes = notes_of(seal, parity.get());
    DLROVER_TRY(services_.budget.check(options_.uid, notes));
    if (Status shared = check_shared(rank, seal, generation); !shared.ok()) {
        DLROVER_TRY(abort(rank, slot, holder));
        return shared;
    }
    // A parity of another world's row has the same place.
    bool replaces = parity != nullptr;
    if (auto first = slots.table.find({generation, TrainStep(seal.train_step)}); first && !replaces) {
        DLROVER_TRY(abort(rank, slot, holder));
        slots.held[first->value()].seal.to_storage |= seal.to_storage;
        save_slot(rank, *first, std::move(done));
        return {};
    }
    DLROVER_TRY(services_.budget.make_room(options_.uid, notes));
    DLROVER_TRY(slots.table.seal(slot, holder, TrainStep(seal.train_step), generation, replaces));
    set_seal(held, std::move(seal), std::move(parity));
    held.world_size = world_size;
    held.sealed_us = wall_clock_us();
    held.seal_on_record = false;
    drop_free_slots(rank, slots);
    elastic::Seal sealed{TrainStep(held.seal.train_step), rank, world_size, generation, held.seal.to_storage};
    save_slot(rank, slot, [this, alive = alive_, rank, slot, sealed, done = std::move(done)](Status stored) {
        done(*alive ? on_seal_stored(rank, slot, sealed, std::move(stored)) : std::move(stored));
    });
    return {};
}

bool Arena::differs(Rank rank, const CheckpointId &id, const local::SealT &seal) const {
    auto it = ranks_.find(rank);
    const local::SealT *first = it == ranks_.end() ? nullptr : sealed(*it->second, id);
    return first != nullptr && first->table_xxh3 != seal.table_xxh3;
}

const local::SealT *Arena::sealed(const RankSlots &slots, const CheckpointId &id) const {
    auto slot = slots.table.find(id);
    return slot ? &slots.held[slot->value()].seal : nullptr;
}

Status Arena::check_shared(Rank rank, const local::SealT &seal, GenerationId generation) const {
    for (const auto &[other, slots] : ranks_) {
        const local::SealT *theirs =
            other == rank ? nullptr : sealed(*slots, {generation, TrainStep(seal.train_step)});
        if (!theirs) continue;
        auto [kept_by, kept_for] = shared_with(seal, other);
        if (shared_with(*theirs, rank) == std::pair(kept_for, kept_by)) continue;
        return Status(Code::invalid_argument,
                      "ranks " + std::to_string(rank.value()) + " and " + std::to_string(other.value()) +
                          " do not share the same tensors at step " + std::to_string(seal.train_step) +
                          ": what is saved as replicated must have the same names, types and shapes on all "
                          "ranks that hold it");
    }
    return {};
}

/// The keeper answers in order: it has answered for the memory too.
Status Arena::on_seal_stored(Rank rank, SlotIndex slot, const elastic::Seal &seal, Status stored) {
    auto it = ranks_.find(rank);
    if (it == ranks_.end()) return stored;
    RankSlots &slots = *it->second;
    const ckpt::Slot &state = slots.table.slots()[slot.value()];
    bool there = state.state == ckpt::SlotState::sealed && state.step == seal.step &&
                 state.generation == seal.generation;
    if (!there) return stored;  // given up in the meantime
    HeldSlot &held = slots.held[slot.value()];
    if (stored.ok() && !held.is_kept())
        stored = Status(Code::resource_exhausted, "it does not take this checkpoint's memory");
    held.seal_on_record = stored.ok();
    if (stored.ok() || state.readers != 0) return stored;
    slots.table.void_slot(slot);
    drop_free_slots(rank, slots);
    return stored;
}

MemoryBudget::Holding Arena::notes_of(const local::SealT &seal, const ParityObject *parity) {
    std::uint64_t sum = noted_bytes(seal);
    if (parity)
        for (const auto &object : parity->objects) sum += noted_bytes(object);
    return {.noted_bytes = sum};
}

void Arena::set_seal(HeldSlot &held, local::SealT seal, std::shared_ptr<const ParityObject> parity) {
    services_.budget.remove(options_.uid, notes_of(held.seal, held.parity.get()));
    held.seal = std::move(seal);
    held.parity = std::move(parity);
    services_.budget.add(options_.uid, notes_of(held.seal, held.parity.get()));
}

void Arena::save_slot(Rank rank, SlotIndex slot, RecordKeeper::Done done) {
    RankSlots &slots = of(rank);
    const ckpt::Slot &state = slots.table.slots()[slot.value()];
    HeldSlot &held = slots.held[slot.value()];
    records::SlotRecordT record;
    record.sealed = state.state == ckpt::SlotState::sealed;
    record.train_step = state.step.value();
    record.generation = to_proto_ptr(state.generation);
    record.world_size = held.world_size;
    record.sealed_us = held.sealed_us;
    if (record.sealed) record.seal = std::make_unique<local::SealT>(held.seal);
    if (record.sealed && held.parity) record.parity = to_record(*held.parity);
    held.on_record = true;
    fault_point(record.sealed ? "daemon_before_seal_record" : "daemon_before_grant_record");
    services_.keeper.put(slot_name(rank, slot), encode_record(std::move(record)), -1, std::move(done));
}

void Arena::drop_free_slots(Rank rank, RankSlots &slots) {
    for (std::uint32_t i = 0; i < slots.held.size(); ++i) {
        const ckpt::Slot &slot = slots.table.slots()[i];
        if (slot.state != ckpt::SlotState::free) continue;
        if (std::exchange(slots.held[i].on_record, false)) {
            set_seal(slots.held[i], {});
            services_.keeper.drop(slot_name(rank, SlotIndex(i)));
        }
        // Who still reads it must not find zeros.
        if (slot.readers != 0) continue;
        bool former = std::exchange(slots.held[i].former, false);
        if (!former && slots.held[i].is_kept()) continue;
        while (!slots.held[i].segments.empty()) drop_last_segment(slots.held[i]);
    }
}

Status Arena::abort(Rank rank, SlotIndex slot, ckpt::Holder holder) {
    RankSlots &slots = of(rank);
    DLROVER_TRY(slots.table.abort(slot, holder));
    drop_free_slots(rank, slots);
    return {};
}

void Arena::release_grants_of(Rank rank, ckpt::Holder holder) {
    RankSlots &slots = of(rank);
    slots.table.release_grants_of(holder);
    drop_free_slots(rank, slots);
}

void Arena::adopt_grants(Rank rank, ckpt::Holder holder, GenerationId generation) {
    of(rank).table.adopt_grants(holder, generation);
}

// ---- restoring ----

Result<Arena::Object> Arena::begin_read(Rank rank, const CheckpointId &id) {
    auto slots = ranks_.find(rank);
    if (slots == ranks_.end() || !sealed(*slots->second, id))
        return Status(Code::not_found, "this node does not hold step " + std::to_string(id.step.value()) +
                                           " of rank " + std::to_string(rank.value()) + ", generation " +
                                           to_string(id.generation));
    return read(*slots->second, *slots->second->table.find(id));
}

Arena::Object Arena::read(RankSlots &slots, SlotIndex slot) {
    slots.table.add_reader(slot);
    const HeldSlot &held = slots.held[slot.value()];
    return {place_of(held, slot), held.seal};
}

void Arena::end_read(Rank rank, SlotIndex slot) {
    RankSlots &slots = of(rank);
    slots.table.drop_reader(slot);
    if (slots.held[slot.value()].former) drop_free_slots(rank, slots);
}

void Arena::drop_parity(Rank place, const CheckpointId &id) {
    auto entry = ranks_.find(place);
    auto slot = entry == ranks_.end() || is_rank(place) ? std::nullopt : entry->second->table.find(id);
    if (!slot || entry->second->table.slots()[slot->value()].readers != 0) return;
    entry->second->table.void_slot(*slot);
    drop_free_slots(place, *entry->second);
}

bool Arena::drop_damaged(Rank rank, const CheckpointId &id, std::optional<SlotIndex> where) {
    auto entry = ranks_.find(rank);
    auto slot = entry == ranks_.end() ? std::nullopt : entry->second->table.find(id);
    if (!slot || (where && *where != *slot)) return false;
    entry->second->table.void_slot(*slot);
    drop_free_slots(rank, *entry->second);
    return true;
}

// ---- generations ----

void Arena::give_up(TrainStep below, GenerationId generation, std::optional<TrainStep> complete) {
    for (auto &[rank, slots] : ranks_) slots->table.give_up(below, generation, complete);
}

void Arena::complete(const CheckpointId &id, const std::optional<CheckpointId> &keep) {
    for (auto &[rank, slots] : ranks_) slots->table.complete(id, keep);
    drop_outdated_former();
}

void Arena::rewind(std::optional<CheckpointId> from, GenerationId generation) {
    for (auto &[rank, slots] : ranks_) {
        auto freed = slots->table.freed();
        slots->table.rewind(from, generation);
        // What the world goes on from may lack its copies: nothing older is freed for it.
        if (options_.redundant) slots->table.set_freed(from ? std::min(freed, from) : std::nullopt);
        drop_free_slots(rank, *slots);
    }
}

void Arena::drop_guest_grants(Rank first, std::uint32_t count) {
    for (auto &[rank, slots] : ranks_) {
        if (rank >= first && rank.value() - first.value() < count) continue;
        slots->table.release_grants_of(0);
        drop_free_slots(rank, *slots);
    }
}

void Arena::release_grants_before(GenerationId generation) {
    for (auto &[rank, slots] : ranks_) {
        slots->table.release_grants_before(generation);
        drop_free_slots(rank, *slots);
    }
}

bool Arena::keep_ranks(const std::set<Rank> &kept) {
    bool gone = false;
    for (auto it = ranks_.begin(); it != ranks_.end();) {
        auto &[rank, slots] = *it;
        if (kept.contains(rank)) {
            ++it;
            continue;
        }
        gone = slots->table.free_reusable() || gone;
        drop_free_slots(rank, *slots);
        drop_free_memory(*slots);
        it = slots->with_memory() == 0 ? ranks_.erase(it) : std::next(it);
    }
    return gone;
}

// ---- all of it ----

void Arena::drop() {
    for (auto &[rank, slots] : ranks_)
        for (auto &held : slots->held) {
            set_seal(held, {});
            for (auto &segment : held.segments) give_back(*segment);
        }
    ranks_.clear();
    for (const char *kind : {"segment", "slot"})
        services_.keeper.drop(record_name(kind, options_.group_key) + "/*");
}

}  // namespace dlrover::daemon
