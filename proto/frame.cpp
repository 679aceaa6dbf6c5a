// SPDX-License-Identifier: Apache-2.0
#include "proto/frame.h"

#include <sys/socket.h>

#include <cstring>

namespace dlrover::proto {
namespace {

std::uint32_t read_u32(const std::uint8_t *p) {
    return p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}

}  // namespace

Bytes make_frame(std::span<const std::uint8_t> payload) {
    auto n = static_cast<std::uint32_t>(payload.size());
    Bytes frame(frame_header_bytes + payload.size());
    for (unsigned i = 0; i < frame_header_bytes; ++i) frame[i] = static_cast<std::uint8_t>(n >> (8 * i));
    if (n != 0) std::memcpy(frame.data() + frame_header_bytes, payload.data(), payload.size());
    return frame;
}

Status FrameReader::feed(std::span<const std::uint8_t> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    std::size_t at = 0;
    while (buffer_.size() - at >= frame_header_bytes) {
        std::size_t n = read_u32(buffer_.data() + at);
        if (n == 0 || n > limit_bytes_)
            return Status(Code::corrupt, "a frame announces " + std::to_string(n) + " bytes");
        if (buffer_.size() - at - frame_header_bytes < n) break;
        const std::uint8_t *begin = buffer_.data() + at + frame_header_bytes;
        ready_.emplace_back(begin, begin + n);
        at += frame_header_bytes + n;
    }
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at));
    return {};
}

std::optional<Bytes> FrameReader::next() {
    if (ready_.empty()) return std::nullopt;
    Bytes payload = std::move(ready_.front());
    ready_.pop_front();
    return payload;
}

Result<Received> receive_with_fds(int socket, std::span<std::uint8_t> buffer) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_frame_fds)];
    iovec iov{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n;
    do n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return Status::from_errno("recvmsg");
    Received received;
    received.bytes = static_cast<std::size_t>(n);
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            received.fds.emplace_back(fd);
        }
    }
    if (message.msg_flags & MSG_CTRUNC) return Status(Code::corrupt, "too many descriptors in one message");
    return received;
}

Result<std::size_t> receive_no_fds(int socket, std::span<std::uint8_t> buffer) {
    auto receive = [&](std::size_t most, int flags, int &told) {
        iovec iov{buffer.data(), most};
        msghdr message{};
        message.msg_iov = &iov;
        message.msg_iovlen = 1;
        ssize_t n;
        do n = ::recvmsg(socket, &message, flags);
        while (n < 0 && errno == EINTR);
        told = message.msg_flags;
        return n;
    };
    // A look ends with the first descriptor, says that there was no room for it, and leaves it where it is.
    int told = 0;
    ssize_t n = receive(buffer.size(), MSG_PEEK, told);
    if (n >= 0 && (told & MSG_CTRUNC)) return Status(Code::corrupt, "it passed a descriptor");
    if (n > 0) n = receive(static_cast<std::size_t>(n), 0, told);
    if (n < 0) return Status::from_errno("recvmsg");
    return static_cast<std::size_t>(n);
}

Result<std::size_t> send_with_fds(int socket, std::span<const std::uint8_t> bytes, std::span<const int> fds) {
    if (fds.size() > max_frame_fds)
        return Status(Code::invalid_argument, "too many descriptors for one message");
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_frame_fds)] = {};
    iovec iov{const_cast<std::uint8_t *>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
    }
    ssize_t n;
    do n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0) return Status::from_errno("sendmsg");
    return static_cast<std::size_t>(n);
}

}  // namespace dlrover::proto
