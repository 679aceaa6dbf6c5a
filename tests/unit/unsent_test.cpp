// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/unsent.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <vector>

#include "base/unique_fd.h"

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

/// Waits for a socket, as libevent does.
struct Waiting {
    UniqueFd epoll{::epoll_create1(EPOLL_CLOEXEC)};
    UniqueFd socket;

    Waiting(int family, std::uint32_t events) : socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        epoll_event event{};
        event.events = events;
        BOOST_REQUIRE(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0);
    }
};

}  // namespace

BOOST_AUTO_TEST_CASE(what_the_peers_kernel_has_no_room_for_is_unsent) {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto *where = reinterpret_cast<sockaddr *>(&address);
    BOOST_REQUIRE(::bind(listener.get(), where, size) == 0 && ::listen(listener.get(), 1) == 0);
    BOOST_REQUIRE(::getsockname(listener.get(), where, &size) == 0);
    Waiting sender(AF_INET, EPOLLIN);
    BOOST_REQUIRE(::connect(sender.socket.get(), where, size) == 0);
    UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::vector<char> text(1 << 20);
    BOOST_REQUIRE(::send(sender.socket.get(), text.data(), 100, 0) == 100);
    pollfd arrived{peer.get(), POLLIN, 0};
    BOOST_REQUIRE(::poll(&arrived, 1, 10000) == 1);
    BOOST_TEST(!has_unsent(), "it was not read, but it is there");
    while (::send(sender.socket.get(), text.data(), text.size(), MSG_DONTWAIT) > 0) {
    }
    BOOST_TEST(has_unsent());
}

BOOST_AUTO_TEST_CASE(a_socket_that_is_waited_for_to_write_has_something_unsent) {
    BOOST_TEST(!has_unsent());
    {
        Waiting idle(AF_INET, EPOLLIN), daemon(AF_UNIX, EPOLLIN | EPOLLOUT);
        BOOST_TEST(!has_unsent());
        Waiting busy(AF_INET, EPOLLIN | EPOLLOUT);
        BOOST_TEST(has_unsent());
    }
    BOOST_TEST(!has_unsent());
    Waiting busy(AF_INET6, EPOLLOUT);
    BOOST_TEST(has_unsent());
}
