// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/accept_guard.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <sstream>

#include "base/unique_fd.h"

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

constexpr const char *head =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
// Both ends of a connection from port 0xBEEF to port 0x1F90, its listener, and a client that has gone, as a
// little-endian machine has them.
constexpr const char *rows =
    "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 "
    "0 10 0\n"
    "   1: 0100007F:1F90 0100007F:BEEF 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 "
    "30 10 -1\n"
    "   2: 0100007F:BEEF 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  2001        0 3 1 0 20 4 "
    "30 10 -1\n"
    "   3: 0100007F:BEE0 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 "
    "30 10 -1\n";

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
}

std::optional<uid_t> owner(const std::string &table, std::uint16_t own, std::uint16_t peer) {
    std::istringstream in(table);
    return owner_of_peer(in, loopback(own), loopback(peer));
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_kernels_table_says_whose_the_other_end_is) {
    if (htonl(1) == 1) return;  // the rows would be others
    std::string table = std::string(head) + rows;
    BOOST_TEST((owner(table, 0x1f90, 0xbeef) == std::optional<uid_t>(2001)));
    BOOST_TEST((owner(table, 0xbeef, 0x1f90) == std::optional<uid_t>(1000)));
    BOOST_TEST(!owner(table, 0x1f90, 0xbee0));
    BOOST_TEST(!owner(table, 0x1f90, 0xbeee));
    BOOST_TEST(!owner(table, 0x1f91, 0xbeef));
}

BOOST_AUTO_TEST_CASE(a_table_that_is_none_has_nobody) {
    for (const char *text : {"", "x", "0100007F:BEEF 0100007F:1F90\n",
                             "   2: 0100007F:BEEF 0100007F:1F90 01 00000000:00000000\n"})
        BOOST_TEST(!owner(std::string(head) + text, 0x1f90, 0xbeef));
}

BOOST_AUTO_TEST_CASE(ones_own_connections_are_taken) {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    BOOST_REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr *>(&address), size) == 0);
    BOOST_REQUIRE(::listen(listener.get(), 1) == 0);
    BOOST_REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address), &size) == 0);
    BOOST_REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr *>(&address), size) == 0);
    auto before = connections_looked_at();
    UniqueFd taken(::accept(listener.get(), nullptr, nullptr));
    BOOST_TEST(connections_looked_at() == before + 1);
    BOOST_REQUIRE(::write(client.get(), "x", 1) == 1);
    char byte = 0;
    BOOST_TEST(::read(taken.get(), &byte, 1) == 1);
    BOOST_TEST(byte == 'x');
}
