// SPDX-License-Identifier: Apache-2.0
// Who tells of nodes that are waited for at the start, when, and which.
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Node 0 is the batch host.
struct Fixture {
    Fixture(std::uint32_t nodes, std::vector<std::uint32_t> present) : g(TestGroup::config(nodes, 1, nodes)) {
        for (std::uint32_t i = 0; i < nodes; ++i) {
            g.job_nodes.emplace_back(i);
            if (std::ranges::find(present, i) == present.end())
                g.crash(i);
            else
                here.push_back(i);
        }
        for (std::uint32_t i : here) g.feed(i, LocalReady{true, {}});
    }
    std::vector<std::string> told(std::uint32_t node) {
        std::vector<std::string> texts;
        for (const Tell &t : g.actions<Tell>(node)) texts.push_back(t.text);
        return texts;
    }
    bool only(std::uint32_t node, const std::string &words) {
        for (std::uint32_t i : here)
            if (i != node && !told(i).empty()) return false;
        return told(node).size() == 1 && told(node).front().find(words) != std::string::npos;
    }
    TestGroup g;
    std::vector<std::uint32_t> here;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(absence)

BOOST_AUTO_TEST_CASE(the_leader_tells_within_ten_seconds_and_once) {
    Fixture f(3, {0, 1});
    f.g.run(6s);
    BOOST_TEST(f.told(1).empty());
    f.g.run(3s);
    BOOST_TEST(f.only(1, "nothing is heard from node 2: dlroverd does not run there"), f.told(1).size());
    f.g.run(45s);
    BOOST_TEST(f.only(1, "node 2"));
}

BOOST_AUTO_TEST_CASE(without_a_majority_the_first_candidate_tells) {
    Fixture f(5, {1, 3});
    f.g.run(9s);
    BOOST_TEST(f.only(1, "nothing is heard from node 0, node 2, node 4:"));
}

BOOST_AUTO_TEST_CASE(the_batch_host_tells_where_it_is_alone) {
    Fixture f(2, {0});
    f.g.run(9s);
    BOOST_TEST(f.only(0, "nothing is heard from node 1:"));
}

BOOST_AUTO_TEST_CASE(the_batch_host_leaves_it_to_the_candidate) {
    Fixture f(4, {0, 2});
    f.g.run(9s);
    BOOST_TEST(f.only(2, "nothing is heard from node 1, node 3:"));
}

BOOST_AUTO_TEST_CASE(a_node_whose_tasks_are_not_all_there) {
    Fixture f(3, {0, 1});
    f.g.boot(2);
    f.g.feed(2, LocalReady{false, {}});
    f.g.run(9s);
    BOOST_TEST(f.only(1, "not all tasks have started on node 2"));
}

BOOST_AUTO_TEST_CASE(who_is_still_missing_is_told_again_later) {
    Fixture f(4, {0, 1, 2});
    f.g.crash(2);
    f.g.run(9s);
    f.g.boot(2);
    f.g.feed(2, LocalReady{true, {}});
    f.g.run(30s);
    auto told = f.told(1);
    BOOST_REQUIRE(!told.empty());
    BOOST_TEST(told.back().find("nothing is heard from node 3:") != std::string::npos, told.back());
}

BOOST_AUTO_TEST_CASE(nothing_is_told_where_all_come) {
    Fixture f(3, {0, 1, 2});
    f.g.run(60s);
    for (std::uint32_t i : f.here) BOOST_TEST(f.told(i).empty());
}

BOOST_AUTO_TEST_CASE(of_many_nodes_some_are_named) {
    Fixture f(40, {1});
    f.g.run(9s);
    BOOST_TEST(f.only(1, "node 16 and 23 more nodes:"));
}

BOOST_AUTO_TEST_SUITE_END()
