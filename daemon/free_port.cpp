// SPDX-License-Identifier: Apache-2.0
#include "daemon/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/unique_fd.h"
#include "common/log.h"

namespace dlrover::daemon {
namespace {

template <typename Address>
bool can_bind(Address address) {
    UniqueFd fd(::socket(reinterpret_cast<sockaddr &>(address).sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return fd && ::bind(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
}

/// On every address, IPv6's dual-stack one where there is IPv6 (gloo's and NCCL's stores listen there).
bool is_free(std::uint16_t port) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    if (!can_bind(v4)) return false;
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    return can_bind(v6) || errno != EADDRINUSE;
}

/// 0: none.
std::uint16_t kernels_choice() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    bool bound = fd && ::bind(fd.get(), reinterpret_cast<sockaddr *>(&address), size) == 0 &&
                 ::getsockname(fd.get(), reinterpret_cast<sockaddr *>(&address), &size) == 0;
    return bound ? ntohs(address.sin_port) : std::uint16_t{0};
}

}  // namespace

PortPicker::PortPicker(PortRange range, std::uint32_t start)
    : range_(range), next_(start % (range.high - range.low + 1u)) {}

std::uint16_t PortPicker::pick() {
    std::uint32_t count = range_.high - range_.low + 1u;
    for (std::uint32_t i = 0; i < count; ++i) {
        auto port = static_cast<std::uint16_t>(range_.low + next_);
        next_ = (next_ + 1) % count;
        if (!is_free(port)) continue;
        full_ = false;
        return port;
    }
    if (!full_)
        log::warning("every port of network.master_ports (" + std::to_string(range_.low) + "-" +
                     std::to_string(range_.high) + ") is taken: the kernel chooses another");
    full_ = true;
    constexpr int tries = 16;  // what is free for IPv4 may be taken for IPv6
    for (int i = 0; i < tries; ++i)
        if (std::uint16_t port = kernels_choice(); port != 0 && is_free(port)) return port;
    return 0;
}

}  // namespace dlrover::daemon
