// SPDX-License-Identifier: Apache-2.0
#include "daemon/arena.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/units.h"
#include "common/log.h"
#include "daemon/arena_slots.h"
#include "daemon/seal_bounds.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint64_t grain_bytes = 2u << 20;
constexpr std::size_t max_segments_per_slot = proto::max_frame_fds;
constexpr std::size_t many_segments = 8;
constexpr std::uint64_t max_slot_bytes = max_segments_per_slot / 2 * ckpt::max_segment_bytes;
/// With one, a crash in mid-copy would leave no common step.
constexpr std::uint32_t least_slots = 2;
/// Of another node's rank: the safe step, and the one that comes.
constexpr std::uint32_t guest_slots = 2;

std::uint64_t round_up(std::uint64_t bytes) {
    return (std::max<std::uint64_t>(bytes, 1) + grain_bytes - 1) / grain_bytes * grain_bytes;
}

Status check_slot_bytes(std::uint64_t bytes) {
    if (bytes <= max_slot_bytes) return {};
    return Status(Code::resource_exhausted,
                  "a checkpoint of a rank can have " + format_size_bytes(max_slot_bytes) + " at most");
}

MemoryBudget::Holding holding_for(std::uint64_t bytes) {
    std::uint64_t wanted = round_up(bytes);
    return {.bytes = wanted, .segments = (wanted + ckpt::max_segment_bytes - 1) / ckpt::max_segment_bytes};
}

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
    slots->guest = !is_rank(rank);
    return *slots;
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

// ---- segments ----

Status Arena::add_segment(Rank rank, HeldSlot &held, SlotIndex slot, std::uint64_t bytes) {
    // The kernel charges huge pages to no job's memory.
    bool huge_pages = options_.huge_pages && !services_.job;
    auto fd = ckpt::create_segment("dlrover-segment", bytes, {huge_pages, of(rank).numa_node});
    if (!fd) return fd.take_status();
    auto segment = std::make_unique<HeldSegment>();
    segment->segment = {SegmentId(next_segment_++), bytes, std::make_shared<const UniqueFd>(std::move(*fd))};
    segment->rank = rank;
    segment->slot = slot;
    segment->place = static_cast<std::uint16_t>(held.segments.size());
    services_.budget.add(options_.uid, holding_of(segment->segment), bytes);
    save_segment(*segment);
    prefault(*segment);
    held.segments.push_back(std::move(segment));
    return {};
}

void Arena::save_segment(HeldSegment &segment) {
    records::SegmentRecordT record;
    record.rank = segment.rank.value();
    record.slot = static_cast<std::uint16_t>(segment.slot.value());
    record.bytes = segment.segment.bytes;
    record.place = segment.place;
    record.ready = segment.ready;
    services_.keeper.put(segment_name(segment.segment.id), encode_record(std::move(record)),
                         segment.segment.fd->get(),
                         [this, alive = alive_, cancelled = segment.cancelled, &segment](Status stored) {
                             if (*alive && !*cancelled) on_segment_stored(segment, stored);
                         });
}

/// What is there already stays where its news are refused. What is not there would be gone with the daemon:
/// a slot that has it holds no object, and it is taken anew for the next one.
void Arena::on_segment_stored(HeldSegment &segment, const Status &stored) {
    using Record = HeldSegment::Record;
    if (stored.ok()) {
        segment.record = Record::kept;
        keeper_full_ = false;
    }
    if (segment.record != Record::asked) return;
    segment.record = Record::refused;
    if (!std::exchange(keeper_full_, true))
        log::warning(
            "arena " + options_.group_key +
            ": the keeper does not take memory for checkpoints, their saves fail: " + stored.message());
    drop_free_slots(segment.rank, of(segment.rank));
}

void Arena::prefault(HeldSegment &held) {
    if (services_.job) return services_.job->fill(held.rank, held.segment);
    UniqueFd fd(::fcntl(held.segment.fd->get(), F_DUPFD_CLOEXEC, 3));
    EventLoop &loop = services_.loop;
    auto cancelled = held.cancelled;
    auto *segment = &held;
    services_.prefaulter.add(
        std::move(fd), held.segment.bytes, cancelled,
        [this, &loop, alive = alive_, cancelled, segment](ckpt::Prefaulter::Report report) {
            auto kept = std::make_shared<ckpt::Prefaulter::Report>(std::move(report));
            loop.post([this, alive, cancelled, segment, kept] {
                if (!*alive || *cancelled) return;
                prefault_time_ += kept->busy;
                on_filled(*segment, kept->status);
            });
        });
}

/// What can not get its pages is given up where nothing is in it yet: a save would take them all the same.
void Arena::on_filled(HeldSegment &segment, const Status &status) {
    if (status.ok()) {
        segment.ready = true;
        services_.budget.pages_ready(segment.segment.bytes);
        return save_segment(segment);
    }
    log::warning("arena " + options_.group_key + ": " + status.message());
    RankSlots &slots = of(segment.rank);
    HeldSlot &held = slots.held[segment.slot.value()];
    bool unused = slots.table.slots()[segment.slot.value()].state == ckpt::SlotState::free;
    if (!unused || status.code() != Code::resource_exhausted) return;
    while (!held.segments.empty()) drop_last_segment(held);
}

Arena::HeldSegment *Arena::find(SegmentId id) {
    for (auto &[rank, slots] : ranks_)
        for (auto &held : slots->held)
            for (auto &segment : held.segments)
                if (segment->segment.id == id) return segment.get();
    return nullptr;
}

/// The job's word is a user's: whether the pages are there is looked at.
void Arena::filled(SegmentId id, std::chrono::microseconds busy, Status status) {
    HeldSegment *segment = find(id);
    if (!segment || segment->ready) return;
    prefault_time_ += busy;
    if (status.ok() && !ckpt::has_all_pages(segment->segment.fd->get(), segment->segment.bytes))
        status = Status(Code::internal, "a segment that the agent has filled lacks pages");
    on_filled(*segment, status);
}

std::vector<std::pair<Rank, Arena::Segment>> Arena::unfilled() const {
    std::vector<std::pair<Rank, Segment>> found;
    for (const auto &[rank, slots] : ranks_)
        for (const auto &held : slots->held)
            for (const auto &segment : held.segments)
                if (!segment->ready) found.emplace_back(rank, segment->segment);
    return found;
}

void Arena::release_segment(HeldSegment &segment) {
    *segment.cancelled = true;
    services_.budget.remove(options_.uid, holding_of(segment.segment),
                            segment.ready ? 0 : segment.segment.bytes);
}

/// The user keeps the descriptors that he was given: what he touches from now on is charged to him.
void Arena::give_back(HeldSegment &segment) {
    release_segment(segment);
    UniqueFd fd(::fcntl(segment.segment.fd->get(), F_DUPFD_CLOEXEC, 3));
    if (fd)
        services_.prefaulter.discard(std::move(fd), segment.segment.bytes,
                                     services_.budget.pages_leave(segment.ready ? segment.segment.bytes : 0));
}

void Arena::drop_last_segment(HeldSlot &held) {
    give_back(*held.segments.back());
    services_.keeper.drop(segment_name(held.segments.back()->segment.id));
    held.segments.pop_back();
}

MemoryBudget::Holding Arena::holding_of(const Segment &segment) const {
    return {.bytes = segment.bytes, .segments = 1, .node_bytes = services_.job ? 0 : segment.bytes};
}

/// Whom its bytes are charged to.
MemoryBudget::Holding Arena::charged(MemoryBudget::Holding more) const {
    more.node_bytes = services_.job ? 0 : more.bytes;
    return more;
}

Status Arena::check(Rank rank, const MemoryBudget::Holding &more) const {
    if (more.bytes != 0) DLROVER_TRY(check_job(rank, more.bytes));
    return services_.budget.check(options_.uid, charged(more));
}

/// Pages that were asked for but are not there yet count.
Status Arena::check_job(Rank rank, std::uint64_t more_bytes) const {
    auto allowance = services_.job ? services_.job->allowance(rank) : std::nullopt;
    if (!allowance) return {};
    std::uint64_t taken = allowance->floor_bytes;
    for (const auto &[owner, segment] : unfilled()) taken += segment.bytes;
    std::uint64_t free = allowance->cgroup.free_bytes();
    free -= std::min(free, taken);
    if (more_bytes <= free) return {};
    return Status(Code::resource_exhausted, "checkpoints need " + format_size_bytes(more_bytes) +
                                                " more of the job's memory on this node, which has " +
                                                format_size_bytes(free) + " left of its limit of " +
                                                format_size_bytes(allowance->cgroup.limit_bytes) +
                                                "; ask for more with --mem");
}

Status Arena::check_room(Rank rank, const HeldSlot &held, std::uint64_t bytes) const {
    std::uint64_t capacity = held.capacity();
    if (capacity >= bytes) return {};
    return check(rank, holding_for(bytes - capacity));
}

/// Only for who gets all that he asks for do others' kept objects go.
Status Arena::make_room(Rank rank, const HeldSlot &held, std::uint64_t bytes) {
    std::uint64_t capacity = held.capacity();
    if (capacity >= bytes) return {};
    MemoryBudget::Holding more = holding_for(bytes - capacity);
    DLROVER_TRY(check_job(rank, more.bytes));
    return services_.budget.make_room(options_.uid, charged(more));
}

Status Arena::grow(Rank rank, RankSlots &slots, SlotIndex slot, std::uint64_t bytes) {
    HeldSlot &held = slots.held[slot.value()];
    if (held.capacity() >= bytes) return {};
    if (held.segments.size() >= many_segments)
        while (!held.segments.empty()) drop_last_segment(held);
    return add_room(rank, held, slot, bytes);
}

Status Arena::add_room(Rank rank, HeldSlot &held, SlotIndex slot, std::uint64_t bytes) {
    DLROVER_TRY(check_slot_bytes(bytes));
    DLROVER_TRY(make_room(rank, held, bytes));
    std::uint64_t wanted = round_up(bytes - held.capacity());
    while (wanted > 0) {
        std::uint64_t part = std::min(wanted, ckpt::max_segment_bytes);
        DLROVER_TRY(add_segment(rank, held, slot, part));
        wanted -= part;
    }
    return {};
}

// ---- planning ----

std::vector<SlotIndex> Arena::RankSlots::by_memory() const {
    std::vector<SlotIndex> slots;
    for (std::uint32_t i = 0; i < held.size(); ++i) slots.push_back(SlotIndex(i));
    std::stable_sort(slots.begin(), slots.end(), [&](SlotIndex a, SlotIndex b) {
        return held[a.value()].capacity() > held[b.value()].capacity();
    });
    return slots;
}

MemoryBudget::Holding Arena::RankSlots::lacking(std::uint32_t count, std::uint64_t bytes) const {
    MemoryBudget::Holding sum;
    auto slots = by_memory();
    for (std::uint32_t i = 0; i < count; ++i) {
        std::uint64_t capacity = held[slots[i].value()].capacity();
        if (capacity >= bytes) continue;
        auto more = holding_for(bytes - capacity);
        sum.bytes += more.bytes;
        sum.segments += more.segments;
    }
    return sum;
}

std::uint32_t Arena::ranks_to_come() const {
    auto told = std::count_if(ranks_.begin(), ranks_.end(), [](const auto &entry) {
        return entry.second->told_bytes > 0 && !entry.second->guest;
    });
    return ranks_here_ - std::min(ranks_here_, static_cast<std::uint32_t>(told));
}

std::uint64_t Arena::need_bytes(std::uint32_t slots, std::uint64_t rank_bytes) const {
    return (slots + options_.parities.value_or(options_.copies - 1) * guest_slots) * round_up(rank_bytes);
}

/// Ranks that have not told their size count like this one when the number of slots is chosen; they are no
/// reason to refuse: they may save less, or nothing.
Status Arena::plan(Rank rank, RankSlots &slots, std::uint64_t bytes) {
    DLROVER_TRY(check_slot_bytes(bytes));
    slots.told_bytes = bytes;
    slots.guest = false;
    for (slots.limit = options_.slots; slots.limit > least_slots; --slots.limit) {
        auto more = slots.lacking(slots.limit, bytes), like = holding_for(bytes);
        std::uint64_t others = std::uint64_t{ranks_to_come()} * slots.limit;
        more.bytes += others * like.bytes;
        more.segments += others * like.segments;
        if (check(rank, more).ok()) break;
    }
    Status status = check(rank, slots.lacking(slots.limit, bytes));
    if (status.ok()) return status;
    return Status(status.code(), "this node's checkpoints need " + format_size_bytes(memory().need_bytes) +
                                     " of memory (ranks: " + std::to_string(ranks_here_) +
                                     ", slots: " + std::to_string(slots.limit) + " of " +
                                     format_size_bytes(round_up(bytes)) + " for this one): " +
                                     status.message() + ". Save less, or run fewer ranks on a node.");
}

Status Arena::prepare(Rank rank, std::uint64_t bytes) {
    RankSlots &slots = of(rank);
    DLROVER_TRY(plan(rank, slots, bytes));
    auto chosen = slots.by_memory();
    std::vector<std::size_t> before;
    for (const auto &held : slots.held) before.push_back(held.segments.size());
    Status status;
    for (std::uint32_t i = 0; i < slots.limit && status.ok(); ++i)
        if (slots.table.slots()[chosen[i].value()].state == ckpt::SlotState::free)
            status = grow(rank, slots, chosen[i], bytes);
    if (status.ok()) return status;
    for (std::uint32_t i = 0; i < slots.held.size(); ++i)
        while (slots.held[i].segments.size() > before[i]) drop_last_segment(slots.held[i]);
    return status;
}

std::vector<Arena::Place> Arena::free_places(Rank rank) {
    std::vector<Place> places;
    RankSlots &slots = of(rank);
    for (std::uint32_t i = 0; i < slots.held.size(); ++i)
        if (slots.table.slots()[i].state == ckpt::SlotState::free && slots.table.slots()[i].readers == 0 &&
            !slots.held[i].segments.empty())
            places.push_back(place_of(slots.held[i], SlotIndex(i)));
    return places;
}

// ---- saving ----

Result<std::optional<Arena::Place>> Arena::begin(Rank rank, ckpt::Holder holder, TrainStep step,
                                                 GenerationId generation, std::uint64_t bytes) {
    RankSlots &slots = of(rank);
    bytes = std::max<std::uint64_t>(bytes, 1);  // no slot, and no record of one, without a segment
    if (slots.with_memory() == 0 || slots.guest) DLROVER_TRY(plan(rank, slots, bytes));
    slots.told_bytes = std::max(slots.told_bytes, bytes);
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
    if (!grant && !memory.ok()) return memory;
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
                                                      std::uint64_t bytes, bool guest,
                                                      RecordKeeper::Done done) {
    RankSlots &slots = of(rank);
    bytes = std::max<std::uint64_t>(bytes, 1);
    slots.guest = guest && (slots.guest || slots.told_bytes == 0);
    if (slots.guest) {
        slots.limit = std::min(slots.limit, guest_slots);
        drop_unsafe(rank, slots, id);
    } else if (slots.with_memory() == 0) {
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
        if (options_.copies > 1) slots->table.set_freed(from ? std::min(freed, from) : std::nullopt);
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

void Arena::drop_free_memory(RankSlots &slots) {
    for (std::uint32_t i = 0; i < slots.held.size(); ++i)
        while (slots.table.slots()[i].state == ckpt::SlotState::free && !slots.held[i].segments.empty())
            drop_last_segment(slots.held[i]);
}

// ---- all of it ----

/// Ranks that have not told their size count like the largest.
void Arena::add_need(Memory &sum) const {
    std::uint64_t largest = 0;
    for (const auto &[rank, slots] : ranks_) {
        if (slots->told_bytes == 0 || slots->guest) continue;
        largest = std::max(largest, slots->told_bytes);
        sum.slots = sum.slots == 0 ? slots->limit : std::min(sum.slots, slots->limit);
        sum.need_bytes += need_bytes(slots->limit, slots->told_bytes);
    }
    if (largest > 0) sum.need_bytes += ranks_to_come() * need_bytes(sum.slots, largest);
    if (options_.parities) sum.need_bytes += guest_slots * round_up(largest);  // on their way into a parity
}

Arena::Memory Arena::memory() const {
    Memory sum;
    sum.prefault_time = prefault_time_;
    add_need(sum);
    for (const auto &[rank, slots] : ranks_)
        for (const auto &held : slots->held)
            for (const auto &segment : held.segments) {
                sum.bytes += segment->segment.bytes;
                if (segment->ready) sum.ready_bytes += segment->segment.bytes;
            }
    return sum;
}

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
