// SPDX-License-Identifier: Apache-2.0
// A group's coding groups, on this node: parities that are kept here for other nodes, and objects that are
// made of parts again because no node has them any more. The mover adds up; nothing here reads an object.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "daemon/arena.h"
#include "daemon/group_mover.h"
#include "daemon/move_codec.h"
#include "elastic/coding.h"

namespace dlrover::daemon {

/// Thread: the event loop's. No hook is called from inside a call, but for ask; nor `done` of take().
class GroupParity {
  public:
    struct Services {
        EventLoop &loop;
        Arena &arena;
    };
    struct Hooks {
        /// Fetch: that part of an object that is made again here.
        std::function<void(NodeIndex from, Rank part, const CheckpointId &id)> ask;
        /// A parity is whole, or gone.
        std::function<void()> changed;
        /// The object is here, whole; or it can not be made of these parts.
        std::function<void(Rank rank, const Status &status)> rebuilt;
    };
    struct Part {
        NodeIndex self;
        elastic::World world;
        std::vector<elastic::NodeSpec> nodes;
    };
    enum class Need { none, open, done };
    using Done = std::function<void(Status)>;

    GroupParity(Services services, Hooks hooks);
    ~GroupParity();
    GroupParity(const GroupParity &) = delete;
    GroupParity &operator=(const GroupParity &) = delete;

    void use_mover(GroupMover *mover) { mover_ = mover; }
    void on_world(Part part);
    /// What is not whole is nothing: it begins anew in the next world.
    void stop();
    /// Of this step parities are made now; what another one has that is not whole is nothing.
    void protect(const CheckpointId &id);
    void tick();
    bool busy() const { return !making_.empty(); }

    /// Whether objects are pushed to be added up, and not to be kept.
    bool coded() const { return part_ && !part_->world.groups.empty(); }
    /// Whether this object belongs into a parity here. done: it is in it.
    Need need_of(Rank rank, const CheckpointId &id) const;
    /// Whether what is made again here waits for that part from there.
    bool asks_for(NodeIndex from, Rank part, const CheckpointId &id) const;
    /// Whether that object is being made here; any.
    bool rebuilds(Rank rank, const CheckpointId &id) const;
    bool rebuilds() const { return !making_.empty(); }
    /// Of this world: made again, and to make.
    std::pair<std::uint32_t, std::uint32_t> rebuilt() const { return {made_, to_make_}; }

    /// That object is offered: its row has a place for it, and memory. Else it need not travel.
    Status open(const MoveWord &offer);
    /// That object lies in these segments. `done`: it was added, or why not; nobody reads them any more.
    void take_push(const MoveWord &offer, std::vector<ArenaSegment> from, Done done);
    void take_part(NodeIndex node, const MoveWord &offer, std::vector<ArenaSegment> from, Done done);
    /// A part did not come; empty: it comes later.
    void on_part_failed(NodeIndex from, Rank part, const std::string &text);
    /// The other node is at it.
    void on_part_waits(NodeIndex from, Rank part);
    /// What this world's rows need slots for, and what passes through; also what it goes on from.
    std::set<Rank> places() const;
    /// The same of this world's own steps, where any are kept here.
    std::set<Rank> expected_places() const;

  private:
    std::set<Rank> places_of(const CheckpointId &id) const;
    struct Waiting {
        MoveWord offer;
        std::vector<ArenaSegment> from;
        Done done;
    };
    /// What is being added up in a slot: only that.
    struct Sum {
        Rank place;
        CheckpointId id;
        ckpt::Holder holder = 0;
        SlotIndex slot;
        std::vector<ArenaSegment> segments;
        bool on_record = false, over = false;
        std::uint64_t bytes = 0;
        GroupMover::Order order = 0;  ///< > 0: a part is being added
    };
    /// A parity that is not whole yet.
    struct Row : Sum {
        std::uint32_t index = 0;
        std::vector<Rank> ranks;
        std::uint32_t world_size = 0;
        std::map<Rank, local::SealT> folded;
        std::deque<Waiting> waiting;
        bool sealing = false;
    };
    /// An object that is made again.
    struct Making : Sum {
        elastic::Rebuild rebuild;
        std::vector<elastic::RebuildPart> parts;  ///< those here first
        std::vector<std::uint16_t> units;         ///< of `parts`
        std::uint32_t world_size = 0;
        Rank own;  ///< the parity that is here
        local::SealT object;
        std::size_t next = 0;  ///< the part that comes now
        bool asked = false;
        std::size_t farthest = 0;  ///< `next` has been
        std::uint32_t failures = 0, attempts = 0, begun_anew = 0;
        EventLoop::Time ask_at{0}, heard_at{0};
        std::string trouble;
    };
    using RowPointer = std::shared_ptr<Row>;
    using MakingPointer = std::shared_ptr<Making>;

    std::optional<std::pair<elastic::CodedRow, std::uint32_t>> row_here(Rank rank,
                                                                        const CheckpointId &id) const;
    bool is_whole(Rank place, const CheckpointId &id, std::uint32_t index,
                  const std::vector<Rank> &ranks) const;
    Status check_mover() const;
    ckpt::Holder next_holder() { return ckpt::lasting_holder | copier_bit | ++last_holder_; }

    Result<RowPointer> open_row(const MoveWord &offer);
    void advance(const RowPointer &row);
    Status begin(const RowPointer &row, std::uint64_t bytes);
    void fold(const RowPointer &row);
    void on_folded(const RowPointer &row, const Status &status, std::uint64_t xxh3);
    void seal(const RowPointer &row, std::uint64_t xxh3);
    void on_sealed(const RowPointer &row);
    /// Nothing more comes into it: its slot is given back as soon as the mover has let go of it.
    void end_row(const RowPointer &row, const std::string &why);
    void release(Sum &sum);

    void begin_making(const elastic::Rebuild &rebuild);
    Status prepare(const MakingPointer &making);
    void advance(const MakingPointer &making);
    void begin(const MakingPointer &making);
    Rank part_at(const Making &making) const;
    void fold_own(const MakingPointer &making);
    void fold(const MakingPointer &making, const std::vector<ArenaSegment> &from, std::uint64_t bytes,
              Done done);
    void on_folded(const MakingPointer &making, const Status &status);
    void on_made(const MakingPointer &making, const Status &status);
    void part_failed(const MakingPointer &making, const std::string &text);
    void end_making(const MakingPointer &making, const std::string &why);
    MakingPointer find(NodeIndex from, Rank part, const CheckpointId &id) const;

    void tell_later(Done done, Status status);
    void later(std::function<void()> task);

    /// Their numbers are not those of GroupCopies.
    static constexpr ckpt::Holder copier_bit = ckpt::Holder{1} << 62;

    Services services_;
    Hooks hooks_;
    GroupMover *mover_ = nullptr;
    std::optional<Part> part_;
    std::optional<CheckpointId> protecting_;
    std::map<Rank, RowPointer> rows_;       ///< by place
    std::map<Rank, MakingPointer> making_;  ///< by rank
    std::uint32_t made_ = 0, to_make_ = 0;
    std::uint64_t last_holder_ = 0;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
