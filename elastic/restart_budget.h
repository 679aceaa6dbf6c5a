// SPDX-License-Identifier: Apache-2.0
// Whether a failed group is worth another start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "elastic/types.h"

namespace dlrover::elastic {

/// Two rules. Hopeless: the same failure at the same place in a row, without one training step or new
/// complete checkpoint in between: at most two restarts from one step. Budget: at most `max_restarts`
/// restarts without a newly complete checkpoint in between. Membership changes are not failures and do not
/// count.
class RestartBudget {
  public:
    /// Restarts that a hopeless program gets.
    static constexpr std::uint32_t hopeless_restarts = 2;

    explicit RestartBudget(std::uint32_t max_restarts) : max_restarts_(max_restarts) {}

    enum class Verdict { restart, hopeless, exhausted };
    /// A failure with this signature; `stepped`: the failed generation had finished at least one training
    /// step; `may_go_back`: from an older step it may do better, and is not hopeless yet.
    Verdict on_failure(std::uint64_t signature, bool stepped, bool may_go_back = false);
    /// The group goes on from this older step: the same failure may not come again. Restarts are counted on.
    void go_back(TrainStep to) noexcept {
        progress_ = to;
        repeats_ = 0;
        signature_.reset();
    }
    /// The same by a person's word: what is done again from there is progress.
    void begin_anew(TrainStep from) noexcept {
        go_back(from);
        newest_ = from;
    }
    /// From the step that it went on from so far.
    bool hopeless() const noexcept { return repeats_ >= hopeless_restarts; }
    /// A checkpoint newer than every one before is complete.
    void on_complete(TrainStep step);

    /// The last failure's first cause turned out to be another one.
    void correct(std::uint64_t signature) noexcept { signature_ = signature; }
    /// What an earlier leader had counted; `newest`: the group has come so far, and gone back since.
    void resume(std::uint32_t used, std::optional<TrainStep> newest = {}) noexcept {
        used_ = used < max_restarts_ ? used : max_restarts_;
        newest_ = newest;
    }

    std::uint32_t used() const noexcept { return used_; }
    std::uint32_t left() const noexcept { return max_restarts_ - used_; }

  private:
    std::uint32_t max_restarts_;
    std::uint32_t used_ = 0;
    std::uint32_t repeats_ = 0;  ///< restarts after the same failure
    std::optional<std::uint64_t> signature_;
    std::optional<TrainStep> newest_;
    std::optional<TrainStep> progress_;  ///< newest since the group has gone back
};

/// What srun shows: the exit status, or 128 + signal. 1 for a status that says success.
int exit_code_of(int wait_status) noexcept;
/// "exited with code 3", "was killed by signal 9 (Killed)", "ran out of memory".
std::string describe_exit(const WorkerExit &exit);
/// Position in `exits` of the first cause: earlier before later; within a window of `same_time`, a signal or
/// an error text before a plain exit (peers that only lost their connection). Precondition: not empty.
std::size_t first_cause(const std::vector<WorkerExit> &exits, Duration same_time);

}  // namespace dlrover::elastic
