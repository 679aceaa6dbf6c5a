// SPDX-License-Identifier: Apache-2.0
#include "daemon/id_runs.h"

#include <boost/test/unit_test.hpp>
#include <random>

#include "base/ids.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

std::vector<NodeIndex> from_to(std::uint32_t first, std::uint32_t end) {
    std::vector<NodeIndex> nodes;
    for (std::uint32_t n = first; n < end; ++n) nodes.emplace_back(n);
    return nodes;
}

constexpr std::uint32_t run = 1u << 31, by_two = 2u << 24, by_one = 1u << 24;

}  // namespace

BOOST_AUTO_TEST_SUITE(id_runs)

BOOST_AUTO_TEST_CASE(short_lists_are_as_they_are) {
    BOOST_TEST((pack_runs(from_to(0, 0)) == std::vector<std::uint32_t>{}));
    BOOST_TEST((pack_runs(from_to(3, 8)) == std::vector<std::uint32_t>{3, 4, 5, 6, 7}));
    BOOST_TEST((pack_runs(std::vector{NodeIndex(4), NodeIndex(2)}) == std::vector<std::uint32_t>{4, 2}));
}

BOOST_AUTO_TEST_CASE(a_world_with_one_spare_in_it_is_a_few_words) {
    auto nodes = from_to(0, 10000);
    nodes[5000] = NodeIndex(10000);
    auto words = pack_runs(nodes);
    BOOST_TEST(
        (words == std::vector<std::uint32_t>{0, run | by_one | 4999, 10000, 5001, run | by_one | 4998}));
    BOOST_TEST((unpack_runs<NodeIndex>(words, 10001, 10001) == nodes));
}

BOOST_AUTO_TEST_CASE(several_partners_of_each_node_are_runs_too) {
    std::vector<NodeIndex> partners;
    for (std::uint32_t n = 0; n < 1000; ++n) {
        partners.emplace_back((n + 1) % 1000);
        partners.emplace_back((n + 2) % 1000);
    }
    auto words = pack_runs(partners, 2);
    BOOST_TEST(words.size() < 12u);
    BOOST_TEST((unpack_runs<NodeIndex>(words, 1000, 2000) == partners));
}

BOOST_AUTO_TEST_CASE(any_list_comes_back) {
    std::mt19937 random(1);
    for (int round = 0; round < 2000; ++round) {
        std::vector<NodeIndex> nodes;
        std::size_t stride = 1 + random() % 3;
        while (nodes.size() < random() % 400) {
            std::uint32_t next = random() % 500;
            bool goes_on = random() % 32 != 0 && nodes.size() >= stride;
            if (goes_on) next = std::min(nodes[nodes.size() - stride].value() + 1, 499u);
            nodes.emplace_back(next);
        }
        auto back = unpack_runs<NodeIndex>(pack_runs(nodes, stride), 500, nodes.size());
        BOOST_TEST_REQUIRE((back == nodes));
    }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_is_refused) {
    using Words = std::vector<std::uint32_t>;
    BOOST_TEST(unpack_runs<NodeIndex>(Words{0, run | by_one | 3}, 4, 4).has_value());
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{0, run | by_one | 4}, 4, 8).has_value(),
               "the run leads out of the table");
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{0, run | by_one | 3}, 9, 3).has_value(),
               "more numbers than there may be");
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{0, run | by_one | 0xffffff}, 1u << 30, 100).has_value(),
               "very many");
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{run | by_one | 3}, 9, 9).has_value(), "a run of nothing");
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{0, run | by_two | 3}, 9, 9).has_value(),
               "nothing two places before");
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{0, run | 3}, 9, 9).has_value(), "no stride");
    BOOST_TEST(!unpack_runs<NodeIndex>(Words{9}, 9, 9).has_value(), "out of the table");
}

BOOST_AUTO_TEST_SUITE_END()
