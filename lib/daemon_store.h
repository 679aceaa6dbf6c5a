// SPDX-License-Identifier: Apache-2.0
// The daemon's slots. Mappings for saving are kept for the process's life; a save goes on across a restart of
// the daemon as long as the call's deadline allows.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "ckpt/mapping.h"
#include "lib/background_populate.h"
#include "lib/daemon_link.h"
#include "lib/memory_pieces.h"
#include "lib/store.h"

namespace dlrover::lib {

using ckpt::Access, ckpt::SegmentGrant, ckpt::SegmentRange;

class DaemonStore final : public Store {
  public:
    /// `mutex` serialises the calls; what is read after open() takes it itself where it asks the daemon.
    DaemonStore(DaemonLink &link, const Environment &environment, std::mutex &mutex)
        : link_(link), environment_(environment), mutex_(mutex) {}
    /// After every WorkerHello: what the daemon said, and the end of grants that it may have kept for us
    /// across its restart and that nobody is going to seal.
    void on_welcome(const proto::local::WorkerWelcomeT &welcome);

    Result<std::int64_t> restore_step() override { return restore_step_; }
    Status prepare(std::uint64_t bytes) override;
    std::vector<SaveTarget> prepared() override;
    Result<std::variant<SaveTarget, SaveSkipped>> begin(TrainStep step, std::uint64_t bytes,
                                                        IfFull if_full) override;
    Result<std::variant<std::monostate, SaveSkipped>> seal(const SaveTarget &target,
                                                           const ObjectLayout &layout,
                                                           std::uint64_t copy_us) override;
    Status can_go_to_storage() override;
    void abort(const SaveTarget &target) override;
    Result<ObjectSource> open() override;
    void close(const RestoreEnd &end) override;

  private:
    struct Opened {
        SlotIndex slot;
        SegmentRange range;
        std::deque<SegmentRange> kept;  ///< of the keepers
    };
    using Begun = std::variant<SaveTarget, SaveSkipped>;
    using Sealed = std::variant<std::monostate, SaveSkipped>;
    using Time = DaemonLink::Clock::time_point;

    Result<Begun> ask_slot(TrainStep step, std::uint64_t bytes, IfFull if_full, Time deadline);
    Result<Begun> take_slot(TrainStep step, const proto::local::SlotGrantedT &granted,
                            std::vector<SegmentGrant> segments);
    /// With page tables for all that comes in addition.
    Status update(SegmentRange &range, std::vector<SegmentGrant> segments);
    Result<SegmentRange> map(std::vector<SegmentGrant> segments, Access access);
    /// To be written: true if pages or page tables of it may be missing.
    Result<bool> map_slot(SlotIndex slot, std::vector<SegmentGrant> segments);
    /// Slots that are not mapped yet are, and get their page tables in the background.
    void map_in_good_time(proto::LocalMessage &prepared);
    /// What was restored from it is given up.
    static Status make_writable(SegmentRange &range);
    Status map_for_later(SlotIndex slot, std::vector<SegmentGrant> segments);
    /// The mapping of a slot is about to be used or to go. True: pages or page tables of it may be missing.
    bool end_populating(SlotIndex slot);
    /// The same, and none are missing.
    void finish_populating(SlotIndex slot);
    void populate_in_background();
    /// What a save in fresh memory did not touch comes in the background.
    void end_save();
    void give_back(SlotIndex slot);
    Result<Sealed> try_seal(const SaveTarget &target, const ObjectLayout &layout, std::uint64_t copy_us);
    /// A slot on the present connection for an object whose own grant was lost; the bytes are moved if need
    /// be.
    Result<Begun> regain(const SaveTarget &target, std::uint64_t bytes, Time deadline);
    Result<proto::LocalMessage> ask_plan();
    Result<ObjectSource> open_plan(proto::LocalMessage reply);
    Result<KeeperObject> open_keeper(std::uint32_t rank);
    Result<KeeperObject> map_kept(proto::LocalMessage reply, std::uint32_t rank,
                                  std::deque<SegmentRange> &kept);
    Result<ObjectSource> open_spread(proto::LocalMessage reply);
    Result<SpreadStep> to_spread(proto::LocalMessage &reply) const;
    /// One of the objects of a step that is spread over several nodes. Takes the lock.
    Result<std::optional<KeeperObject>> fetch_object(std::uint32_t rank, bool wait, const CheckpointId &id);
    Result<std::optional<KeeperObject>> ask_object(std::uint32_t rank, const CheckpointId &id);
    Status renew_plan(const CheckpointId &id);
    Result<ObjectSource> open_stored(const proto::local::RestorePlanT &plan);
    Result<SegmentRange> map_to_read(SlotIndex slot, std::vector<SegmentGrant> segments, bool verified);

    DaemonLink &link_;
    const Environment &environment_;
    std::mutex &mutex_;
    std::int64_t restore_step_ = -1;
    bool storage_ = false;  ///< the group has a folder for checkpoints
    std::map<SlotIndex, SegmentRange> slots_;
    std::set<SlotIndex> being_populated_;
    std::optional<SlotIndex>
        fresh_;  ///< the slot granted to us, where pages or page tables of it were missing
    BackgroundPopulate background_;  ///< behind slots_: ends before they are unmapped
    bool saving_ = false;            ///< a slot is granted to us
    std::uint64_t granted_on_ = 0;   ///< DaemonLink::connections() when it was
    std::optional<Opened> opened_;
    ckpt::Mapping stored_;                  ///< an object that was read from storage, or an empty one
    std::deque<SegmentRange> spread_;       ///< objects of other ranks of a step that is spread
    std::shared_ptr<MemoryPieces> pieces_;  ///< of that step; knows what was found damaged in it
};

}  // namespace dlrover::lib
