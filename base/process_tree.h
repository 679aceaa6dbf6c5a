// SPDX-License-Identifier: Apache-2.0
// Everything that descends from a process, also what left its session. A subreaper's orphans are its children
// again, so nothing gets out of this tree.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace dlrover {

/// Descendants of `root` (without it), parents before children, without `spared` and what descends from it
/// (0: none). Zombies are left out unless they have children. What forks meanwhile may be missing: ask again.
std::vector<pid_t> descendants(pid_t root, pid_t spared = 0);

/// Sends `signal` to every descendant of `root` except `spared` and what descends from it (0: none).
/// Returns how many got it.
std::size_t signal_descendants(pid_t root, int signal, pid_t spared = 0);

/// SIGKILL to all of them, again while new ones appear. Returns whether none was alive in the last look:
/// death takes a moment, ask again; the dead still have to be reaped.
bool kill_descendants(pid_t root, pid_t spared = 0);

/// A thread of it waits for something that no signal ends (D state), as for a network file system that hangs.
bool sleeps_in_kernel(pid_t pid);

/// What a process, all that descends from it, and what of that has ended and was waited for have done by now.
struct Activity {
    std::chrono::microseconds processor{0};  ///< as fine as the kernel's clock tick (10 ms)
    std::uint64_t bytes = 0;                 ///< read and written by read(), write() and the like
    bool in_kernel = false;                  ///< one of them sleeps in the kernel now (D state)
};
/// None: there is no such process. What may not be read of others' counts as nothing.
std::optional<Activity> activity_of(pid_t root);

}  // namespace dlrover
