// SPDX-License-Identifier: Apache-2.0
// What the words of the command line ask for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dlrover::cli {

enum class Command { show_text, status, events, node_check, rollback, scale };

struct CommandLine {
    Command command = Command::show_text;
    std::string text;  ///< of --help or --version: to be printed, nothing else is to be done
    std::string job;   ///< JOB or JOB.STEP; empty: none given
    bool json = false;
    std::uint64_t train_step = 0;  ///< of a rollback
    bool yes = false;              ///< do not ask
    std::uint32_t nodes = 0;       ///< that are wanted
    bool wait = true;              ///< until they are there
};

/// words: without the program's name. An error says what is wrong with them.
Result<CommandLine> parse_command_line(std::vector<std::string> words);

}  // namespace dlrover::cli
