// SPDX-License-Identifier: Apache-2.0
#include "transport/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

namespace dlrover::transport {
namespace {

constexpr int lowest_privileged = 512, highest_privileged = 1023;
constexpr std::size_t max_addresses = 16;

Status set_option(int fd, int level, int name, int value, const char *what) {
    if (::setsockopt(fd, level, name, &value, sizeof value) != 0) return Status::from_errno(what);
    return {};
}

Result<UniqueFd> open_socket(int family) {
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Status::from_errno("socket");
    return fd;
}

Result<SocketAddress> source_address(int family, const std::string &text) {
    if (!text.empty()) return parse_address(text);
    return parse_address(family == AF_INET6 ? "::" : "0.0.0.0");
}

Result<std::vector<SocketAddress>> look_up(const std::string &text, int flags) {
    addrinfo hints{}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    int error = ::getaddrinfo(text.c_str(), nullptr, &hints, &list);
    if (error != 0) return Status(Code::not_found, "address \"" + text + "\": " + ::gai_strerror(error));
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, ::freeaddrinfo);
    std::vector<SocketAddress> addresses;
    for (const addrinfo *a = list; a && addresses.size() < max_addresses; a = a->ai_next)
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
            addresses.push_back(SocketAddress::from(a->ai_addr, a->ai_addrlen));
    if (addresses.empty()) return Status(Code::not_found, "address \"" + text + "\": neither IPv4 nor IPv6");
    return addresses;
}

/// Several links may share a source port as long as their peers differ: the kernel refuses at connect() else.
Result<UniqueFd> try_port(const SocketAddress &peer, SocketAddress source, int port, bool &port_taken) {
    auto fd = open_socket(peer.family());
    if (!fd) return fd;
    DLROVER_TRY(set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
    source.set_port(static_cast<std::uint16_t>(port));
    const char *what = "bind";
    bool begun = ::bind(fd->get(), source.get(), source.length()) == 0;
    if (begun) {
        what = "connect";
        begun = ::connect(fd->get(), peer.get(), peer.length()) == 0 || errno == EINPROGRESS;
    }
    if (begun) return fd;
    port_taken = errno == EADDRINUSE || errno == EADDRNOTAVAIL;
    return Status::from_errno(what);
}

}  // namespace

SocketAddress SocketAddress::from(const sockaddr *address, socklen_t length) {
    SocketAddress result;
    result.length_ = std::min<socklen_t>(length, sizeof result.storage_);
    std::memcpy(&result.storage_, address, result.length_);
    if (result.family() != AF_INET6) return result;
    auto *six = reinterpret_cast<const sockaddr_in6 *>(&result.storage_);
    if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) return result;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = six->sin6_port;
    std::memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, 4);
    return from(reinterpret_cast<const sockaddr *>(&four), sizeof four);
}

std::uint16_t SocketAddress::port() const {
    if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6 *>(&storage_)->sin6_port);
    return ntohs(reinterpret_cast<const sockaddr_in *>(&storage_)->sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
    if (family() == AF_INET6)
        reinterpret_cast<sockaddr_in6 *>(&storage_)->sin6_port = htons(port);
    else
        reinterpret_cast<sockaddr_in *>(&storage_)->sin_port = htons(port);
}

bool SocketAddress::same_host(const SocketAddress &other) const {
    if (family() != other.family()) return false;
    if (family() == AF_INET6)
        return std::memcmp(&reinterpret_cast<const sockaddr_in6 *>(&storage_)->sin6_addr,
                           &reinterpret_cast<const sockaddr_in6 *>(&other.storage_)->sin6_addr, 16) == 0;
    return family() == AF_INET && reinterpret_cast<const sockaddr_in *>(&storage_)->sin_addr.s_addr ==
                                      reinterpret_cast<const sockaddr_in *>(&other.storage_)->sin_addr.s_addr;
}

std::string SocketAddress::host() const {
    char text[INET6_ADDRSTRLEN] = "?";
    const void *bytes = &reinterpret_cast<const sockaddr_in *>(&storage_)->sin_addr;
    if (family() == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6 *>(&storage_)->sin6_addr;
    ::inet_ntop(family(), bytes, text, sizeof text);
    return text;
}

Result<std::vector<SocketAddress>> resolve(const std::string &text) {
    return look_up(text, AI_ADDRCONFIG);
}

Result<SocketAddress> parse_address(const std::string &text) {
    auto list = look_up(text, AI_NUMERICHOST);
    if (!list) return list.take_status();
    return list->front();
}

Result<UniqueFd> listen_on(const ListenOptions &options) {
    auto address = parse_address(options.address.empty() ? "::" : options.address);
    if (!address) return address.take_status();
    auto fd = open_socket(address->family());
    if (!fd && options.address.empty()) {  // no IPv6 in this kernel
        address = parse_address("0.0.0.0");
        fd = open_socket(AF_INET);
    }
    if (!fd) return fd;
    DLROVER_TRY(set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
    if (address->family() == AF_INET6)
        DLROVER_TRY(
            set_option(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, options.address.empty() ? 0 : 1, "IPV6_V6ONLY"));
    if (!options.interface.empty() &&
        ::setsockopt(fd->get(), SOL_SOCKET, SO_BINDTODEVICE, options.interface.c_str(),
                     static_cast<socklen_t>(options.interface.size())) != 0)
        return Status::from_errno("interface " + options.interface);
    address->set_port(options.port);
    std::string where = address->host() + " port " + std::to_string(options.port);
    if (::bind(fd->get(), address->get(), address->length()) != 0)
        return Status::from_errno("bind to " + where);
    if (::listen(fd->get(), 1024) != 0) return Status::from_errno("listen on " + where);
    return fd;
}

Result<UniqueFd> accept_from(int listener, SocketAddress &peer) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    UniqueFd fd(
        ::accept4(listener, reinterpret_cast<sockaddr *>(&storage), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
        // A connection that broke while it waited, or a signal: like nothing.
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO) return UniqueFd();
        return Status::from_errno("accept");
    }
    peer = SocketAddress::from(reinterpret_cast<sockaddr *>(&storage), length);
    return fd;
}

Result<UniqueFd> begin_connect(const SocketAddress &peer, const std::string &source, bool privileged) {
    auto local = source_address(peer.family(), source);
    if (!local) return local.take_status();
    if (local->family() != peer.family())
        return Status(Code::invalid_argument, "no address of this node fits " + peer.host());
    bool taken = false;
    if (!privileged) return try_port(peer, *local, 0, taken);
    const int count = highest_privileged - lowest_privileged + 1;
    std::random_device random;
    int first = std::uniform_int_distribution<int>(0, count - 1)(random);
    for (int i = 0; i < count; ++i) {
        taken = false;
        auto fd = try_port(peer, *local, lowest_privileged + (first + i) % count, taken);
        if (fd || !taken) return fd;
    }
    return Status(Code::resource_exhausted, "no privileged port is free");
}

Status connect_result(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return Status::from_errno("SO_ERROR");
    if (error != 0) return Status::from_errno("connect", error);
    return {};
}

Status tune(int fd, std::chrono::milliseconds dead_after) {
    DLROVER_TRY(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
    DLROVER_TRY(set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
    int seconds = static_cast<int>(std::max<long long>(1, dead_after.count() / 3000));
    DLROVER_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds, "TCP_KEEPIDLE"));
    DLROVER_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds, "TCP_KEEPINTVL"));
    return set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(dead_after.count()),
                      "TCP_USER_TIMEOUT");
}

Result<SocketAddress> local_address(int fd) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (::getsockname(fd, reinterpret_cast<sockaddr *>(&storage), &length) != 0)
        return Status::from_errno("getsockname");
    return SocketAddress::from(reinterpret_cast<sockaddr *>(&storage), length);
}

}  // namespace dlrover::transport
