// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>

namespace dlrover::transport {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Rounded up: waiting for 0.4 ms must not become a busy loop.
int poll_timeout(Clock::time_point until, Clock::time_point now) {
    if (until <= now) return 0;
    auto rest = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    return static_cast<int>(std::min<std::chrono::milliseconds>(rest, 1h).count());
}

Status called_off() {
    return Status(Code::unavailable, "the transfer was called off");
}

/// More than `parts` may hold at a time would be refused by the system.
constexpr std::size_t max_parts = 16;

}  // namespace

Result<std::shared_ptr<Cancellation>> Cancellation::create() {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) return Status::from_errno("eventfd");
    return std::shared_ptr<Cancellation>(new Cancellation(std::move(fd)));
}

void Cancellation::cancel() noexcept {
    std::uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof one);  // never read: stays readable
}

bool Cancellation::cancelled() const noexcept {
    pollfd polled{fd_.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
}

Status wait_for(std::span<pollfd> fds, const Cancellations &cancellations, const WaitLimits &limits) {
    std::vector<pollfd> all(fds.begin(), fds.end());
    for (const auto &cancellation : cancellations) all.push_back({cancellation->fd(), POLLIN, 0});
    Clock::time_point start = Clock::now(), until = start + limits.stall;
    if (limits.deadline) until = std::min(until, *limits.deadline);
    for (;;) {
        int ready = ::poll(all.data(), all.size(), poll_timeout(until, Clock::now()));
        if (ready < 0 && errno != EINTR) return Status::from_errno("poll");
        if (ready < 0) continue;
        for (std::size_t i = fds.size(); i < all.size(); ++i)
            if (all[i].revents != 0) return called_off();
        std::copy_n(all.begin(), fds.size(), fds.begin());
        if (ready > 0) return {};
        if (Clock::now() >= until)
            return Status(Code::timeout,
                          "nothing came or went for " + std::to_string((until - start) / 1ms) + " ms");
    }
}

Status sleep_until(WaitLimits::Time time, const Cancellations &cancellations) {
    while (Clock::now() < time) {
        Status status = wait_for({}, cancellations, {std::chrono::hours(1), time});
        if (!status.ok() && status.code() != Code::timeout) return status;
    }
    return {};
}

Status BulkSocket::wait(short events) {
    pollfd polled{socket_.get(), events, 0};
    return wait_for({&polled, 1}, cancellations_, limits_);
}

Status BulkSocket::read(std::span<std::byte> out) {
    while (!out.empty()) {
        ssize_t n = ::recv(socket_.get(), out.data(), out.size(), MSG_DONTWAIT);
        if (n == 0) return Status(Code::unavailable, "the other side has closed the connection");
        if (n > 0) {
            out = out.subspan(static_cast<std::size_t>(n));
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return Status(Code::unavailable, Status::from_errno("receiving").message());
        DLROVER_TRY(wait(POLLIN));
    }
    return {};
}

Status BulkSocket::write(std::span<const iovec> parts) {
    std::array<iovec, max_parts> rest;
    if (parts.size() > rest.size()) return Status(Code::invalid_argument, "too many parts at once");
    std::copy(parts.begin(), parts.end(), rest.begin());
    msghdr message{};
    message.msg_iov = rest.data();
    message.msg_iovlen = parts.size();
    while (message.msg_iovlen > 0) {
        if (message.msg_iov->iov_len == 0) {
            ++message.msg_iov, --message.msg_iovlen;
            continue;
        }
        ssize_t n = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return Status(Code::unavailable, Status::from_errno("sending").message());
        if (n < 0) {
            DLROVER_TRY(wait(POLLOUT));
            continue;
        }
        for (auto sent = static_cast<std::size_t>(n); sent > 0;) {
            iovec &first = *message.msg_iov;
            std::size_t here = std::min(sent, first.iov_len);
            first.iov_base = static_cast<char *>(first.iov_base) + here;
            first.iov_len -= here;
            sent -= here;
            if (first.iov_len == 0) ++message.msg_iov, --message.msg_iovlen;
        }
    }
    return {};
}

Status BulkSocket::write(std::span<const std::uint8_t> first, std::span<const std::uint8_t> second) {
    auto part = [](std::span<const std::uint8_t> bytes) {
        return iovec{const_cast<std::uint8_t *>(bytes.data()), bytes.size()};
    };
    const iovec parts[] = {part(first), part(second)};
    return write(std::span<const iovec>(parts));
}

}  // namespace dlrover::transport
