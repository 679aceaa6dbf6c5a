// SPDX-License-Identifier: Apache-2.0
// One group's objects on their way from node to node, on this node: copies of its own for its partners,
// theirs that come here, and what its ranks go on from when another node has it.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "common/event_loop.h"
#include "common/log.h"
#include "common/settings.h"
#include "daemon/arena.h"
#include "daemon/group_mover.h"
#include "daemon/group_parity.h"
#include "daemon/move_codec.h"
#include "daemon/ucx_trust.h"
#include "elastic/copier.h"

namespace dlrover::daemon {

/// Thread: the event loop's. No hook is called from inside a call, but for send.
class GroupCopies {
  public:
    struct Services {
        EventLoop &loop;
        Arena &arena;
        elastic::CopierConfig copier = {};
        log::Job about = {};
    };
    struct Hooks {
        std::function<void(NodeIndex to, const MoveWord &word)> send;
        std::function<std::string(NodeIndex)> address_of;
        std::function<std::string(NodeIndex)> name_of;
        /// An object has come, or one was given up for another: what Arena::seals() says has changed.
        std::function<void()> changed;
        std::function<void(bool works, const std::string &text)> protection;
        /// An object that was to leave does not match its checksums: this node's memory has lost it.
        std::function<void(Rank rank, const CheckpointId &id, SlotIndex slot)> damaged;
        /// To and from that node all goes by TCP now, for UcxTrust::pause.
        std::function<void(NodeIndex node, const std::string &why)> ucx_failed = {};
        /// What this node's ranks go on from is here, or will not be: `status`.
        std::function<void(const Status &status)> fetched;
    };
    /// What a world means for this node.
    struct Part {
        std::vector<Rank> ranks;                     ///< that run here
        std::vector<NodeIndex> partners;             ///< keep copies of this node's objects
        std::set<NodeIndex> guests;                  ///< whose copies are kept here
        std::vector<elastic::ObjectSource> sources;  ///< of `ranks`
        std::optional<CheckpointId> restore;
        /// Where a world of another size has saved it: who has each rank's object of it, by rank, and the
        /// ranks whose objects get their copies from this node.
        std::vector<NodeIndex> homes;
        std::vector<Rank> answers;
        std::optional<GroupParity::Part> coding;  ///< where parities are kept in place of copies
    };

    struct Fetching {
        std::uint32_t objects = 0, objects_here = 0;
        std::uint64_t bytes = 0, bytes_here = 0;  ///< bytes: of those whose size is known
    };

    /// All that has come, since this daemon has had the group.
    struct Arrived {
        std::uint64_t bytes = 0, spared_bytes = 0;  ///< spared: of them were here already, and were not sent
    };

    GroupCopies(Services services, Hooks hooks);
    ~GroupCopies();
    GroupCopies(const GroupCopies &) = delete;
    GroupCopies &operator=(const GroupCopies &) = delete;

    /// None: there is no mover now. A pointer that was given is valid until the next call.
    void use_mover(GroupMover *mover);
    void on_world(Part part);
    /// A newer world is being prepared, and has been told what this node holds: no more comes, nothing leaves
    /// until on_world().
    void stop();
    /// The leader's word: this step gets its copies now.
    void protect(const CheckpointId &id);
    /// The newest that is safe, if any is: nothing of it is offered again, as long as it is.
    void settled(const std::optional<CheckpointId> &id);
    /// That object is not here any more: nobody gets it from here.
    void on_dropped(Rank rank, const CheckpointId &id);
    void on_word(NodeIndex from, const MoveWord &word);
    /// A rank here needs this object, which a rank of a world of another size has saved: it comes, unless it
    /// is here.
    void want(Rank rank) { want(rank, true); }
    /// What a rank here goes on from is on its way: how much of it is here; none: nothing is. Every fetch
    /// ends: with the objects, or with trouble_of_fetch().
    std::optional<Fetching> fetching() const;
    /// Why it was given up in this world; empty: it was not.
    const std::string &trouble_of_fetch() const { return gave_up_; }

    /// Whether that object is being made again here.
    bool rebuilds(Rank rank, const CheckpointId &id) const { return parity_.rebuilds(rank, id); }
    const GroupParity &parity() const { return parity_; }

    const Arrived &arrived() const { return arrived_; }
    std::size_t copied() const { return copier_.protected_count(); }
    std::size_t to_copy() const { return copier_.wanted_count(); }
    const std::string &trouble() const { return copier_.trouble(); }

  private:
    struct Outgoing {
        elastic::Copy copy;
        Arena::Object object;
        std::uint32_t world_size = 0;
        bool asked = false;
        GroupMover::Order order = 0;  ///< > 0: the mover sends, or has sent it
        EventLoop::Time deadline{0};  ///< for the next word
        bool by_ucx = false;          ///< as it is sent
    };
    using IncomingKey = std::pair<NodeIndex, std::uint64_t>;
    struct Incoming {
        MoveWord offer;
        Rank place;  ///< whose slot
        ckpt::Holder holder = 0;
        SlotIndex slot;
        std::vector<ArenaSegment> segments;
        GroupMover::Order order = 0;
        EventLoop::Time heard_at{0};  ///< the newest of its offers, which are said again
        bool cancelled = false;
        bool arrived = false;            ///< all of it
        std::optional<MoveWord> accept;  ///< once said
        std::vector<std::pair<Rank, SlotIndex>> lent;
    };
    struct Wanted {
        NodeIndex from;
        EventLoop::Time ask_at{0};
        bool restores = true;        ///< a rank here goes on from it; else it only gets copies from here
        bool asked = false;          ///< since the last failure
        std::uint32_t failures = 0;  ///< the node has not got it, or it did not come whole
        std::uint64_t bytes = 0;     ///< 0: not known yet
    };

    // what leaves
    void act(elastic::Copier::Actions actions);
    void push_copies();
    void begin(const elastic::CopyBegin &begin);
    void offer(std::uint64_t number, const Outgoing &out);
    void on_accept(NodeIndex from, const MoveWord &word);
    void on_sent(std::uint64_t number, const elastic::Copy &copy, SlotIndex slot, const Status &status);
    void finish(std::uint64_t number, bool cancel = true);
    void fail(std::uint64_t number, const std::string &text, bool cancel = true);
    Outgoing *outgoing(NodeIndex to, std::uint64_t number);
    void on_fetch(NodeIndex from, const MoveWord &word);

    // what comes
    void on_offer(NodeIndex from, const MoveWord &word);
    bool is_early(NodeIndex from, const MoveWord &word) const;
    bool passes(NodeIndex from, const MoveWord &word) const;
    bool is_here(NodeIndex from, const MoveWord &word) const;
    bool is_taken(NodeIndex from, const MoveWord &word);
    void take(NodeIndex from, const MoveWord &word);
    void hold_up(NodeIndex from, const MoveWord &word);
    void take_next();
    void pass_on(const IncomingKey &key);
    void on_passed(const IncomingKey &key, const Status &status);
    void on_wait(NodeIndex from, const MoveWord &word);
    void on_rebuilt(Rank rank, const Status &status);
    std::string reason_against(NodeIndex from, const MoveWord &word) const;
    void receive(const IncomingKey &key);
    std::vector<LentObject> lend(Incoming &in);
    void take_back(Incoming &in);
    void spare_nothing(Rank rank, const std::string &why);
    void on_expecting(const IncomingKey &key, const MoveWord &accept, const Status &status);
    void on_arrived(const IncomingKey &key, const Status &status, std::uint64_t spared);
    void on_drop(NodeIndex from, const MoveWord &word);
    void call_off(const IncomingKey &key, const std::string &text);
    void on_sealed(const IncomingKey &key, const Status &status);
    void cancel(const IncomingKey &key);
    void refuse(const IncomingKey &key, const std::string &text);
    std::uint16_t ways_to(NodeIndex node) const;
    void note_ucx(NodeIndex node, const Status &status);
    void answer(NodeIndex to, MoveWord::Kind kind, const MoveWord &to_word, const std::string &text = {});
    bool runs_here(Rank rank) const;
    bool of_other_size(const CheckpointId &id) const { return !part_.homes.empty() && part_.restore == id; }
    bool is_wanted(Rank rank, const CheckpointId &id) const;
    void want(Rank rank, bool restores);
    void ask_for(Rank rank, Wanted &wanted);
    void on_missing(NodeIndex from, const MoveWord &word);
    void on_fetched(Rank rank);
    void on_fetch_failed(Rank rank, const std::string &text);
    void give_up_fetch(Rank rank, const std::string &text);
    void check_wanted();
    void drop_silent();

    void schedule();
    void tick();
    void later(std::function<void()> task);

    Services services_;
    Hooks hooks_;
    GroupMover *mover_ = nullptr;
    GroupParity parity_;
    Part part_;
    bool stopped_ = true;  ///< no world, or one that is being stopped
    std::optional<CheckpointId> protecting_;
    elastic::Copier copier_;
    std::map<std::uint64_t, Outgoing> outgoing_;
    std::map<IncomingKey, Incoming> incoming_;
    std::map<IncomingKey, MoveWord> held_up_;  ///< offers of what is to be added up: one after the other
    std::map<IncomingKey, MoveWord> early_;    ///< offers of steps that the leader has not told this node yet
    std::map<Rank, Wanted> wanted_;
    EventLoop::Time wanted_since_{0};
    Fetching fetched_;  ///< of this world; bytes: of what is here
    std::string fetch_trouble_, gave_up_;
    std::uint64_t last_holder_ = 0;
    std::set<Rank> sent_whole_;  ///< of these something went wrong: nothing is spared any more, in this world
    Arrived arrived_;
    UcxTrust ucx_trust_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle timer_;
};

}  // namespace dlrover::daemon
