// SPDX-License-Identifier: Apache-2.0
// The progress page: one page of shared memory per worker, written by the worker, read by the daemon.
// Untrusted by the reader: any value may be there.
#pragma once

#include <atomic>
#include <cstdint>

namespace dlrover::proto {

inline constexpr std::uint32_t progress_magic = 0x31504c44;  // "DLP1"

enum class Phase : std::uint32_t { startup = 0, step = 1, saving = 2, restoring = 3, declared = 4 };

/// All fields are lock-free atomics; times are CLOCK_MONOTONIC nanoseconds of this node (shared by all its
/// processes). Order of writing at the end of a step: the sums, last_step_ns, then step (release).
struct ProgressPage {
    std::atomic<std::uint32_t> magic;
    std::atomic<Phase> phase;
    std::atomic<std::uint64_t> step_plus_one;  ///< last finished training step + 1; 0: none yet
    std::atomic<std::uint64_t> last_step_ns;   ///< when it finished
    std::atomic<std::uint64_t> first_step_ns;  ///< when the first step of this process finished
    std::atomic<std::uint64_t> steps_done;     ///< by this process
    std::atomic<std::uint64_t>
        step_sum_ns;  ///< sum of the durations of those after the first, without save() and declared phases
    std::atomic<std::uint64_t> save_sum_ns;  ///< time the training loop lost in save()
    std::atomic<std::uint64_t> saves_done;
    std::atomic<std::uint64_t> saves_skipped;
};
static_assert(sizeof(ProgressPage) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
inline constexpr std::uint64_t progress_page_bytes = 4096;

}  // namespace dlrover::proto
