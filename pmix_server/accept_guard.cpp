// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/accept_guard.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "pmix_server/client_watch.h"

namespace dlrover::pmix {
namespace {

std::atomic<std::uint64_t> looked_at{0};

struct End {
    std::uint32_t address = 0;  ///< as in sockaddr_in
    unsigned port = 0;
    friend bool operator==(const End &, const End &) = default;
};

End end_of(const sockaddr_in &address) {
    return {address.sin_addr.s_addr, ntohs(address.sin_port)};
}

/// "0100007F:1F90": the address as this machine has it in memory, the port as a number.
std::optional<End> parse_end(const std::string &text) {
    End end;
    char colon = 0;
    std::istringstream in(text);
    in >> std::hex >> end.address >> colon >> end.port;
    return in && colon == ':' && in.eof() ? std::optional(end) : std::nullopt;
}

/// Once: each rank would be cut off for it.
void complain(const char *why) {
    static std::atomic<bool> said{false};
    if (said.exchange(true)) return;
    std::fprintf(stderr, "dlrover-pmixd: %s, so that nobody can tell whose a client is: it is cut off\n",
                 why);
}

bool is_of_this_user(int fd) {
    sockaddr_in own{}, peer{};
    socklen_t own_size = sizeof own, peer_size = sizeof peer;
    bool named = ::getsockname(fd, reinterpret_cast<sockaddr *>(&own), &own_size) == 0 &&
                 ::getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &peer_size) == 0;
    std::ifstream table("/proc/net/tcp");
    if (!table.is_open()) complain("/proc/net/tcp can not be read");
    if (named && peer.sin_family != AF_INET) complain("a connection is none over IPv4");
    return named && peer.sin_family == AF_INET && owner_of_peer(table, own, peer) == ::getuid();
}

/// Its other end is closed.
int dead_socket() {
    static const int fd = [] {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) ::abort();
        ::close(ends[1]);
        return ends[0];
    }();
    return fd;
}

/// PMIx's listener ends for ever where accept() fails: it gets another connection, which is over.
int guarded_accept(int fd, sockaddr *address, socklen_t *size, int flags) {
    const int dead = dead_socket();  // made in good time: later there may be no descriptors left
    // It ends with this process also where that goes on as another program in this very moment.
    auto taken = static_cast<int>(::syscall(SYS_accept4, fd, address, size, flags | SOCK_CLOEXEC));
    if (taken < 0) return taken;
    ++looked_at;
    if (!is_of_this_user(taken) && ::dup3(dead, taken, O_CLOEXEC) < 0) ::abort();
    // Of two small messages in a row the second would wait for the first one's acknowledgement, some 40 ms.
    const int now = 1;
    (void)::setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
    watch_client(taken);
    return taken;
}

}  // namespace

std::optional<uid_t> owner_of_peer(std::istream &table, const sockaddr_in &own, const sockaddr_in &peer) {
    std::string line, number, local, remote, state, queues, timer, retransmitted, timeout;
    for (std::getline(table, line); std::getline(table, line);) {
        std::istringstream in(line);
        uid_t owner = 0;
        std::uint64_t inode = 0;
        in >> number >> local >> remote >> state >> queues >> timer >> retransmitted >> owner >> timeout >>
            inode;
        if (!in || parse_end(local) != end_of(peer) || parse_end(remote) != end_of(own)) continue;
        // Of one that is closed already the kernel says that it is root's.
        return inode != 0 ? std::optional(owner) : std::nullopt;
    }
    return std::nullopt;
}

std::uint64_t connections_looked_at() {
    return looked_at;
}

}  // namespace dlrover::pmix

#pragma GCC visibility push(default)
extern "C" {
int accept(int fd, sockaddr *address, socklen_t *size) {
    return dlrover::pmix::guarded_accept(fd, address, size, 0);
}

int accept4(int fd, sockaddr *address, socklen_t *size, int flags) {
    return dlrover::pmix::guarded_accept(fd, address, size, flags);
}
}
#pragma GCC visibility pop
