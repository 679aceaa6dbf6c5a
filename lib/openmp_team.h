// SPDX-License-Identifier: Apache-2.0
// The threads of the program's own OpenMP. They spin for some time after each of its parallel regions, on the
// very processors that threads of ours would copy on: so they do the copying. Nothing of OpenMP is linked.
#pragma once

#include <functional>

namespace dlrover::lib {

/// Whether the calling thread has a team, and something of this process is on a processor beside it. Only on
/// the process's first thread: what a team is begun by another would have threads of its own. Not in a child
/// that was forked: its team's threads are its parent's. Looks at each thread's state in /proc: some
/// microseconds a thread.
bool openmp_team_spins() noexcept;

/// `body` on each thread of the team, the calling one among them; returns when all have ended. Nothing may be
/// thrown.
void run_by_openmp_team(const std::function<void()> &body);

}  // namespace dlrover::lib
