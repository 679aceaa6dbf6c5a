// SPDX-License-Identifier: Apache-2.0
// Which of a node's objects go to which other node, and when. Pure. Each node's daemon drives its own.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

struct CopierConfig {
    std::size_t at_once = 4;
    Duration retry_min = std::chrono::milliseconds(100), retry_max = std::chrono::seconds(5);
    /// What was copied is asked for again where its step is not safe for so long: with parities the receiver
    /// may have had to begin anew, and what it had may be damaged. 0: never.
    Duration recheck{0};
    Duration patience = std::chrono::seconds(15);  ///< without a success before the node counts as exposed
};

/// One rank's object of a step, for another node.
struct Copy {
    NodeIndex to;
    Rank rank;
    CheckpointId id;
    friend auto operator<=>(const Copy &, const Copy &) = default;
};

struct CopyBegin {
    std::uint64_t number = 0;  ///< rises
    Copy copy;
    bool asked = false;  ///< by fetch()
};
/// Nobody wants it any more.
struct CopyDrop {
    std::uint64_t number = 0;
};
/// Whether this node's objects get to its partners; text: why not, a sentence.
struct CopyState {
    bool works = true;
    std::string text;
};
using CopyAction = std::variant<CopyBegin, CopyDrop, CopyState>;

/// Every call returns what is to be done, in order; call tick() at deadline() at the latest. Deterministic.
class Copier {
  public:
    using Actions = std::vector<CopyAction>;

    /// Copies get numbers above `number`.
    Copier(CopierConfig config, std::uint64_t number) : config_(config), number_(number) {}

    /// These objects of one step are to get to the partners: instead of those of another step, and besides
    /// those of the same that were asked for before.
    Actions protect(Time now, const CheckpointId &id, const std::vector<Rank> &ranks,
                    const std::vector<NodeIndex> &partners);
    /// The newest step that the leader calls safe, if there is one.
    void settled(const std::optional<CheckpointId> &id) { settled_ = id; }
    /// A node has to go on from this object: before all others.
    Actions fetch(Time now, const Copy &copy);
    /// A new world: nothing of before is wanted.
    Actions clear(Time now);
    Actions done(Time now, std::uint64_t number);
    /// This node does not hold that object any more: nobody gets it from here.
    Actions lost(Time now, Rank rank, const CheckpointId &id);
    Actions failed(Time now, std::uint64_t number, const std::string &text);
    Actions tick(Time now);

    Time deadline() const;
    /// Of the step that is protected: done, and all.
    std::size_t protected_count() const { return done_; }
    std::size_t wanted_count() const { return known_.size(); }
    const std::string &trouble() const { return trouble_; }

  private:
    struct Job {
        Copy copy;
        bool urgent = false;
        std::uint64_t number = 0;  ///< > 0: under way
        std::uint32_t failures = 0;
        Time retry_at{Time::min()};
    };
    Job *find(std::uint64_t number);
    void start(Time now, Actions &out);
    void drop(const std::vector<Job> &jobs, Actions &out) const;
    void recheck(Time now);
    void say(bool works, const std::string &text, Actions &out);

    CopierConfig config_;
    std::uint64_t number_;
    std::vector<Job> jobs_;
    CheckpointId protected_;
    std::set<Copy> known_;  ///< of it: asked for at some time
    std::size_t done_ = 0;
    std::optional<CheckpointId> settled_;
    Time good_at_{0};  ///< the newest success, or when there was nothing to do
    bool works_ = true;
    std::string trouble_;
};

}  // namespace dlrover::elastic
