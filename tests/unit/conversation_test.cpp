// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/conversation.h"

#include <boost/test/unit_test.hpp>
#include <string>

using namespace dlrover::pmix;
using namespace std::chrono_literals;

namespace {

constexpr std::uint8_t ask = 0, fence = 3, construct = 24, commit = 2;

void put(std::vector<std::uint8_t> &to, std::uint32_t number) {
    for (int shift : {24, 16, 8, 0}) to.push_back(static_cast<std::uint8_t>(number >> shift));
}

std::vector<std::uint8_t> message(std::uint32_t tag, const std::string &rest) {
    std::vector<std::uint8_t> bytes;
    put(bytes, 1);
    put(bytes, tag);
    put(bytes, static_cast<std::uint32_t>(rest.size()));
    put(bytes, 0);
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
}

std::string request(std::uint8_t command, const std::string &rest = "what it is about") {
    return std::string(1, '\2') + static_cast<char>(command) + rest;
}

/// The first request, answered: what all messages look like is known then.
Conversation begun() {
    Conversation c;
    c.received(message(100, request(ask)), 1s);
    c.sent(message(100, "the job"));
    return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conversation)

BOOST_AUTO_TEST_CASE(a_fence_waits_until_it_is_answered) {
    Conversation c = begun();
    BOOST_TEST(!c.wait().has_value());
    c.received(message(101, request(fence)), 5s);
    BOOST_REQUIRE(c.wait().has_value());
    BOOST_TEST(c.wait()->purpose == std::string("a fence"));
    BOOST_TEST((c.wait()->since == 5s));
    c.sent(message(0, "an event"));
    c.sent(message(77, "another answer"));
    BOOST_TEST(c.wait().has_value());
    c.sent(message(101, "done"));
    BOOST_TEST(!c.wait().has_value());
}

BOOST_AUTO_TEST_CASE(of_several_the_first_counts_and_others_than_those_do_not) {
    Conversation c = begun();
    c.received(message(101, request(commit)), 2s);  // never answered
    c.received(message(102, request(construct)), 3s);
    c.received(message(103, request(fence)), 4s);
    BOOST_TEST((c.wait()->since == 3s));
    BOOST_TEST(c.wait()->purpose == std::string("a process group"));
    c.sent(message(102, ""));
    BOOST_TEST((c.wait()->since == 4s));
}

BOOST_AUTO_TEST_CASE(bytes_come_in_any_pieces) {
    for (std::size_t piece : {1u, 3u, 7u, 16u, 17u, 1000u}) {
        std::vector<std::uint8_t> in, out;
        for (const auto &m : {message(100, request(ask)), message(101, ""), message(102, request(fence))})
            in.insert(in.end(), m.begin(), m.end());
        for (const auto &m : {message(0, ""), message(100, "the job")})
            out.insert(out.end(), m.begin(), m.end());
        Conversation c;
        auto feed = [&](const std::vector<std::uint8_t> &bytes, auto take) {
            for (std::size_t at = 0; at < bytes.size(); at += piece)
                take(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
        };
        feed(in, [&](auto part) { c.received(part, 1s); });
        BOOST_TEST(!c.wait().has_value(), "nothing has shown yet what these bytes are");
        feed(out, [&](auto part) { c.sent(part); });
        BOOST_TEST(c.wait().has_value(), piece);
        feed(message(102, "x"), [&](auto part) { c.sent(part); });
        BOOST_TEST(!c.wait().has_value(), piece);
    }
}

BOOST_AUTO_TEST_CASE(what_has_a_limit_of_its_own_is_libpmix_s) {
    for (std::size_t piece : {1u, 5u, 1000u}) {
        Conversation c = begun();
        auto bytes = message(101, request(fence, std::string(5000, 'x') + "pmix.timeout" + "9"));
        for (std::size_t at = 0; at < bytes.size(); at += piece)
            c.received(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)), 2s);
        BOOST_TEST(!c.wait().has_value());
        BOOST_TEST(c.has_limited());
        c.received(message(102, request(fence)), 3s);
        BOOST_TEST((c.wait()->since == 3s));
        c.sent(message(101, ""));
        BOOST_TEST(!c.has_limited());
    }
}

BOOST_AUTO_TEST_CASE(other_bytes_say_nothing) {
    Conversation c;
    std::vector<std::uint8_t> noise(100000);
    for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<std::uint8_t>(i * i * 31 + i / 7);
    c.received(noise, 1s);
    c.sent(noise);
    BOOST_TEST(!c.wait().has_value());
    Conversation other = begun();
    other.received(message(101, std::string(4, '\0') + static_cast<char>(fence)), 2s);
    BOOST_TEST(!other.wait().has_value(), "of another libpmix");
    Conversation d = begun();
    d.received(message(101, request(fence)), 2s);
    std::vector<std::uint8_t> huge;
    for (std::uint32_t number : {0u, 102u, UINT32_MAX, 0u}) put(huge, number);
    d.received(huge, 3s);
    BOOST_TEST(!d.wait().has_value(), "these are no messages any more");
}

/// A client that asks, and asks, has what was first forgotten.
BOOST_AUTO_TEST_CASE(what_is_kept_has_a_bound) {
    Conversation c = begun();
    for (std::uint32_t i = 0; i < 10000; ++i) c.received(message(200 + i, request(fence)), Time(i));
    BOOST_REQUIRE(c.wait().has_value());
    BOOST_TEST((c.wait()->since >= Time(10000 - 256)));
}

BOOST_AUTO_TEST_SUITE_END()
