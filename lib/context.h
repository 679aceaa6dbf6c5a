// SPDX-License-Identifier: Apache-2.0
// What stands behind the C handles.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lib/cuda_stage.h"
#include "lib/daemon_link.h"
#include "lib/daemon_store.h"
#include "lib/dlrover.h"
#include "lib/environment.h"
#include "lib/events.h"
#include "lib/progress.h"
#include "lib/protect.h"
#include "lib/rank_objects.h"
#include "lib/restore.h"
#include "lib/save.h"

struct dlrover_restore {
    /// Of all ranks where they are on storage, else of this rank's own object.
    dlrover::lib::GlobalTensors &global();
    dlrover::lib::RankObjects &of_ranks();
    /// How many ranks saved it.
    std::uint32_t saved_by() const;

    dlrover_context *context;
    dlrover::lib::ObjectReader reader;
    std::chrono::steady_clock::time_point begun;
    std::unique_ptr<dlrover::lib::GlobalTensors> tensors;  ///< none: made when asked for
    std::unique_ptr<dlrover::lib::RankObjects> objects;    ///< the same
    std::string damage;                                    ///< found after it was opened
    dlrover::ckpt::Mapping memory;  ///< of a checkpoint named by its place, which is none of the store's
};

struct dlrover_context {
    dlrover_context() = default;
    dlrover_context(const dlrover_context &) = delete;
    dlrover_context &operator=(const dlrover_context &) = delete;
    ~dlrover_context() { end_staging(); }

    /// Reads the environment; connects when managed.
    static dlrover::Result<std::unique_ptr<dlrover_context>> open(bool stays = false);
    dlrover::Result<dlrover_world> world();
    /// unsupported: plain files, without generations.
    dlrover::Status check_daemon() const;
    /// From now on the daemon knows that this process leaves its generation by itself.
    dlrover::Status stay();

    /// These four under `mutex`. Verifies the object; the daemon is told when it is wrong.
    dlrover::Result<std::unique_ptr<dlrover_restore>> open_restore();
    /// The daemon is told nothing of this one.
    dlrover::Result<std::unique_ptr<dlrover_restore>> open_folder(const std::string &folder);
    /// refused: why nothing was taken from it; empty: all is well.
    void close_restore(std::unique_ptr<dlrover_restore> restore, const std::string &refused = "");
    /// Ends a restore that was opened for its sizes alone.
    void drop_peeked();

    /// The GPU side, made at the first use.
    dlrover::Result<dlrover::lib::CudaStage *> stage();
    /// nullptr: no memory of a GPU was saved so far.
    dlrover::lib::CudaStage *stage_if_used();
    /// Before a save's memory goes out of our hands: nothing is being copied into it any more.
    void end_staging();

    std::mutex stage_mutex;  ///< of cuda_stage itself; it lives as long as this, and longer than the store
    std::unique_ptr<dlrover::lib::CudaStage> cuda_stage;

    std::mutex mutex;  ///< of link, store, events, peeked and the two flags
    dlrover::lib::Environment environment;
    dlrover::lib::Progress progress;
    std::unique_ptr<dlrover::lib::DaemonLink> link;  ///< none without a daemon
    std::unique_ptr<dlrover::lib::Store> store;
    std::unique_ptr<dlrover::lib::Events> events;
    bool saving = false, restoring = false;
    /// The last steps, and whether they were saved, else skipped or given up: under `mutex`, too. One that
    /// was not saved is not saved later, since the other ranks may have what it was at first.
    std::vector<std::pair<std::uint64_t, bool>> saves;
    void note_save(std::uint64_t step, bool saved);
    bool has_skipped(std::uint64_t step) const;
    std::atomic<std::uint32_t> save_wait_ms = 0;
    std::unique_ptr<dlrover_restore> peeked;  ///< by dlrover_restart_size(), for dlrover_restart()

    std::mutex protected_mutex;  ///< of protected_memory, and held while it is copied; taken before `mutex`
    dlrover::lib::ProtectedMemory protected_memory;
};

namespace dlrover::lib {
inline constexpr const char *save_given_up = "an earlier part of this save failed: it is given up";
}

struct dlrover_save {
    dlrover_context *context;
    dlrover::lib::ObjectWriter writer;
    std::chrono::steady_clock::time_point begun;
    bool to_storage = false;
    bool failed = false;  ///< a part of it was refused: it can only be given up
    /// Another thread may end the save, while this one goes on with the training: it has lost the time until
    /// then.
    std::thread::id thread = std::this_thread::get_id();
    std::chrono::steady_clock::time_point left_at = begun;
};
