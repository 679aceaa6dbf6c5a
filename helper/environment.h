// SPDX-License-Identifier: Apache-2.0
// What the agent's guard told this process (docs/internals.md).
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::helper {

struct Environment {
    JobId job;
    StepId step;
    std::string socket;
};

/// not_found, invalid_argument: names the variable.
Result<Environment> read_environment();

/// Empty: not set.
std::string variable(const char *name);
/// not_found: not set.
Result<std::uint32_t> number_variable(const char *name);

}  // namespace dlrover::helper
