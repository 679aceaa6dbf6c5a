// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/unsent.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

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
