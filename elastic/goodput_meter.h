// SPDX-License-Identifier: Apache-2.0
// Adds up where a group's time goes, on the leader, from the progress of rank 0.
#pragma once

#include <optional>

#include "elastic/goodput.h"

namespace dlrover::elastic {

/// The steps of one generation. (Not inside the meter: clang refuses std::optional of a nested class with
/// initial values.)
struct Stretch {
    Time first_step_end{0}, end{0};
    std::uint64_t first_step = 0, steps = 0;
    Duration save{0};
    std::uint64_t skipped = 0;
};

/// A generation's time from its first finished step to its end is divided by its steps: those up to the step
/// that training went on from are productive, the rest was lost; time in save() is taken out of both. Time
/// without a step since a failure is recovery; before the first step ever, startup. What is left is other.
class GoodputMeter {
  public:
    /// `base`: what an earlier leader had added up; its wall time ended at `now`.
    GoodputMeter(Time now, const Goodput &base);

    /// The first generation, or another one after fail(). `restore_step`: what training goes on from; none:
    /// from the beginning.
    void begin_generation(Time now, std::optional<TrainStep> restore_step);
    /// Newest progress of rank 0 in the present generation.
    void on_progress(Time now, const RankProgress &progress);
    /// The present generation ended in a failure (or was ended on purpose).
    void fail(Time now);
    void on_checkpoint() { ++sum_.checkpoints; }
    void on_restart() { ++sum_.restarts; }

    /// All so far; the open generation's steps count as productive. `ended`: nothing is waited for any more.
    Goodput snapshot(Time now, bool ended) const;

  private:
    /// Adds a stretch of which training kept the steps up to `kept_until` (none: nothing).
    static void settle(Goodput &sum, const Stretch &stretch, std::optional<std::uint64_t> kept_until);

    Goodput sum_;
    Time start_;
    Duration base_wall_;
    std::optional<Time> waiting_since_;  ///< no step since then
    bool stepped_ever_ = false;
    std::optional<std::uint64_t> counted_until_;  ///< newest step in sum_
    std::optional<Stretch> open_;                 ///< of the present generation
    std::optional<Stretch> failed_;  ///< not settled: what the next one restores is not known yet
};

}  // namespace dlrover::elastic
