// SPDX-License-Identifier: Apache-2.0
// Has Slurm asked, as this process's user, by dlrover-allocate: a process for each order, so that nothing
// here waits for Slurm, and neither its library nor its threads are PMIx's neighbours.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "common/event_loop.h"
#include "proto/allocation_words.h"

namespace dlrover::pmix {

/// Thread: the loop's. It does not wait for the ends of its processes: who ignores SIGCHLD has the kernel
/// clear them away, also those that are left when this process executes itself anew.
class Allocator {
  public:
    struct Program {
        std::string path;
        std::vector<std::string> environment;
        std::chrono::milliseconds limit{10000};  ///< from an order to its answer
    };
    /// unsupported: the program is not there. timeout: no answer in time. resource_exhausted: too many wait.
    using Answered = std::function<void(Result<proto::AllocationState> answer)>;

    static constexpr std::size_t most_at_once = 4, most_orders = 64;
    static constexpr std::size_t longest_answer = 512 << 10;

    Allocator(EventLoop &loop, Program program) : loop_(loop), program_(std::move(program)) {}
    Allocator(const Allocator &) = delete;
    Allocator &operator=(const Allocator &) = delete;

    void ask(const proto::AllocationOrder &order, Answered answered);

  private:
    struct Run {
        std::vector<std::string> words;
        Answered answered;
        UniqueFd process, output;  ///< none: not started
        std::string said = {};
        EventLoop::Handle deadline = {}, readable = {};
    };
    using Place = std::list<Run>::iterator;

    void start_next();
    Status start(Run &run);
    void on_readable(Place run);
    void finish(Place run, Result<proto::AllocationState> answer);

    EventLoop &loop_;
    const Program program_;
    std::list<Run> runs_;  ///< those that were started first
};

/// Beside this process's own.
std::string allocate_program();
/// Of an environment what libslurm looks at.
std::vector<std::string> allocate_environment(const std::vector<std::string> &environment);

}  // namespace dlrover::pmix
