// SPDX-License-Identifier: Apache-2.0
// What the agent's guard told this process (docs/internals.md, "Writer").
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

struct Environment {
    JobId job;
    StepId step;
    std::string socket;
    RunId run;
};

/// not_found, invalid_argument: names the variable.
Result<Environment> read_environment();

}  // namespace dlrover::writer
