// SPDX-License-Identifier: Apache-2.0
// What the words behind `dlrover ckpt` ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace dlrover::cli {

enum class CkptAction { show_text, list, show, verify, remove, rollback, export_to, import_from };

struct CkptOptions {
    CkptAction action = CkptAction::show_text;
    std::string text;    ///< of --help: to be printed, nothing else is to be done
    std::string folder;  ///< DIR
    bool json = false, all = false, yes = false, force = false, incomplete = false, suspect = false,
         undo = false;
    std::vector<std::uint64_t> steps;
    std::optional<std::uint64_t> older_than;
    std::string format, file, lineage;  ///< `file`: what is written or read
    std::vector<std::string> names;     ///< patterns; none: everything
    std::string run, cluster;           ///< import, instead of a lineage: the job's --dlrover-name
    std::vector<std::string> command;   ///< and its command

    std::optional<std::uint64_t> step() const {
        return steps.empty() ? std::nullopt : std::optional(steps.front());
    }
};

/// words: behind "ckpt". An error says what is wrong with them.
Result<CkptOptions> parse_ckpt_options(std::vector<std::string> words);

}  // namespace dlrover::cli
