// SPDX-License-Identifier: Apache-2.0
// The memory of one group's checkpoints on this node: slots of the local ranks, their segments, their
// records with the keeper.
#pragma once

#include <map>
#include <set>

#include "ckpt/cgroup_memory.h"
#include "ckpt/segment.h"
#include "ckpt/slots.h"
#include "common/event_loop.h"
#include "daemon/local_port.h"
#include "daemon/memory_budget.h"
#include "daemon/parity.h"
#include "daemon/record_keeper.h"
#include "daemon/records.h"
#include "elastic/types.h"

namespace dlrover::daemon {

/// A part of a slot: a memfd.
struct ArenaSegment {
    SegmentId id;
    std::uint64_t bytes = 0;
    SharedFd fd;
};

/// The job whose cgroup an arena's pages are charged to.
class JobMemory {
  public:
    struct Allowance {
        ckpt::CgroupMemory cgroup;
        std::uint64_t floor_bytes = 0;  ///< of the limit: to be left free
    };
    virtual ~JobMemory() = default;
    /// none: nothing limits it.
    virtual std::optional<Allowance> allowance(Rank rank) const = 0;
    /// Has somebody inside touch the pages first. Arena::filled() follows, or he is gone: the next one gets
    /// what Arena::unfilled() says.
    virtual void fill(Rank rank, const ArenaSegment &segment) = 0;
};

struct ArenaServices {
    EventLoop &loop;
    RecordKeeper &keeper;
    ckpt::Prefaulter &prefaulter;
    MemoryBudget &budget;
    JobMemory *job = nullptr;  ///< none: pages are charged to the daemon
};

struct ArenaOptions {
    std::string group_key;
    std::uint32_t uid = 0;
    std::uint32_t slots = 3;
    bool huge_pages = false;
    bool redundant = false;           ///< kept on other nodes too: what is complete may not be safe yet
    std::uint32_t restart_count = 0;  ///< of the job: objects of lower terms are of its runs before
};

/// Whose checkpoints a node has in a world.
struct ArenaTenants {
    std::set<Rank> own;  ///< run here
    std::set<Rank>
        guests;  ///< other nodes', whose copies are kept here; or places of parities, and `passage`
};

/// Thread: the event loop's.
class Arena {
  public:
    using Segment = ArenaSegment;
    struct Place {
        SlotIndex slot;
        std::vector<Segment> segments;
        std::uint64_t bytes = 0;
        bool overwrites = false;  ///< an older object was given up for it
    };
    struct Object {
        Place place;
        local::SealT seal;
    };
    struct Memory {
        std::uint64_t bytes = 0, ready_bytes = 0;
        std::uint64_t need_bytes = 0;  ///< of all ranks here; 0: no size is known yet
        std::uint32_t slots = 0;       ///< the fewest that a rank has
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

    /// In the world that is in force now. Who saves without being named is taken for the node's own.
    void expect(ArenaTenants tenants);
    /// Where segments made for `rank` from now on lie; none: anywhere.
    void place(Rank rank, std::optional<unsigned> numa_node);
    /// At least as many as the options say, for a rank that a former daemon gave more.
    std::uint32_t slots(Rank rank) const;
    /// Gives the slots of `rank` room for `bytes`, their pages in the background: all slots where the node
    /// has room for as many of each of its ranks, and for what it keeps for other nodes, else two.
    /// resource_exhausted: not even that; nothing was taken.
    Status prepare(Rank rank, std::uint64_t bytes);
    /// Of those that nobody saves into and that hold nothing.
    std::vector<Place> free_places(Rank rank);
    /// The job's part of what fill() asked for is done; `status`: resource_exhausted where there is no room.
    void filled(SegmentId segment, std::chrono::microseconds busy, Status status);
    std::vector<std::pair<Rank, Segment>> unfilled() const;
    /// none: no slot may be written now. resource_exhausted: no memory.
    Result<std::optional<Place>> begin(Rank rank, ckpt::Holder holder, TrainStep step,
                                       GenerationId generation, std::uint64_t bytes);
    /// A slot for an object that comes from another node; `holder` has ckpt::lasting_holder set. A rank that
    /// does not run here gets two slots; where none is free, one that was copied and is not needed now goes.
    /// `done` comes once the grant is on record, and only where there is one.
    Result<std::optional<Place>> begin_copy(Rank rank, ckpt::Holder holder, const CheckpointId &id,
                                            std::uint64_t bytes, RecordKeeper::Done done);
    /// That slot, still being written, gets room for `bytes`; what is in it stays.
    Result<Place> extend(Rank rank, SlotIndex slot, ckpt::Holder holder, std::uint64_t bytes);
    /// `done` comes once the seal is on record, or could not be put there and is none.
    /// invalid_argument, stale: at once, by the result.
    /// invalid_argument also where another rank's seal of that step says otherwise of what the two share; the
    /// slot is free then.
    /// Of a step that is sealed twice in one generation the first object counts: others have saved the same
    /// step as it was then, and copies of it may be on other nodes. The second asks for storage at most.
    /// `parity`: what it is made of, where it is no rank's object.
    Status seal(Rank rank, ckpt::Holder holder, GenerationId generation, std::uint32_t world_size,
                local::SealT seal, RecordKeeper::Done done, std::shared_ptr<const ParityObject> parity = {});
    /// Whether that rank has sealed this step with other bytes.
    bool differs(Rank rank, const CheckpointId &id, const local::SealT &seal) const;
    Status abort(Rank rank, SlotIndex slot, ckpt::Holder holder);
    void release_grants_of(Rank rank, ckpt::Holder holder);
    void adopt_grants(Rank rank, ckpt::Holder holder, GenerationId generation);

    /// A former daemon's, for ranks outside [first, first + count).
    void drop_guest_grants(Rank first, std::uint32_t count);

    bool holds(Rank rank, const CheckpointId &id) const;
    /// That object's; 0: it is not here.
    std::uint32_t world_size(Rank rank, const CheckpointId &id) const;
    /// The ranks whose sealed objects of that step and generation are here.
    std::vector<Rank> holders(const CheckpointId &id) const;
    /// not_found: this node does not hold it. The slot is not written until end_read().
    Result<Object> begin_read(Rank rank, const CheckpointId &id);
    void end_read(Rank rank, SlotIndex slot);

    /// These three as ckpt::SlotTable.
    void complete(const CheckpointId &id, const std::optional<CheckpointId> &keep = std::nullopt);
    void give_up(TrainStep below, GenerationId generation, std::optional<TrainStep> complete);
    void rewind(std::optional<CheckpointId> from, GenerationId generation);
    void release_grants_before(GenerationId generation);
    /// No rank but these saves here, or has its copies here, any more: the others' memory is given back, but
    /// for what must not be reused yet. Whether an object has gone.
    bool keep_ranks(const std::set<Rank> &ranks);

    /// None: that parity is not here, or not on record.
    std::shared_ptr<const ParityObject> parity(Rank place, const CheckpointId &id) const;
    /// It does not match its checksums: from now on it is not here; who reads it keeps it until end_read().
    /// false: it was not here.
    bool drop_damaged(Rank rank, const CheckpointId &id, std::optional<SlotIndex> where = {});
    /// It is not whole after all, or not needed; a reader's stays.
    void drop_parity(Rank place, const CheckpointId &id);

    /// All sealed objects that are on record; parities.
    std::vector<elastic::Seal> seals() const;
    std::vector<elastic::Parity> parities() const;
    std::uint64_t parity_bytes() const;
    /// Bytes of the sealed objects of `step` here, and how many there are.
    std::pair<std::uint64_t, std::uint32_t> sealed_bytes(TrainStep step) const;
    std::optional<std::int64_t> sealed_time_us(TrainStep step) const;
    Memory memory() const;
    /// Gives everything back, records included.
    void drop();

    /// The group is over, and its job may come back: sealed objects stay, nothing else does.
    void keep_sealed();
    /// Takes over what that arena kept; of another name, it is to be dropped then. Where one of these objects
    /// is not needed any more its memory goes: it is not charged to this run.
    void adopt(Arena &before);
    MemoryBudget::Holding holding() const;

  private:
    struct HeldSegment;
    struct HeldSlot;
    struct RankSlots;
    RankSlots &of(Rank rank);
    const local::SealT *sealed(const RankSlots &slots, const CheckpointId &id) const;
    Status check_shared(Rank rank, const local::SealT &seal, GenerationId generation) const;
    Object read(RankSlots &slots, SlotIndex slot);
    void restore_segment(const RecordName &name, const records::SegmentRecordT &record, UniqueFd fd);
    void restore_slot(const RecordName &name, const records::SlotRecordT &record);
    void drop_behind_gap(HeldSlot &held);
    bool is_own(Rank rank) const { return tenants_.own.contains(rank); }
    /// How many slots the rank gets. resource_exhausted: not even two.
    Status plan(Rank rank, RankSlots &slots, std::uint64_t bytes);
    void choose_limit(Rank rank, RankSlots &slots, std::uint64_t bytes);
    void choose_again(Rank rank, RankSlots &slots);
    MemoryBudget::Holding charged(MemoryBudget::Holding more) const;
    Status check(Rank rank, const MemoryBudget::Holding &more) const;
    Status check_job(Rank rank, std::uint64_t more_bytes) const;
    MemoryBudget::Holding holding_of(const Segment &segment) const;
    HeldSegment *find(SegmentId segment);
    void on_filled(HeldSegment &segment, const Status &status);
    std::uint32_t fewest_slots() const;
    std::uint64_t need_bytes() const;
    MemoryBudget::Holding to_come(Rank rank, std::uint32_t limit, std::uint64_t like_bytes) const;
    MemoryBudget::Holding others_to_come(Rank rank, std::uint32_t limit, std::uint64_t bytes) const;
    Result<std::optional<ckpt::Grant>> grant(Rank rank, ckpt::Holder holder, const CheckpointId &id,
                                             std::uint64_t bytes);
    void drop_unsafe(Rank rank, RankSlots &slots, const CheckpointId &id);
    Status grow(Rank rank, RankSlots &slots, SlotIndex slot, std::uint64_t bytes);
    Status add_segment(Rank rank, HeldSlot &held, SlotIndex slot, std::uint64_t bytes);
    void prefault(HeldSegment &segment);
    void save_segment(HeldSegment &segment);
    void on_segment_stored(HeldSegment &segment, const Status &stored);
    /// Whether the user's share and the node have room for what a slot lacks to hold `bytes`.
    Status check_room(Rank rank, const HeldSlot &held, std::uint64_t bytes) const;
    /// For what is taken now.
    Status make_room(Rank rank, const HeldSlot &held, std::uint64_t bytes);
    Status add_room(Rank rank, HeldSlot &held, SlotIndex slot, std::uint64_t bytes);
    void set_seal(HeldSlot &held, local::SealT seal, std::shared_ptr<const ParityObject> parity = {});
    void save_slot(Rank rank, SlotIndex slot, RecordKeeper::Done done = {});
    void save_all();
    /// What became of the record of what was sealed in this slot then; whether it counts.
    Status on_seal_stored(Rank rank, SlotIndex slot, const elastic::Seal &seal, Status stored);
    static MemoryBudget::Holding notes_of(const local::SealT &seal, const ParityObject *parity);
    /// Brings the records of freed slots in line with the table.
    void drop_free_slots(Rank rank, RankSlots &slots);
    bool is_former(const GenerationId &generation) const;
    void drop_outdated_former();
    void release_segment(HeldSegment &segment);
    void give_back(HeldSegment &segment);
    void drop_last_segment(HeldSlot &held);
    void drop_unused(RankSlots &slots, SlotIndex slot);
    void drop_free_memory(RankSlots &slots);
    Place place_of(const HeldSlot &held, SlotIndex slot) const;
    std::string slot_name(Rank rank, SlotIndex slot) const;
    std::string segment_name(SegmentId id) const;

    ArenaServices services_;
    ArenaOptions options_;
    std::map<Rank, std::unique_ptr<RankSlots>> ranks_;
    ArenaTenants tenants_;
    std::uint64_t next_segment_ = 1;
    std::chrono::microseconds prefault_time_{0};
    bool keeper_full_ = false;  ///< it has refused the newest segment, and that is said
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
