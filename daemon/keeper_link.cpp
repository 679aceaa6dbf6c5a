// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper_link.h"

#include <sys/socket.h>

#include <cstring>

#include "keeper_generated.h"
#include "proto/codec.h"
#include "proto/frame.h"

namespace dlrover::daemon {
namespace {

Status socket_error(const char *what) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Status(Code::timeout, what);
    if (errno == EPIPE || errno == ECONNRESET) return Status(Code::unavailable, "the other side is gone");
    return Status::from_errno(what);
}

ssize_t receive_packet(int socket, msghdr &header) {
    ssize_t n;
    do n = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    return n;
}

UniqueFd take_fd(msghdr &header) {
    UniqueFd fd;
    for (cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        int number;
        std::memcpy(&number, CMSG_DATA(c), sizeof number);
        fd.reset(number);
    }
    return fd;
}

}  // namespace

Status send_keeper(int socket, const keeper::MessageT &message, int fd) {
    proto::Bytes bytes = proto::encode<keeper::Message>(message, keeper::MessageIdentifier());
    if (bytes.size() > max_keeper_packet_bytes)
        return Status(Code::resource_exhausted, "a record of " + std::to_string(bytes.size()) + " bytes");
    std::span<const int> fds(&fd, fd >= 0 ? 1 : 0);
    return proto::send_with_fds(socket, bytes, fds).take_status().with_context("the keeper's link");
}

Result<KeeperMessage> receive_keeper(int socket) {
    proto::Bytes bytes(max_keeper_packet_bytes);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec iov{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    // The reset of a peer that died with unread packets is told once, before the packets that it had sent.
    ssize_t n = receive_packet(socket, header);
    if (n < 0 && errno == ECONNRESET) n = receive_packet(socket, header);
    if (n < 0) return socket_error("receive from the keeper's link");
    UniqueFd fd = take_fd(header);
    if (n == 0) return Status(Code::unavailable, "the other side is gone");
    if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return Status(Code::corrupt, "a packet was cut off");
    auto message = proto::decode<keeper::Message>(std::span(bytes).first(static_cast<std::size_t>(n)),
                                                  keeper::MessageIdentifier());
    if (!message) return message.take_status();
    return KeeperMessage{std::move(*message), std::move(fd)};
}

}  // namespace dlrover::daemon
