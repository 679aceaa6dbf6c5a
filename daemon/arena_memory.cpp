// SPDX-License-Identifier: Apache-2.0
// The memory of an arena: its segments, their pages and records, and how much each rank gets.
#include <fcntl.h>

#include <algorithm>

#include "base/units.h"
#include "common/log.h"
#include "daemon/arena_slots.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint64_t grain_bytes = 2u << 20;
constexpr std::size_t many_segments = 8, most_discarded = 4096;
constexpr std::uint64_t max_slot_bytes = max_segments_per_slot / 2 * ckpt::max_segment_bytes;

std::uint64_t round_up(std::uint64_t bytes) {
    if (bytes > UINT64_MAX - grain_bytes) return UINT64_MAX / grain_bytes * grain_bytes;
    return (std::max<std::uint64_t>(bytes, 1) + grain_bytes - 1) / grain_bytes * grain_bytes;
}

MemoryBudget::Holding holding_for(std::uint64_t bytes) {
    std::uint64_t wanted = round_up(bytes);
    return {.bytes = wanted, .segments = (wanted + ckpt::max_segment_bytes - 1) / ckpt::max_segment_bytes};
}

}  // namespace

Status check_slot_bytes(std::uint64_t bytes) {
    if (bytes <= max_slot_bytes) return {};
    return Status(Code::resource_exhausted, format_size_bytes(bytes) + " are more than the " +
                                                format_size_bytes(max_slot_bytes) +
                                                " that a checkpoint of a rank can have");
}

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
    services_.budget.add(options_.uid, holding_of(segment->segment));
    services_.budget.begin_filling(segment->segment.fd, bytes);
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
        services_.budget.end_filling(segment.segment.fd);
        return save_segment(segment);
    }
    log::warning("arena " + options_.group_key + ": " + status.message());
    RankSlots &slots = of(segment.rank);
    HeldSlot &held = slots.held[segment.slot.value()];
    bool unused = slots.table.slots()[segment.slot.value()].state == ckpt::SlotState::free;
    if (!unused || status.code() != Code::resource_exhausted) return;
    // A user may have segments made and given up as fast as he can: then these stay his.
    if (services_.prefaulter.waiting() > most_discarded) return;
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
    services_.budget.remove(options_.uid, holding_of(segment.segment));
    services_.budget.end_filling(segment.segment.fd);
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

/// Pages that were asked for but are not there yet count. A save may have made them before anybody says so.
Status Arena::check_job(Rank rank, std::uint64_t more_bytes) const {
    auto allowance = services_.job ? services_.job->allowance(rank) : std::nullopt;
    if (!allowance) return {};
    std::uint64_t taken = allowance->floor_bytes;
    for (const auto &[owner, segment] : unfilled())
        taken += segment.bytes - std::min(segment.bytes, ckpt::held_bytes(segment.fd->get()));
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

/// What a rank, or what is kept of it, is still going to take: `limit` slots, or as many as it was given.
/// What has told no size in this world, where it may be another one, is taken for as large as `like_bytes` at
/// least.
MemoryBudget::Holding Arena::to_come(Rank rank, std::uint32_t limit, std::uint64_t like_bytes) const {
    auto entry = ranks_.find(rank);
    if (entry == ranks_.end()) return RankSlots(limit).lacking(limit, like_bytes);
    const RankSlots &slots = *entry->second;
    if (slots.planned) return slots.lacking(std::max(slots.limit, limit), slots.told_bytes);
    return slots.lacking(limit, std::max(slots.told_bytes, like_bytes));
}

/// All but this rank; of parities also what is on its way into one.
MemoryBudget::Holding Arena::others_to_come(Rank rank, std::uint32_t limit, std::uint64_t bytes) const {
    MemoryBudget::Holding sum;
    auto add = [&](Rank other, std::uint32_t slots) {
        auto more = other == rank ? MemoryBudget::Holding{} : to_come(other, slots, bytes);
        sum.bytes += more.bytes;
        sum.segments += more.segments;
    };
    for (Rank other : tenants_.own) add(other, limit);
    for (Rank guest : tenants_.guests) add(guest, guest_slots);
    return sum;
}

/// Ranks that have not told their size count like this one, and so do copies that are still to come: a slot
/// more would be no use where those have no room.
void Arena::choose_limit(Rank rank, RankSlots &slots, std::uint64_t bytes) {
    for (slots.limit = options_.slots; slots.limit > least_slots; --slots.limit) {
        auto more = slots.lacking(slots.limit, bytes), others = others_to_come(rank, slots.limit, bytes);
        more.bytes += others.bytes;
        more.segments += others.segments;
        if (check(rank, more).ok()) break;
    }
    slots.chosen_at = services_.loop.now();
}

/// There may be more room than there was, or less. Who waits for a slot asks all the time.
void Arena::choose_again(Rank rank, RankSlots &slots) {
    constexpr auto pause = std::chrono::seconds(1);
    bool settled = slots.limit == options_.slots && slots.lacking(slots.limit, slots.told_bytes).bytes == 0;
    if (settled || services_.loop.now() - slots.chosen_at < pause) return;
    choose_limit(rank, slots, slots.told_bytes);
}

/// What others are going to take is no reason to refuse: it may be smaller, or not come.
Status Arena::plan(Rank rank, RankSlots &slots, std::uint64_t bytes) {
    DLROVER_TRY(check_slot_bytes(bytes));
    tenants_.own.insert(rank);
    slots.told_bytes = bytes;
    choose_limit(rank, slots, bytes);
    // A former world may have given it more.
    auto order = slots.by_memory();
    for (std::size_t i = slots.limit; !slots.planned && i < order.size(); ++i) drop_unused(slots, order[i]);
    Status status = check(rank, slots.lacking(slots.limit, bytes));
    slots.planned = status.ok();
    if (status.ok()) return status;
    return Status(status.code(), "this node's checkpoints need " + format_size_bytes(memory().need_bytes) +
                                     " of memory (ranks: " + std::to_string(tenants_.own.size()) +
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

/// The memory of a slot that has nothing in it.
void Arena::drop_unused(RankSlots &slots, SlotIndex slot) {
    const ckpt::Slot &state = slots.table.slots()[slot.value()];
    HeldSlot &held = slots.held[slot.value()];
    while (state.state == ckpt::SlotState::free && state.readers == 0 && !held.segments.empty())
        drop_last_segment(held);
}

void Arena::drop_free_memory(RankSlots &slots) {
    for (std::uint32_t i = 0; i < slots.held.size(); ++i) drop_unused(slots, SlotIndex(i));
}

/// The fewest that a rank was given in this world; where none was, that one has. 0: no size is known.
std::uint32_t Arena::fewest_slots() const {
    std::optional<std::uint32_t> given, had;
    for (const auto &[rank, slots] : ranks_) {
        if (slots->told_bytes == 0 || !is_own(rank)) continue;
        auto &fewest = slots->planned ? given : had;
        std::uint32_t count = slots->planned ? slots->limit : std::max(slots->with_memory(), least_slots);
        fewest = std::min(fewest.value_or(count), count);
    }
    return given ? *given : had.value_or(0);
}

/// What has not told its size counts like the largest of the node's own.
std::uint64_t Arena::need_bytes() const {
    std::uint64_t largest = 0, sum = 0;
    for (const auto &[rank, slots] : ranks_)
        if (is_own(rank)) largest = std::max(largest, slots->told_bytes);
    if (largest == 0) return 0;
    std::uint32_t fewest = fewest_slots();
    auto add = [&](Rank rank, std::uint32_t count) {
        auto entry = ranks_.find(rank);
        std::uint64_t told = entry == ranks_.end() ? 0 : entry->second->told_bytes;
        if (count == 0) count = told > 0 && entry->second->planned ? entry->second->limit : fewest;
        sum += count * round_up(told > 0 ? told : largest);
    };
    for (Rank rank : tenants_.own) add(rank, 0);
    for (Rank rank : tenants_.guests) add(rank, guest_slots);
    return sum;
}

Arena::Memory Arena::memory() const {
    Memory sum;
    sum.prefault_time = prefault_time_;
    sum.slots = fewest_slots();
    sum.need_bytes = need_bytes();
    for (const auto &[rank, slots] : ranks_)
        for (const auto &held : slots->held)
            for (const auto &segment : held.segments) {
                sum.bytes += segment->segment.bytes;
                if (segment->ready) sum.ready_bytes += segment->segment.bytes;
            }
    return sum;
}

}  // namespace dlrover::daemon
