// SPDX-License-Identifier: Apache-2.0
// A thread that owns nothing, for calls that block (MUNGE, DNS, libslurm): values go in, results come back on
// the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/event_loop.h"

namespace dlrover {

/// Thread: all members on the loop's.
class WorkerThread {
  public:
    using Completion = std::function<void()>;
    /// Those that go first never wait for one that goes last, but for the one in progress.
    enum class Turn : std::uint8_t { first, last };
    /// Runs on the thread and must hold no reference to the loop's state; what it returns runs on the loop.
    using Job = std::function<Completion()>;

    /// At most `max_waiting` jobs wait of each turn. Starts the thread.
    WorkerThread(EventLoop &loop, std::size_t max_waiting);
    /// Never blocks: a call in progress ends on its own, with nobody listening. No completion runs any more.
    ~WorkerThread();
    WorkerThread(const WorkerThread &) = delete;
    WorkerThread &operator=(const WorkerThread &) = delete;

    /// In order, of one turn. False: its queue is full, the job will not run.
    [[nodiscard]] bool submit(Job job, Turn turn = Turn::first);

  private:
    struct Shared;
    static void run(const std::shared_ptr<Shared> &shared);
    static void deliver(const std::shared_ptr<Shared> &shared, Completion completion);
    std::shared_ptr<Shared> shared_;
    std::size_t max_waiting_;
};

}  // namespace dlrover
