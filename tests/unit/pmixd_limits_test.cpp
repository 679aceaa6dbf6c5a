// SPDX-License-Identifier: Apache-2.0
// How long ranks wait for others, and what the daemon is told of those that do not come.
#include "pmixd_nodes.h"

using namespace dlrover;
using namespace dlrover::test;

/// The ranks of the other node live, and one of them comes.
BOOST_AUTO_TEST_CASE(a_fence_without_a_limit_of_its_own_has_the_servers) {
    Group g;
    for (auto &node : g.nodes) node.wait_limit_ms = 700;
    g.serve(2);
    g.start(3, "sleep");
    auto start = Clock::now();
    for (std::uint32_t rank : {0u, 1u, 2u}) g.start(rank, "wait");
    for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, "fence: timeout\n");
    BOOST_TEST((Clock::now() - start >= 700ms));
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "get of rank 2");
    for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, ": timeout\n");
    BOOST_TEST(g.nodes[0].overdues == std::vector<std::string>{"a fence"}, boost::test_tools::per_element());
    BOOST_TEST(g.nodes[1].overdues.empty());
}

/// libpmix tells its server nothing of such a fence.
BOOST_AUTO_TEST_CASE(a_neighbour_that_does_not_come_is_told) {
    Group g;
    for (auto &node : g.nodes) node.wait_limit_ms = 700;
    g.serve(2);
    g.start(3, "sleep");
    auto begun = Clock::now();
    g.start(2, "wait");
    g.start(0, "wait for ages");  // as long as it says itself
    auto &told = g.nodes[1].missed;
    while (told.size() < 3 && Clock::now() - begun < patience) g.pass(20ms);  // again and again
    BOOST_TEST((Clock::now() - begun >= 700ms));
    BOOST_REQUIRE(told.size() >= 3u);
    for (const auto &missed : told) {
        BOOST_TEST(missed.generation->number() == 2u);
        BOOST_TEST(missed.purpose == "a fence");
        BOOST_TEST(missed.waiting == std::vector<std::uint16_t>{0}, boost::test_tools::per_element());
        BOOST_TEST(missed.missing == std::vector<std::uint16_t>{1}, boost::test_tools::per_element());
    }
    BOOST_TEST(g.nodes[0].missed.empty());
    g.nodes[1].stop_ranks();
    for (int i = 0; i == 0 || (i < 20 && !told.empty()); ++i) {
        told.clear();
        g.pass(500ms);
    }
    BOOST_TEST(told.empty(), "the generation is over");
}

/// Also while one of them waits for something published, for as long as it takes.
BOOST_AUTO_TEST_CASE(a_neighbour_that_looks_something_up_is_told) {
    Group g;
    for (auto &node : g.nodes) node.wait_limit_ms = 700;
    g.serve(2);
    g.start(1, "look up, and wait");
    g.pass(500ms);
    g.start(0, "wait");
    auto begun = Clock::now();
    auto &told = g.nodes[0].missed;
    while (told.size() < 2 && Clock::now() - begun < patience) g.pass(20ms);
    BOOST_REQUIRE(told.size() >= 2u);
    const std::vector<std::uint16_t> looks_up{1};
    BOOST_TEST(told.back().missing == looks_up, boost::test_tools::per_element());
    BOOST_TEST(told.back().asking == looks_up, boost::test_tools::per_element());
    BOOST_TEST(told.front().waited_ms >= 700u);
    BOOST_TEST(told.back().waited_ms > told.front().waited_ms);
    for (auto &node : g.nodes) node.stop_ranks();
}

/// Late, but there: the other node's ranks are the ones that are missing, and that has its limit.
BOOST_AUTO_TEST_CASE(a_neighbour_that_has_come_is_not_told) {
    Group g;
    for (auto &node : g.nodes) node.wait_limit_ms = 6000;
    g.serve(2);
    g.start(0, "wait");
    g.pass(2s);
    g.start(1, "wait");  // from now on both wait for the other node, for 6 s
    for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, "fence: timeout\n");
    BOOST_TEST(g.nodes[0].missed.empty());
}

/// The first node, which decides about all boards, is heard no more; who says so waits for as long as it
/// takes.
BOOST_AUTO_TEST_CASE(what_is_published_and_looked_up_has_the_servers_limit) {
    Group g;
    for (auto &node : g.nodes) node.wait_limit_ms = 700;
    g.serve(2);
    g.pass(300ms);
    g.nodes[1].cut = true;
    const std::pair<const char *, const char *> calls[] = {{"publish", "publish: timeout\n"},
                                                           {"look up", "look up: timeout\n"},
                                                           {"unpublish", "unpublish: timeout\n"}};
    g.start(3, "look up, and wait");
    auto start = Clock::now();
    for (auto [call, answer] : calls) {
        g.start(2, call);
        g.expect_failure(2, answer);
    }
    BOOST_TEST((Clock::now() - start >= 3 * 700ms));
    BOOST_TEST(g.nodes[1].overdues == std::vector<std::string>{"a publication"},
               boost::test_tools::per_element());
    g.nodes[1].cut = false;
    g.start(0, "publish");
    (void)g.wait(0);
    auto ended = g.wait(3);
    BOOST_TEST(ended.wait_status == 0, ended.output);
}

BOOST_AUTO_TEST_CASE(a_fence_waits_no_longer_than_it_may) {
    Group g;
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "wait seconds");
    auto start = Clock::now();
    for (std::uint32_t rank : {0u, 1u}) {
        auto ended = g.wait(rank);
        BOOST_TEST(ended.wait_status == 0, ended.output);
    }
    BOOST_TEST((Clock::now() - start < 20s));
}

/// libpmix's own server keeps to it: ours has not heard of that fence.
BOOST_AUTO_TEST_CASE(a_fence_waits_for_a_neighbour_no_longer_than_it_may) {
    Group g;
    g.start(1, "sleep");
    auto start = Clock::now();
    g.start(0, "wait seconds");
    auto ended = g.wait(0);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    BOOST_TEST((Clock::now() - start >= 4s));
    BOOST_TEST((Clock::now() - start < 20s));
}

BOOST_AUTO_TEST_CASE(a_fence_may_wait_for_ages) {
    Group g;
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "wait for ages");
    g.pass(1s);
    for (auto &node : g.nodes) node.stop_ranks();
    for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, "fence: lost connection\n");
}
