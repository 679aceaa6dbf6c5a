// SPDX-License-Identifier: Apache-2.0
// A blocking stream with a deadline on everything and a way to call it off.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::transport {

/// Called off once, for good; every wait that looks at it ends. Thread: any.
class Cancellation {
  public:
    static Result<std::shared_ptr<Cancellation>> create();
    void cancel() noexcept;
    bool cancelled() const noexcept;
    const std::atomic<bool> *flag() const noexcept { return &cancelled_; }
    /// Readable once it is called off.
    int fd() const noexcept { return fd_.get(); }

  private:
    explicit Cancellation(UniqueFd fd) : fd_(std::move(fd)) {}
    UniqueFd fd_;
    std::atomic<bool> cancelled_{false};
};

/// What may end a wait early.
using Cancellations = std::vector<std::shared_ptr<const Cancellation>>;

struct WaitLimits {
    using Time = std::chrono::steady_clock::time_point;
    std::chrono::milliseconds stall{5000};  ///< nothing moved for so long
    std::optional<Time> deadline;           ///< of the whole call
};

/// Waits until one of `fds` is ready (its revents say which). timeout; unavailable: called off.
Status wait_for(std::span<pollfd> fds, const Cancellations &cancellations, const WaitLimits &limits);
/// Until then. unavailable: called off.
Status sleep_until(WaitLimits::Time time, const Cancellations &cancellations);

/// One thread at a time.
class BulkSocket {
  public:
    BulkSocket(UniqueFd socket, Cancellations cancellations, WaitLimits limits)
        : socket_(std::move(socket)), cancellations_(std::move(cancellations)), limits_(limits) {}

    /// All of it. unavailable: the other side has closed, or called off. timeout: stalled.
    Status read(std::span<std::byte> out);
    /// Of the parts, one behind the other, `needed` bytes or more: as many as are there then.
    Result<std::size_t> read_some(std::span<const iovec> parts, std::size_t needed);
    Status write(std::span<const iovec> parts);

    Status read(std::span<std::uint8_t> out) { return read(std::as_writable_bytes(out)); }
    Status write(std::span<const std::uint8_t> first, std::span<const std::uint8_t> second = {});

    /// For what comes after the greeting.
    void go_on(Cancellations cancellations, WaitLimits limits) {
        cancellations_ = std::move(cancellations);
        limits_ = limits;
    }
    const Cancellations &cancellations() const noexcept { return cancellations_; }
    const WaitLimits &limits() const noexcept { return limits_; }
    int fd() const noexcept { return socket_.get(); }

  private:
    Status wait(short events);
    bool is_called_off() const;
    template <typename Call>
    Result<std::size_t> pass(std::span<const iovec> parts, std::size_t needed, short events, const char *what,
                             Call call);
    UniqueFd socket_;
    Cancellations cancellations_;
    WaitLimits limits_;
};

}  // namespace dlrover::transport
