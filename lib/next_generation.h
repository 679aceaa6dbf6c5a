// SPDX-License-Identifier: Apache-2.0
// A process that goes on in the generation after its own (docs/c-api.md, "Staying").
#pragma once

#include <string>
#include <vector>

#include "lib/environment.h"

namespace dlrover::lib {

/// Says that this process has left its generation and waits, without limit, for the next one: whoever is not
/// needed there is ended by the agent. What changes in its environment: NAME=VALUE, or NAME where it goes.
/// stale: the group is over. Precondition: no connection of this rank is open.
Result<std::vector<std::string>> await_next_generation(const Environment &environment);

/// Not safe where another thread reads the environment meanwhile, as setenv() is not.
Status set_variables(const std::vector<std::string> &variables);

}  // namespace dlrover::lib
