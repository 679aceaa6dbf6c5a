// SPDX-License-Identifier: Apache-2.0
// How the program ends when it cannot go on.
#pragma once

namespace heat {

enum Exit : int {
    exit_failed = 1,
    exit_usage = 2,
    exit_stale = 3,      ///< a newer generation runs
    exit_peer_lost = 4,  ///< a neighbour's connection ended
    exit_violation =
        5,  ///< a promise of the group was broken: two processes with one rank, wrong bytes restored
};

/// Prints "heat[rank]: ..." and ends the process at once, without destructors.
[[noreturn]] void fail(Exit code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/// The rank in front of fail()'s line.
void set_failure_rank(unsigned rank);

}  // namespace heat
