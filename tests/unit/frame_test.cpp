// SPDX-License-Identifier: Apache-2.0
#include "proto/frame.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::proto;

BOOST_AUTO_TEST_SUITE(frame)

BOOST_AUTO_TEST_CASE(frames_survive_any_cutting) {
    Bytes stream;
    for (std::size_t n : {1u, 5u, 1000u}) {
        Bytes f = make_frame(Bytes(n, static_cast<std::uint8_t>(n)));
        stream.insert(stream.end(), f.begin(), f.end());
    }
    for (std::size_t cut = 1; cut <= stream.size(); cut += 7) {
        FrameReader reader;
        for (std::size_t at = 0; at < stream.size(); at += cut)
            BOOST_REQUIRE(reader.feed({stream.data() + at, std::min(cut, stream.size() - at)}).ok());
        for (std::size_t n : {1u, 5u, 1000u})
            BOOST_TEST((reader.next() == Bytes(n, static_cast<std::uint8_t>(n))));
        BOOST_TEST(!reader.next().has_value());
        BOOST_TEST(!reader.mid_frame());
    }
}

BOOST_AUTO_TEST_CASE(wrong_lengths_are_refused_before_the_bytes_come) {
    for (std::uint32_t n : {0u, static_cast<std::uint32_t>(max_frame_bytes) + 1, 0xffffffffu}) {
        std::uint8_t header[4] = {std::uint8_t(n), std::uint8_t(n >> 8), std::uint8_t(n >> 16),
                                  std::uint8_t(n >> 24)};
        FrameReader reader;
        BOOST_TEST((reader.feed(header).code() == Code::corrupt));
    }
}

BOOST_AUTO_TEST_CASE(descriptors_travel) {
    int pair[2];
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    UniqueFd a(pair[0]), b(pair[1]);
    int fds[] = {a.get(), b.get()};
    std::uint8_t byte = 1, buffer[8];
    BOOST_REQUIRE(*send_with_fds(a.get(), {&byte, 1}, fds) == 1u);
    auto received = receive_with_fds(b.get(), buffer);
    BOOST_REQUIRE(received.ok());
    BOOST_TEST(received->bytes == 1u);
    BOOST_TEST(received->fds.size() == 2u);
    BOOST_TEST((::fcntl(received->fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
}

BOOST_AUTO_TEST_CASE(descriptors_are_seen_and_left_alone) {
    int pair[2];
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    UniqueFd a(pair[0]), b(pair[1]);
    std::uint8_t byte = 1, buffer[8];
    BOOST_TEST((receive_no_fds(b.get(), buffer).status().code() == Code::timeout));
    BOOST_REQUIRE(*send_with_fds(a.get(), {&byte, 1}, {}) == 1u);
    BOOST_REQUIRE(*send_with_fds(a.get(), {&byte, 1}, {}) == 1u);
    BOOST_TEST(*receive_no_fds(b.get(), buffer) == 2u);
    int passed = a.get();
    BOOST_REQUIRE(*send_with_fds(a.get(), {&byte, 1}, {}) == 1u);
    BOOST_REQUIRE(*send_with_fds(a.get(), {&byte, 1}, std::span(&passed, 1)) == 1u);
    BOOST_TEST((receive_no_fds(b.get(), buffer).status().code() == Code::corrupt));
    auto received = receive_with_fds(b.get(), buffer);  // all of it is still there
    BOOST_REQUIRE(received.ok());
    BOOST_TEST(received->bytes == 2u);
    BOOST_TEST(received->fds.size() == 1u);
    a.reset();
    received->fds.clear();
    BOOST_TEST(*receive_no_fds(b.get(), buffer) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
