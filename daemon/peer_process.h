// SPDX-License-Identifier: Apache-2.0
// The process that made a connection to our unix socket.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"
#include "daemon/local_port.h"

namespace dlrover::daemon {

/// By a pidfd; on a kernel without them by its number, as long as that is a process of the same user.
class PeerProcess final : public LocalProcess {
  public:
    /// none: it is gone, or nobody can tell which it was.
    static std::shared_ptr<PeerProcess> of(int socket, pid_t pid, uid_t uid);
    bool kill() override;
    bool is_suspended() const override;

  private:
    PeerProcess(UniqueFd handle, pid_t pid, uid_t uid) : handle_(std::move(handle)), pid_(pid), uid_(uid) {}
    UniqueFd handle_;
    pid_t pid_;
    uid_t uid_;
};

}  // namespace dlrover::daemon
