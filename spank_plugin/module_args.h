// SPDX-License-Identifier: Apache-2.0
// The words after the module's path in plugstack.conf: agent=PATH socket=PATH timeout_ms=N.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

namespace dlrover::spank {

struct ModuleArgs {
    std::string agent;
    std::string socket;
    std::chrono::milliseconds timeout{2000};
    std::vector<std::string> warnings;  ///< one sentence for each word that was ignored
};

/// Never fails: a word that is unknown or wrong is ignored with a warning.
ModuleArgs parse_module_args(std::span<char *const> words);

}  // namespace dlrover::spank
