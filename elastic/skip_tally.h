// SPDX-License-Identifier: Apache-2.0
// How many saves were skipped, by whatever ranks: steps of which a rank or more has no object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "base/ids.h"

namespace dlrover::elastic {

class SkipTally {
  public:
    /// Remembered, so that other ranks' skips of the same steps count once.
    static constexpr std::size_t newest_steps = 256;

    /// `counted_until`: a leader before has counted the steps up to there.
    void begin(const GenerationId &of, std::optional<TrainStep> counted_until) {
        if (of_ == of) return;
        *this = SkipTally();
        of_ = of;
        counted_until_ = counted_until;
    }
    void add(TrainStep step) {
        bool old = steps_.size() >= newest_steps && step < *steps_.begin();
        if (old || (counted_until_ && step <= *counted_until_) || !steps_.insert(step).second) return;
        ++count_;
        if (steps_.size() > newest_steps) steps_.erase(steps_.begin());
    }
    /// One rank has skipped as many since the generation began.
    void at_least(std::uint64_t skipped) { most_ = std::max(most_, skipped); }
    /// `before`: of them counted by leaders before.
    std::uint64_t total(std::uint64_t before) const { return std::max(most_, before + count_); }

  private:
    GenerationId of_;
    std::optional<TrainStep> counted_until_;
    std::set<TrainStep> steps_;
    std::uint64_t count_ = 0, most_ = 0;
};

}  // namespace dlrover::elastic
