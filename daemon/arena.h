// SPDX-License-Identifier: Apache-2.0
// The memory of one group's checkpoints on this node: slots of the local ranks, their segments, their
// records with the keeper.
#pragma once

#include <map>

#include "ckpt/segment.h"
#include "ckpt/slots.h"
#include "common/event_loop.h"
#include "daemon/local_port.h"
#include "daemon/memory_budget.h"
#include "daemon/record_keeper.h"
#include "daemon/records.h"
#include "elastic/types.h"

namespace dlrover::daemon {

struct ArenaServices {
    EventLoop &loop;
    RecordKeeper &keeper;
    ckpt::Prefaulter &prefaulter;
    MemoryBudget &budget;
};

struct ArenaOptions {
    std::string group_key;
    std::uint32_t uid = 0;
    std::uint32_t slots = 3;
    bool huge_pages = false;
};

/// Thread: the event loop's.
class Arena {
  public:
    struct Segment {
        SegmentId id;
        std::uint64_t bytes = 0;
        SharedFd fd;
    };
    struct Place {
        SlotIndex slot;
        std::vector<Segment> segments;
        std::uint64_t bytes = 0;
        bool overwrites = false;  ///< an older object was given up for it
    };
    struct Object {
        Place place;
        local::SealT seal;
        GenerationId generation;
    };
    struct Memory {
        std::uint64_t bytes = 0, ready_bytes = 0;
        std::chrono::microseconds prefault_time{0};
    };

    Arena(ArenaServices services, ArenaOptions options);
    ~Arena();
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;

    /// One record of kind "segment" or "slot" that the keeper held; damaged ones are dropped. Call
    /// finish_restore() after the last.
    void restore(const RecordName &name, const records::RecordT &record, UniqueFd fd);
    void finish_restore();

    /// Gives every slot of `rank` room for `bytes`, in the background.
    Status prepare(Rank rank, std::uint64_t bytes);
    /// Of those that nobody saves into and that hold nothing.
    std::vector<Place> free_places(Rank rank);
    /// none: no slot may be written now. resource_exhausted: no memory.
    Result<std::optional<Place>> begin(Rank rank, ckpt::Holder holder, TrainStep step,
                                       GenerationId generation, std::uint64_t bytes);
    /// `done` comes once the seal is on record, or could not be put there and is none.
    /// invalid_argument, stale: at once, by the result.
    Status seal(Rank rank, ckpt::Holder holder, GenerationId generation, std::uint32_t world_size,
                local::SealT seal, RecordKeeper::Done done);
    Status abort(Rank rank, SlotIndex slot, ckpt::Holder holder);
    void release_grants_of(Rank rank, ckpt::Holder holder);
    void adopt_grants(Rank rank, ckpt::Holder holder, GenerationId generation);

    /// The ranks whose sealed objects of that step and generation are here.
    std::vector<Rank> holders(const CheckpointId &id) const;
    /// not_found: this node does not hold it. The slot is not written until end_read().
    Result<Object> begin_read(Rank rank, TrainStep step);
    void end_read(Rank rank, SlotIndex slot);

    void complete(TrainStep step, GenerationId generation);
    void give_up(TrainStep below, GenerationId generation, std::optional<TrainStep> complete);
    void rewind(std::optional<TrainStep> from, GenerationId generation);
    void release_grants_before(GenerationId generation);

    /// All sealed objects that are on record.
    std::vector<elastic::Seal> seals() const;
    /// Bytes of the sealed objects of `step` here, and how many there are.
    std::pair<std::uint64_t, std::uint32_t> sealed_bytes(TrainStep step) const;
    std::optional<std::int64_t> sealed_time_us(TrainStep step) const;
    Memory memory() const;
    /// Gives everything back, records included.
    void drop();

  private:
    struct HeldSegment;
    struct HeldSlot;
    struct RankSlots;
    RankSlots &of(Rank rank);
    void restore_segment(const RecordName &name, const records::SegmentRecordT &record, UniqueFd fd);
    void restore_slot(const RecordName &name, const records::SlotRecordT &record);
    Status grow(Rank rank, RankSlots &slots, SlotIndex slot, std::uint64_t bytes);
    Status add_segment(Rank rank, HeldSlot &held, SlotIndex slot, std::uint64_t bytes);
    void prefault(HeldSegment &segment);
    void save_segment(const HeldSegment &segment);
    /// Whether the user's share and the node have room for what a slot lacks to hold `bytes`.
    Status check_room(const HeldSlot &held, std::uint64_t bytes) const;
    void set_seal(HeldSlot &held, local::SealT seal);
    void save_slot(Rank rank, SlotIndex slot, RecordKeeper::Done done = {});
    /// Done with the record of what was sealed in this slot then.
    void on_seal_stored(Rank rank, SlotIndex slot, const elastic::Seal &seal, bool stored);
    /// Brings the records of freed slots in line with the table.
    void drop_free_slots(Rank rank, RankSlots &slots);
    void release_segment(HeldSegment &segment);
    void give_back(HeldSegment &segment);
    Place place_of(const HeldSlot &held, SlotIndex slot) const;
    std::string slot_name(Rank rank, SlotIndex slot) const;
    std::string segment_name(SegmentId id) const;

    ArenaServices services_;
    ArenaOptions options_;
    std::map<Rank, std::unique_ptr<RankSlots>> ranks_;
    std::uint64_t next_segment_ = 1;
    std::chrono::microseconds prefault_time_{0};
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
