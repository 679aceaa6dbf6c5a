// SPDX-License-Identifier: Apache-2.0
// Where the time of a group went. The parts sum up to wall.
#pragma once

#include <cstdint>
#include <optional>

#include "elastic/types.h"

namespace dlrover::elastic {

struct Goodput {
    Duration wall{0};
    Duration productive{0};  ///< in steps that the training went on from
    Duration startup{0};     ///< from the start to the first step ever
    Duration lost_steps{0};  ///< steps that had to be done again
    Duration recovery{0};    ///< from a failure to the first step after it
    Duration save{0};        ///< the training loop waited in save()
    Duration other{0};
    std::uint64_t steps = 0, steps_repeated = 0, checkpoints = 0, checkpoints_skipped = 0;
    std::uint32_t restarts = 0;
    /// What of rank 0's progress is in the sums, in the newest generation that has taken a step: who adds up
    /// next goes on from here.
    struct Counted {
        GenerationId generation;
        std::uint64_t steps = 0;
        Duration save{0};
        std::uint64_t skipped = 0;
        std::optional<TrainStep> step;  ///< the newest
        friend bool operator==(const Counted &, const Counted &) = default;
    } counted;
    friend bool operator==(const Goodput &, const Goodput &) = default;
};

}  // namespace dlrover::elastic
