// SPDX-License-Identifier: Apache-2.0
// TCP sockets of peer links: addresses, privileged source ports, options.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::transport {

/// An IPv4 or IPv6 address with a port. IPv4 mapped into IPv6 is kept as IPv4.
class SocketAddress {
  public:
    SocketAddress() = default;
    static SocketAddress from(const sockaddr *address, socklen_t length);
    const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&storage_); }
    socklen_t length() const { return length_; }
    int family() const { return storage_.ss_family; }
    std::uint16_t port() const;
    void set_port(std::uint16_t port);
    bool same_host(const SocketAddress &other) const;
    std::string host() const;  ///< numeric

  private:
    sockaddr_storage storage_{};
    socklen_t length_ = 0;
};

/// Numeric or by name; port 0. Blocks for names.
Result<std::vector<SocketAddress>> resolve(const std::string &text);
/// Numeric only; never blocks.
Result<SocketAddress> parse_address(const std::string &text);

struct ListenOptions {
    std::string address;    ///< numeric; empty: all, IPv6 and IPv4
    std::string interface;  ///< empty: all
    std::uint16_t port = 0;
};
Result<UniqueFd> listen_on(const ListenOptions &options);
/// Non-blocking, close-on-exec; none when nothing waits.
Result<UniqueFd> accept_from(int listener, SocketAddress &peer);

/// Begins a connection; writable when it is decided (then connect_result()). source: a privileged port of
/// this host, at the address `source` unless that is empty.
Result<UniqueFd> begin_connect(const SocketAddress &peer, const std::string &source, bool privileged);
Status connect_result(int fd);

/// No delay, keepalive, TCP_USER_TIMEOUT.
Status tune(int fd, std::chrono::milliseconds dead_after);
Result<SocketAddress> local_address(int fd);

}  // namespace dlrover::transport
