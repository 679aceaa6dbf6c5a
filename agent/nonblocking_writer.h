// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "agent/aside.h"
#include "agent/loop.h"
#include "base/unique_fd.h"

namespace dlrover::agent {

/// Writes to a descriptor that others share, without ever waiting and without touching its O_NONBLOCK: that
/// flag belongs to the open file, and so also to the shell or the step daemon at its other ends. A regular
/// file, whose write waits for as long as its file system does, is written beside the loop.
class NonblockingWriter {
  public:
    /// `fd` is not owned and must stay open. `on_room` is called on the loop where it was awaited.
    NonblockingWriter(Loop &loop, int fd, Loop::OnTime on_room);
    ~NonblockingWriter();
    NonblockingWriter(const NonblockingWriter &) = delete;
    NonblockingWriter &operator=(const NonblockingWriter &) = delete;

    enum class Outcome { wrote, full, broken };
    /// written: how many bytes were taken (0 unless wrote). What a file was given goes there later.
    Outcome write(std::string_view data, std::size_t &written);
    /// What a file has taken and then refused; once broken.
    std::string take_back();
    /// Nothing that was taken is still on its way.
    bool idle() const;
    /// Asks for `on_room`, again and again, until told otherwise.
    void await_room(bool on);
    /// Waits for room, or for the way to be idle. False: not by then.
    bool wait_for_room(Loop::Time deadline);
    /// Nobody reads it: it is as slow as its file system.
    bool is_file() const noexcept { return kind_ == Kind::file; }

  private:
    enum class Kind { file, socket, nonblocking, shared };
    struct Flight;
    Outcome write_file(std::string_view data, std::size_t &written);

    Loop &loop_;
    Loop::OnTime on_room_;
    UniqueFd own_;  // the same file opened again, where that works
    int fd_;
    Kind kind_;
    bool awaited_ = false;
    std::shared_ptr<Flight> flight_;  // of a file: what is on its way
    Aside aside_;
};

}  // namespace dlrover::agent
