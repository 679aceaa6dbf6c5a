// SPDX-License-Identifier: Apache-2.0
// What the ranks of one generation exchange: fences, direct modex, events and what they publish, between this
// node's dlrover-pmixd and the others'. Pure.
#pragma once

#include "pmix_server/announcement.h"
#include "pmix_server/fence_table.h"
#include "pmix_server/modex_table.h"
#include "pmix_server/notice_table.h"
#include "pmix_server/world.h"

namespace dlrover::pmix {

class Exchange {
  public:
    using Token = std::uint64_t;
    /// Called from inside the calls below, but for those that say otherwise.
    struct Hooks {
        std::function<void(std::uint32_t to, const Parcel &parcel)> send;
        std::function<void(Token token, Outcome outcome, const proto::Bytes &data)> finish;
        std::function<void(std::uint32_t from, std::uint64_t number, std::uint32_t rank)> look_up;
        /// A rank of another node has sent it.
        std::function<void(const Announcement &announcement)> announced;
        /// Of what is published and looked up.
        std::function<void(Token token, Outcome outcome, const std::vector<Notice> &found)> told;
    };

    /// Of these ranks (ascending), or of all.
    struct Fence {
        std::vector<std::uint32_t> ranks;
        bool all = false;
        std::string purpose;  ///< what is for another purpose is another fence; none: nothing but a fence
        proto::Bytes data;    ///< of this node's ranks, all of which are there
        Time deadline = Time::max();
        Token token = 0;
    };

    /// board: as the former generation left it.
    Exchange(World world, Board board, Hooks hooks);
    Exchange(const Exchange &) = delete;
    Exchange &operator=(const Exchange &) = delete;

    const World &world() const { return world_; }
    /// Once.
    void begin(Time now);
    /// invalid_argument, resource_exhausted: nothing follows.
    Status fence(Time now, Fence fence);
    Status modex(Time now, std::uint32_t rank, Time deadline, Token token);
    /// By a rank of this node.
    Status change(Time now, const Change &change, Time deadline, Token token);
    Status find(Time now, NoticeQuery query, Time deadline, Token token);
    /// Of a rank of this node, to all other nodes. resource_exhausted: too much.
    Status announce(Time now, const Announcement &announcement);
    /// To what look_up asked for.
    void answer(Time now, std::uint32_t to, std::uint64_t number, Outcome outcome, proto::Bytes data);
    void receive(Time now, std::uint32_t from, const Parcel &parcel);
    /// That place is out of reach for good.
    void lose(Time now, std::uint32_t place);
    /// The ranks are to end: everything that waits is over.
    void stop();
    bool stopped() const { return stopped_; }
    /// After stop().
    Board release_board() { return notices_.release(); }
    void tick(Time now);
    Time next_tick() const;

  private:
    void post(const std::vector<std::uint32_t> &to, const Message &message);
    void on_message(std::uint32_t from, std::span<const std::uint8_t> bytes);
    void on_event(std::uint32_t from, const Message &message);
    /// What came up while something else was done.
    void settle();

    const World world_;
    Hooks hooks_;
    Courier courier_;
    FenceTable fences_;
    ModexTable modex_;
    NoticeTable notices_;
    EventAllowance allowance_;
    Time now_{0};
    std::vector<std::uint32_t> choked_;  ///< places that do not take what is sent
    bool stopped_ = false;
};

}  // namespace dlrover::pmix
