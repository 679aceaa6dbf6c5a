// SPDX-License-Identifier: Apache-2.0
// Which complete checkpoint goes to storage, and when. Pure. The daemon of rank 0's node drives it; the other
// nodes do what it says.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

struct FlushConfig {
    std::uint64_t every_steps = 0;  ///< every so many complete steps; 0: not by their number
    Duration every{0};              ///< as soon as this has passed since the last order; 0: not by time
    Duration order_limit = std::chrono::minutes(30);  ///< an order that takes longer is given up
    Duration retry_min = std::chrono::seconds(5), retry_max = std::chrono::minutes(5);
    /// Before the job's end, where one order is not expected to take longer than half of it.
    Duration end_lead = std::chrono::seconds(60);
};

/// A step that every rank of a world has sealed.
struct CompleteStep {
    CheckpointId id;
    std::uint32_t world_size = 0;
    std::vector<NodeIndex> nodes;  ///< that hold its objects
};

/// Every node of it keeps its objects of that step until they are on storage; this node's writer makes the
/// checkpoint complete there.
struct FlushBegin {
    std::uint64_t number = 0;  ///< rises
    CompleteStep step;
    std::optional<Duration> end_in = {};  ///< ordered since the job's end is so near
};
/// No node has to keep anything for this order any more.
struct FlushDrop {
    std::uint64_t number = 0;
};
/// For people: it is on storage, or why it is not. Of a row of failures with one reason only the first.
struct FlushNote {
    bool ok = false;
    CheckpointId id;
    Duration took{0};
    std::string text;   ///< where not ok: a sentence
    bool lost = false;  ///< it is not tried again
};
/// For people, with the order of `by`: so many steps were asked for, and newer ones were complete before the
/// order could be given.
struct FlushPassed {
    CheckpointId first, last, by;
    std::uint64_t count = 0;
};
using FlushAction = std::variant<FlushBegin, FlushDrop, FlushNote, FlushPassed>;

/// One order at a time: training never waits for storage, at worst fewer checkpoints get there. Every call
/// returns what is to be done, in order; call tick() at deadline() at the latest. Deterministic.
class Flusher {
  public:
    using Actions = std::vector<FlushAction>;

    /// Orders get numbers above `number`.
    Flusher(FlushConfig config, std::uint64_t number, Time now);

    /// The newest complete step; an older one than known is ignored.
    Actions complete(Time now, CompleteStep step);
    /// A rank has asked for this complete step: it is ordered at once, or when the present order has ended
    /// the newest in its place. A step that is not newer than one asked for before is ignored.
    Actions ask(Time now, const CheckpointId &id);
    /// This is on storage, whoever has put it there.
    Actions known(Time now, const CheckpointId &id);
    /// The newest complete step is wanted there as soon as possible: something has failed, or the end is
    /// near. Those that are complete only later are not, or storage slower than the steps would never rest.
    Actions hurry(Time now);
    /// Slurm ends the job then; none: nobody knows, or never. The newest complete step is ordered once early
    /// enough for a second attempt, and once more as late as orders have taken so far.
    Actions ends_at(Time now, std::optional<Time> end);
    /// What became of an order. Answers to others than the present one are ignored.
    Actions done(Time now, std::uint64_t number);
    Actions failed(Time now, std::uint64_t number, const std::string &text);
    /// A part of that step is nowhere whole any more: it is not tried again.
    Actions lost(Time now, std::uint64_t number, const std::string &text);
    /// It is nowhere whole any more, and was the newest complete step.
    void forget(const CheckpointId &id);
    Actions tick(Time now);

    Time deadline() const;
    /// The newest complete step is on storage, or there is none.
    bool settled() const;
    std::optional<CheckpointId> newest() const { return newest_ ? std::optional(newest_->id) : std::nullopt; }
    const std::optional<CheckpointId> &stored() const { return stored_; }
    std::optional<CheckpointId> flying() const;
    std::uint32_t failures() const { return failures_; }  ///< in a row
    const std::string &trouble() const { return trouble_; }

  private:
    struct Flight {
        std::uint64_t number;
        CheckpointId id;
        Time since;
    };
    bool asked_waits() const;
    Time first_call() const;
    Time last_call() const;
    std::optional<Time> next_call() const;
    bool end_near(Time now) const;
    void pass_asked();
    bool due(Time now) const;
    void consider(Time now, Actions &out);
    FlushNote describe(Time now, bool ok, const std::string &text) const;
    void land(std::uint64_t number, Actions &out);
    void fail(Time now, const std::string &text, Actions &out);

    FlushConfig config_;
    std::uint64_t number_;
    std::optional<CompleteStep> newest_;
    std::optional<CheckpointId> stored_, asked_;
    bool asked_passed_ = false;  ///< told of already
    FlushPassed passed_;         ///< since the last order
    std::optional<Flight> flight_;
    std::uint64_t steps_since_ = 0;  ///< complete ones since the last order
    Time ordered_at_, retry_at_{Time::min()};
    std::optional<CheckpointId> hurried_;  ///< this one or a newer one is wanted as soon as possible
    std::optional<Time> end_;
    Duration longest_{0};  ///< of the orders that were carried out
    std::uint32_t failures_ = 0;
    std::string trouble_;
};

}  // namespace dlrover::elastic
