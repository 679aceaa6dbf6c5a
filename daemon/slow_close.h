// SPDX-License-Identifier: Apache-2.0
// Ends sockets on which somebody may have passed descriptors that nobody has taken. The kernel closes those
// with the socket, and that can last: a TCP socket that lingers, a file of a file system that is a program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/unique_fd.h"
#include "common/event_loop.h"

namespace dlrover::daemon {

/// A thread for each user who has such sockets, as long as there are some: users do not wait for each other,
/// and the loop waits for nobody.
class SlowCloser {
  public:
    explicit SlowCloser(EventLoop &loop);
    /// Waits for nothing; what is not closed by then is left to its threads.
    ~SlowCloser();
    SlowCloser(const SlowCloser &) = delete;
    SlowCloser &operator=(const SlowCloser &) = delete;

    /// Takes nothing more from the peer. `closed` is called once, on the loop or at once.
    void close(std::uint32_t uid, UniqueFd socket, std::function<void()> closed);
    /// Sockets that are not closed yet, of all users.
    std::size_t waiting() const;
    /// Whose most of them are; none: there are none.
    std::optional<std::uint32_t> most() const;

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

}  // namespace dlrover::daemon
