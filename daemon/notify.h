// SPDX-License-Identifier: Apache-2.0
// systemd's notification protocol, by hand: a datagram to $NOTIFY_SOCKET. Does nothing where that is not set.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace dlrover::daemon {

class Notifier {
  public:
    /// Reads the environment of the process.
    Notifier();
    bool enabled() const noexcept { return static_cast<bool>(socket_); }
    /// "READY=1" and the like; `fd`: for FDSTORE=1.
    void send(const std::string &state, int fd = -1) const;
    /// How often to send WATCHDOG=1; none: no watchdog.
    std::optional<std::chrono::milliseconds> watchdog_interval() const noexcept { return watchdog_; }

  private:
    UniqueFd socket_;
    std::string address_;
    std::optional<std::chrono::milliseconds> watchdog_;
};

/// Descriptors that the service manager kept for us ($LISTEN_FDS, $LISTEN_FDNAMES), close-on-exec. Once.
std::vector<std::pair<std::string, UniqueFd>> take_listen_fds();

}  // namespace dlrover::daemon
