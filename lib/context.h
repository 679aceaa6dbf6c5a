// SPDX-License-Identifier: Apache-2.0
// What stands behind the C handles.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "lib/daemon_link.h"
#include "lib/daemon_store.h"
#include "lib/dlrover.h"
#include "lib/environment.h"
#include "lib/events.h"
#include "lib/progress.h"
#include "lib/restore.h"
#include "lib/save.h"

struct dlrover_context {
    dlrover_context() = default;
    dlrover_context(const dlrover_context &) = delete;
    dlrover_context &operator=(const dlrover_context &) = delete;

    /// Reads the environment; connects when managed.
    static dlrover::Result<std::unique_ptr<dlrover_context>> open();
    dlrover::Result<dlrover_world> world();

    std::mutex mutex;  ///< of link, store, events and the two flags
    dlrover::lib::Environment environment;
    dlrover::lib::Progress progress;
    std::unique_ptr<dlrover::lib::DaemonLink> link;  ///< none without a daemon
    std::unique_ptr<dlrover::lib::Store> store;
    std::unique_ptr<dlrover::lib::Events> events;
    bool saving = false, restoring = false;
};

struct dlrover_save {
    dlrover_context *context;
    dlrover::lib::ObjectWriter writer;
    std::chrono::steady_clock::time_point begun;
    bool failed = false;  ///< a part of it was refused: it can only be given up
};

struct dlrover_restore {
    dlrover_context *context;
    dlrover::lib::ObjectReader reader;
    std::chrono::steady_clock::time_point begun;
};
