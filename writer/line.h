// SPDX-License-Identifier: Apache-2.0
// The connection that an order came on, as the threads that work see it.
#pragma once

#include <fcntl.h>
#include <poll.h>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::writer {

/// Thread: any.
class Line {
  public:
    explicit Line(int socket) : socket_(::fcntl(socket, F_DUPFD_CLOEXEC, 0)) {}

    /// Whether the daemon is still there: as long as it is, the memory of its orders stays as it was.
    bool alive() const {
        pollfd polled{socket_.get(), POLLRDHUP, 0};
        return socket_ && ::poll(&polled, 1, 0) == 0;
    }

  private:
    UniqueFd socket_;
};

}  // namespace dlrover::writer
