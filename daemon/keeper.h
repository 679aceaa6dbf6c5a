// SPDX-License-Identifier: Apache-2.0
// The daemon's parent: starts it, starts it again when it dies, and keeps its records meanwhile. Small on
// purpose: what is in here must never need an upgrade in a hurry.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "daemon/fd_store.h"
#include "daemon/keeper_link.h"
#include "daemon/notify.h"
#include "daemon/record_store.h"

namespace dlrover::daemon {

class Keeper {
  public:
    /// command: path and arguments of the daemon.
    explicit Keeper(std::vector<std::string> command) : command_(std::move(command)) {}
    /// Until SIGTERM or SIGINT, or until a daemon that was never ready ends in a way that another start would
    /// not change. SIGHUP: the daemon is ended and started from disk anew. Result: exit status.
    int run();

  private:
    using Clock = std::chrono::steady_clock;

    Status start_daemon();
    void end_daemon(Clock::duration patience);
    void reap_daemon();
    void on_daemon_death(int wait_status);
    /// The exit status of a daemon that need not be started again.
    std::optional<int> hopeless(int wait_status) const;
    bool take_signals();
    void on_signals();
    /// One packet of the daemon; false when there is none (or no daemon) any more.
    bool on_packet();
    void answer(std::uint32_t id, std::string refused);
    void send_records(std::uint32_t id);
    void on_time();
    int wait_ms() const;

    std::vector<std::string> command_;
    Notifier notifier_;
    FdStore fd_store_{notifier_};
    RecordStore store_;
    UniqueFd signals_, link_;
    pid_t daemon_ = 0;
    Clock::time_point started_{}, start_at_{}, last_word_{}, next_watchdog_{}, link_closed_at_{};
    unsigned quick_deaths_ = 0;
    std::uint32_t starts_ = 0;
    bool ready_ = false, ever_ready_ = false, stopping_ = false;
    bool asked_to_end_ = false;  ///< the daemon, by us
    int exit_status_ = 0;
};

}  // namespace dlrover::daemon
