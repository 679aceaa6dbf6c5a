// SPDX-License-Identifier: Apache-2.0
// What the agent's guard told this process (docs/internals.md, "Writer").
#pragma once

#include "helper/environment.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

struct Environment : helper::Environment {
    RunId run;
};

/// not_found, invalid_argument: names the variable.
Result<Environment> read_environment();

}  // namespace dlrover::writer
