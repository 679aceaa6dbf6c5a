// SPDX-License-Identifier: Apache-2.0
// Membership events: pushes of the daemon behind one descriptor that stays the same across reconnections. The
// daemon says them as to a PMIx server.
#pragma once

#include <optional>

#include "lib/daemon_link.h"
#include "lib/dlrover.h"

namespace dlrover::lib {

/// Serialised by the context's lock.
class Events {
  public:
    explicit Events(DaemonLink &link) : link_(link) {}
    /// The daemon has acknowledged the subscription; where it is away, that is made up for when it is back.
    Result<int> fd();
    /// not_found: nothing now.
    Result<dlrover_event> next();
    /// After every call on the link: the descriptor follows the connection and shows pushes that came with
    /// answers.
    void refresh();
    /// The descriptors, for the child of a fork; -1 where there is none.
    int poll_fd() const { return epoll_.get(); }
    int timer_fd() const { return timer_.get(); }

  private:
    Status start();
    Status subscribe();
    /// None: nothing that programs are told.
    std::optional<dlrover_event> to_event(const proto::LocalMessage &push);
    void arm(std::chrono::milliseconds delay);

    DaemonLink &link_;
    proto::local::PmixWorldT world_;  ///< of this worker's generation; empty until the daemon has told it
    UniqueFd epoll_;
    UniqueFd timer_;  ///< readable: there is a kept push, or it is time to look for the daemon again
    std::uint64_t subscribed_on_ = 0;  ///< DaemonLink::connections()
    bool wanted_ = false;
};

}  // namespace dlrover::lib
