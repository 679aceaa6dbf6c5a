// SPDX-License-Identifier: Apache-2.0
// A loop shared by a few threads that live only as long as the call: nothing to stop, nothing that a fork
// could lose. Where the program's OpenMP team spins on the processors, by threads of that (openmp_team.h).
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "lib/numa.h"

namespace dlrover::lib {

/// Calls body(i) once for every i in [0, count), on this thread and at most threads - 1 others (signals
/// blocked in our own). Fewer when threads can not be had. body must not throw.
void parallel_for(std::uint64_t count, unsigned threads, const std::function<void(std::uint64_t)> &body);

/// The same, of which the other threads do as much as they can while this one does `first`. What `first`
/// throws comes out when they have done the rest. The others run on `near`, as many of them as there are of
/// these, where it names any; this one stays where it is.
void parallel_for(std::uint64_t count, unsigned threads, const std::function<void(std::uint64_t)> &body,
                  const std::function<void()> &first, const Cpus &near = {});

/// The same for a body that may fail or run out of memory: returns a failure, and begins no more after it.
Status parallel_try(std::uint64_t count, unsigned threads, const std::function<Status(std::uint64_t)> &body);

}  // namespace dlrover::lib
