// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "base/unique_fd.h"

namespace dlrover::agent {

/// Writes to a descriptor that others share, without ever waiting and without touching its O_NONBLOCK: that
/// flag belongs to the open file, and so also to the shell or the step daemon at its other ends.
class NonblockingWriter {
  public:
    /// `fd` is not owned and must stay open.
    explicit NonblockingWriter(int fd);

    enum class Outcome { wrote, full, broken };
    /// written: how many bytes went out (0 unless wrote).
    Outcome write(std::string_view data, std::size_t &written);
    /// For epoll; -1 where it never is full (regular files).
    int poll_fd() const noexcept { return kind_ == Kind::file ? -1 : fd_; }

  private:
    enum class Kind { file, socket, nonblocking, shared };
    UniqueFd own_;  // the same file opened again, where that works
    int fd_;
    Kind kind_;
};

}  // namespace dlrover::agent
