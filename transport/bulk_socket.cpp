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

/// So many bytes of it are through; parts without any are, too.
void advance(msghdr &message, std::size_t bytes) {
    while (message.msg_iovlen > 0) {
        iovec &first = *message.msg_iov;
        std::size_t here = std::min(bytes, first.iov_len);
        first.iov_base = static_cast<char *>(first.iov_base) + here;
        first.iov_len -= here;
        bytes -= here;
        if (first.iov_len > 0) return;
        ++message.msg_iov, --message.msg_iovlen;
    }
}

}  // namespace

Result<std::shared_ptr<Cancellation>> Cancellation::create() {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) return Status::from_errno("eventfd");
    return std::shared_ptr<Cancellation>(new Cancellation(std::move(fd)));
}

void Cancellation::cancel() noexcept {
    cancelled_ = true;
    std::uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof one);  // never read: stays readable
}

bool Cancellation::cancelled() const noexcept {
    return cancelled_;
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

bool BulkSocket::is_called_off() const {
    return std::ranges::any_of(cancellations_, [](const auto &c) { return c->cancelled(); });
}

/// One call after the other, until `needed` bytes or more are through. Returns how many are.
template <typename Call>
Result<std::size_t> BulkSocket::pass(std::span<const iovec> parts, std::size_t needed, short events,
                                     const char *what, Call call) {
    std::array<iovec, max_parts> rest;
    if (parts.size() > rest.size()) return Status(Code::invalid_argument, "too many parts at once");
    std::copy(parts.begin(), parts.end(), rest.begin());
    msghdr message{};
    message.msg_iov = rest.data();
    message.msg_iovlen = parts.size();
    // A socket that is always ready is never waited for.
    if (is_called_off()) return called_off();
    for (std::size_t done = 0; done < needed;) {
        ssize_t n = call(message);
        if (n > 0) {
            advance(message, static_cast<std::size_t>(n));
            done += static_cast<std::size_t>(n);
            if (done >= needed) return done;
            continue;
        }
        if (n == 0) return Status(Code::unavailable, "the other side has closed the connection");
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return Status(Code::unavailable, Status::from_errno(what).message());
        DLROVER_TRY(wait(events));
    }
    return std::size_t{0};
}

Result<std::size_t> BulkSocket::read_some(std::span<const iovec> parts, std::size_t needed) {
    return pass(parts, needed, POLLIN, "receiving",
                [this](msghdr &rest) { return ::recvmsg(socket_.get(), &rest, MSG_DONTWAIT); });
}

Status BulkSocket::read(std::span<std::byte> out) {
    const iovec part{out.data(), out.size()};
    return read_some(std::span<const iovec>(&part, 1), out.size()).take_status();
}

Status BulkSocket::write(std::span<const iovec> parts) {
    std::size_t bytes = 0;
    for (const iovec &part : parts) bytes += part.iov_len;
    return pass(parts, bytes, POLLOUT, "sending",
                [this](msghdr &rest) { return ::sendmsg(socket_.get(), &rest, MSG_DONTWAIT | MSG_NOSIGNAL); })
        .take_status();
}

Status BulkSocket::write(std::span<const std::uint8_t> first, std::span<const std::uint8_t> second) {
    auto part = [](std::span<const std::uint8_t> bytes) {
        return iovec{const_cast<std::uint8_t *>(bytes.data()), bytes.size()};
    };
    const iovec parts[] = {part(first), part(second)};
    return write(std::span<const iovec>(parts));
}

}  // namespace dlrover::transport
