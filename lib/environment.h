// SPDX-License-Identifier: Apache-2.0
// What the launcher told this process (docs/internals.md, "Environment"), read once at dlrover_open().
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::lib {

struct Environment {
    bool managed = false;  ///< under a daemon's agent
    JobId job;
    StepId step;
    GenerationId generation;
    std::string socket, lineage, local_dir;
    std::uint32_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1, group_rank = 0,
                  group_world_size = 1;
    std::uint32_t restart_count = 0;
    unsigned copy_threads =
        1;               ///< DLROVER_COPY_THREADS, else this process's share of the processors, at most 8
    bool stays = false;  ///< this process leaves its generation by itself (dlrover_stay)
    bool verify_parts = true;  ///< DLROVER_VERIFY_PARTS: pieces that are read in part are verified, too
    std::chrono::milliseconds timeout{};  ///< DLROVER_TIMEOUT_MS: how long one call waits for the daemon
};

/// A value that is there but is no number is an error that names it; one that is missing has its default.
Result<Environment> read_environment();

}  // namespace dlrover::lib
