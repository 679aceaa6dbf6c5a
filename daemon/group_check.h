// SPDX-License-Identifier: Apache-2.0
// One group's checks on this node (elastic::RunCheck): the mover works for a moment and makes bytes, which go
// to another node's mover and come back, as copies of checkpoints do.
#pragma once

#include <functional>
#include <optional>

#include "common/event_loop.h"
#include "daemon/group_mover.h"
#include "daemon/move_codec.h"
#include "elastic/member.h"

namespace dlrover::daemon {

/// Thread: the event loop's.
class GroupCheck {
  public:
    static constexpr std::uint64_t bytes = std::uint64_t{32} << 20;
    struct Hooks {
        std::function<void(NodeIndex to, const MoveWord &word)> send;
        std::function<std::string(NodeIndex)> address_of;
        std::function<GroupMover *()> mover;  ///< that is ready; none: there is none now
        std::function<Status()> room;         ///< for so many bytes, twice
        std::function<void(elastic::LocalCheck)> done;
    };

    GroupCheck(EventLoop &loop, Hooks hooks) : loop_(loop), hooks_(std::move(hooks)) {}
    ~GroupCheck();
    GroupCheck(const GroupCheck &) = delete;
    GroupCheck &operator=(const GroupCheck &) = delete;

    static bool is_word_of_check(MoveWord::Kind kind);
    /// An earlier one ends, unanswered.
    void run(const elastic::RunCheck &check);
    void on_word(NodeIndex from, const MoveWord &word);

  private:
    /// What this node was told to do.
    struct Own {
        elastic::RunCheck check;
        std::uint64_t number = 0;
        ArenaSegment there, back;
        std::uint64_t xxh3 = 0;
        EventLoop::Time until{0}, sent_at{0};  ///< until: the end of it all
        EventLoop::Time mover_until{0};
        elastic::Duration work{0};
        std::string note;  ///< of the work
        EventLoop::Handle timer;
    };
    /// What another node was told to do with this one.
    struct Guest {
        NodeIndex from;
        std::uint64_t number = 0;
        ArenaSegment segment;
    };

    void begin();
    void on_measured(const NodeMeasure &measure);
    void fail(const std::string &text, bool unfit = false);
    void finish();
    void on_try(NodeIndex from, const MoveWord &word);
    void on_accept(NodeIndex from, const MoveWord &word);
    void on_back(NodeIndex from);
    void receive(NodeIndex from, std::uint64_t number, const ArenaSegment &into, std::uint64_t xxh3,
                 std::function<void(Status)> arrived);
    void send(NodeIndex to, const ArenaSegment &segment, const MoveWord &word,
              std::function<void(Status)> sent);
    void say(NodeIndex to, MoveWord::Kind kind, std::uint64_t number, const std::string &text = {});
    bool is_own(std::uint64_t number) const { return own_ && own_->number == number; }
    bool is_guest(NodeIndex from, std::uint64_t number) const {
        return guest_ && guest_->from == from && guest_->number == number;
    }
    Result<ArenaSegment> make_memory() const;

    EventLoop &loop_;
    Hooks hooks_;
    std::optional<Own> own_;
    std::optional<Guest> guest_;
    std::uint64_t last_number_ = 0;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
