// SPDX-License-Identifier: Apache-2.0
// Lines of log behind a queue: a disk that stalls, a pipe that nobody reads or a syslog that is busy holds up
// only the thread that writes them.
#pragma once

#include <cstddef>
#include <memory>

namespace spdlog::sinks {
class sink;
}

namespace dlrover::log {

/// A sink that takes lines at once and has a thread of its own hand them to `behind`, in order. Of what comes
/// while `most_waiting` lines wait only the number is written, once there is room. When it goes it waits
/// for what it has, up to a second: a `behind` that is stuck stays behind with its thread.
std::shared_ptr<spdlog::sinks::sink> make_queued_sink(std::shared_ptr<spdlog::sinks::sink> behind,
                                                      std::size_t most_waiting = 4096);

/// After start(): the lines of this process go through such a queue, but for those to the journal, which
/// holds up nobody. At exit() what waits is written, for a second at most.
void write_behind();

}  // namespace dlrover::log
