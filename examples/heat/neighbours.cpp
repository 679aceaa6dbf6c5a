// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/neighbours.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "examples/heat/failure.h"

namespace heat {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto meeting_time = std::chrono::seconds(60);
constexpr std::uint32_t card_magic = 0x31434548;

/// What a rank says when it connects: to rank 0, and to the rank above it.
struct Card {
    std::uint32_t magic, rank;
    std::uint64_t term, generation;
    std::uint32_t port;
    std::uint32_t address;  // of the neighbour above, in rank 0's answer
};

std::string setting(const char *name, const char *fallback) {
    const char *value = std::getenv(name);
    return value && *value ? value : fallback;
}

sockaddr_in resolve(const std::string &host, std::uint16_t port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (int e = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); e != 0)
        fail(exit_failed, "MASTER_ADDR %s: %s", host.c_str(), ::gai_strerror(e));
    sockaddr_in a;
    std::memcpy(&a, found->ai_addr, sizeof a);
    ::freeaddrinfo(found);
    a.sin_port = htons(port);
    return a;
}

void set_no_delay(int fd) {
    int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int listen_on(std::uint16_t port, int backlog, std::uint16_t *bound) {
    int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    if (::bind(fd, reinterpret_cast<sockaddr *>(&a), sizeof a) != 0 || ::listen(fd, backlog) != 0)
        fail(exit_failed, "port %u: %s", port, std::strerror(errno));
    socklen_t length = sizeof a;
    ::getsockname(fd, reinterpret_cast<sockaddr *>(&a), &length);
    *bound = ntohs(a.sin_port);
    return fd;
}

/// Tries again until somebody listens.
int connect_to(const sockaddr_in &a, Clock::time_point deadline) {
    for (;;) {
        int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (::connect(fd, reinterpret_cast<const sockaddr *>(&a), sizeof a) == 0) {
            set_no_delay(fd);
            return fd;
        }
        ::close(fd);
        if (Clock::now() > deadline) fail(exit_peer_lost, "nobody listens at port %u", ntohs(a.sin_port));
        ::poll(nullptr, 0, 2);
    }
}

int accept_from(int listener, Clock::time_point deadline, in_addr_t *address) {
    pollfd p{listener, POLLIN, 0};
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) <= 0) fail(exit_peer_lost, "not every rank came");
    sockaddr_in a{};
    socklen_t length = sizeof a;
    int fd = ::accept4(listener, reinterpret_cast<sockaddr *>(&a), &length, SOCK_CLOEXEC);
    if (fd < 0) fail(exit_failed, "accept: %s", std::strerror(errno));
    set_no_delay(fd);
    if (address) *address = a.sin_addr.s_addr;
    return fd;
}

bool read_all(int fd, void *data, std::size_t bytes) {
    for (auto *p = static_cast<char *>(data); bytes > 0;) {
        ssize_t n = ::recv(fd, p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= static_cast<std::size_t>(n);
    }
    return true;
}

bool write_all(int fd, const void *data, std::size_t bytes) {
    for (auto *p = static_cast<const char *>(data); bytes > 0;) {
        ssize_t n = ::send(fd, p, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= static_cast<std::size_t>(n);
    }
    return true;
}

}  // namespace

Neighbours::Neighbours(const Party &party, bool hang_on_loss) : party_(party), hang_on_loss_(hang_on_loss) {
    if (party_.ranks == 1) return;
    const auto deadline = Clock::now() + meeting_time;
    std::uint16_t own_port = 0;
    int listener = listen_on(0, 8, &own_port);
    if (party_.rank == 0)
        serve(own_port);
    else
        meet(own_port);
    const Card own{card_magic, party_.rank, party_.term, party_.generation, 0, 0};
    if (party_.rank > 0) {
        sockaddr_in above{};
        above.sin_family = AF_INET;
        above.sin_addr.s_addr = up_address_;
        above.sin_port = htons(up_port_);
        up_ = connect_to(above, deadline);
        send(up_, &own, sizeof own);
    }
    while (party_.rank + 1 < party_.ranks && down_ < 0) {
        int fd = accept_from(listener, deadline, nullptr);
        Card c;
        if (read_all(fd, &c, sizeof c) && c.magic == card_magic && c.rank == party_.rank + 1 &&
            c.term == party_.term && c.generation == party_.generation)
            down_ = fd;
        else
            ::close(fd);
    }
    ::close(listener);
}

Neighbours::~Neighbours() {
    for (int fd : control_) ::close(fd);
    if (up_ >= 0) ::close(up_);
    if (down_ >= 0) ::close(down_);
}

void Neighbours::serve(std::uint16_t own_port) {
    const auto deadline = Clock::now() + meeting_time;
    std::uint16_t port = static_cast<std::uint16_t>(std::stoul(setting("MASTER_PORT", "29500")));
    int listener = listen_on(port, static_cast<int>(party_.ranks) + 8, &port);
    std::vector<int> fds(party_.ranks, -1);
    std::vector<Card> cards(party_.ranks);
    // Rank 1 finds rank 0 under the address it already knows.
    cards[0] = {card_magic, 0, party_.term, party_.generation, own_port, 0};
    for (std::uint32_t missing = party_.ranks - 1; missing > 0;) {
        in_addr_t address = 0;
        int fd = accept_from(listener, deadline, &address);
        Card c;
        bool ours = read_all(fd, &c, sizeof c) && c.magic == card_magic && c.term == party_.term &&
                    c.generation == party_.generation && c.rank > 0 && c.rank < party_.ranks &&
                    fds[c.rank] < 0;
        if (!ours) {
            ::close(fd);
            continue;
        }
        c.address = address;
        cards[c.rank] = c;
        fds[c.rank] = fd;
        --missing;
    }
    ::close(listener);
    for (std::uint32_t r = 1; r < party_.ranks; ++r) {
        send(fds[r], &cards[r - 1], sizeof(Card));
        control_.push_back(fds[r]);
    }
}

void Neighbours::meet(std::uint16_t own_port) {
    const auto deadline = Clock::now() + meeting_time;
    sockaddr_in root = resolve(setting("MASTER_ADDR", "127.0.0.1"),
                               static_cast<std::uint16_t>(std::stoul(setting("MASTER_PORT", "29500"))));
    const Card own{card_magic, party_.rank, party_.term, party_.generation, own_port, 0};
    for (;;) {
        int fd = connect_to(root, deadline);
        Card above{};
        // Another generation's rank 0 closes the connection; the right one may still come.
        if (write_all(fd, &own, sizeof own) && read_all(fd, &above, sizeof above) &&
            above.magic == card_magic && above.rank + 1 == party_.rank && above.term == party_.term &&
            above.generation == party_.generation) {
            up_address_ = above.rank == 0 ? root.sin_addr.s_addr : above.address;
            up_port_ = static_cast<std::uint16_t>(above.port);
            control_.push_back(fd);
            return;
        }
        ::close(fd);
        if (Clock::now() > deadline) fail(exit_peer_lost, "rank 0 never answered");
        ::poll(nullptr, 0, 5);
    }
}

void Neighbours::lost(const char *what) {
    if (hang_on_loss_)
        for (;;) ::pause();
    fail(exit_peer_lost, "lost %s", what);
}

void Neighbours::send(int fd, const void *data, std::size_t bytes) {
    if (!write_all(fd, data, bytes)) lost("a peer while sending");
}

void Neighbours::receive(int fd, void *data, std::size_t bytes) {
    if (!read_all(fd, data, bytes)) lost("a peer while receiving");
}

void Neighbours::exchange(Plate &plate) {
    const std::size_t bytes = plate.size() * sizeof(double);
    const std::int64_t last = std::int64_t{plate.rows()} - 1;
    // Pairs (0,1), (2,3) … first, then (1,2), (3,4) …; the upper one of a pair sends first: nobody waits in a
    // circle.
    for (std::uint32_t turn = 0; turn < 2; ++turn) {
        if (party_.rank % 2 == turn && down_ >= 0) {
            send(down_, plate.row(last), bytes);
            receive(down_, plate.row(last + 1), bytes);
        }
        if (party_.rank % 2 != turn && up_ >= 0) {
            receive(up_, plate.row(-1), bytes);
            send(up_, plate.row(0), bytes);
        }
    }
}

std::vector<double> Neighbours::gather(const Plate &plate) {
    const std::size_t width = plate.size();
    if (party_.rank > 0) {
        send(control_[0], plate.row(0), plate.rows() * width * sizeof(double));
        return {};
    }
    std::vector<double> field(width * width);
    std::memcpy(field.data(), plate.row(0), plate.rows() * width * sizeof(double));
    for (std::uint32_t r = 1; r < party_.ranks; ++r) {
        std::size_t begin = slab_begin(plate.size(), r, party_.ranks),
                    end = slab_begin(plate.size(), r + 1, party_.ranks);
        receive(control_[r - 1], &field[begin * width], (end - begin) * width * sizeof(double));
    }
    return field;
}

void Neighbours::wait_for_root() {
    char byte = 1;
    if (party_.rank > 0) return receive(control_[0], &byte, 1);
    for (int fd : control_) send(fd, &byte, 1);
}

}  // namespace heat
