// SPDX-License-Identifier: Apache-2.0
// This process among those of the step: it must not outlive its parent, nor disturb the training.
#pragma once

#include "base/status.h"

namespace dlrover::helper {

enum class Pace {
    behind,    ///< after the training, in everything
    as_ranks,  ///< ranks wait for it
};

/// Once, before any thread: ends with the parent alone, survives broken pipes and limits on files,
/// takes as many descriptors as it may. Other processes of its user can neither trace it nor reach its memory
/// and descriptors, and it leaves no core file (prctl(2), PR_SET_DUMPABLE).
Status settle_in(Pace pace);

}  // namespace dlrover::helper
