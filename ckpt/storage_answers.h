// SPDX-License-Identifier: Apache-2.0
// Signs of life of storage: what is slow still answers, what hangs does not.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace dlrover::ckpt {

/// Calls into storage of this process that have returned, with whatever outcome; not every one counts, but
/// no work on files goes on for long without. Thread: any. Who waits for it to change is woken.
inline std::atomic<std::uint64_t> storage_answers{0};

/// Leaves errno as it is.
inline void note_storage_answer() noexcept {
    int error = errno;
    storage_answers.fetch_add(1, std::memory_order_relaxed);
    storage_answers.notify_one();
    errno = error;
}

}  // namespace dlrover::ckpt
