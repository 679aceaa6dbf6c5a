// SPDX-License-Identifier: Apache-2.0
#include "elastic/placement.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>
#include <set>

using namespace dlrover;
using namespace dlrover::elastic;

namespace {

using Nodes = std::vector<PlacedNode>;

Nodes nodes_of(const std::vector<std::uint32_t> &domains) {
    Nodes nodes;
    for (std::uint32_t i = 0; i < domains.size(); ++i) nodes.push_back({NodeIndex(i), domains[i]});
    return nodes;
}

std::map<NodeIndex, std::size_t> loads(const Placement &placement) {
    std::map<NodeIndex, std::size_t> load;
    for (const auto &[node, partners] : placement)
        for (NodeIndex partner : partners) ++load[partner];
    return load;
}

/// Others, each once, all there, as many as asked for.
bool sound(const Nodes &nodes, const Placement &placement, std::size_t copies) {
    std::set<NodeIndex> there;
    for (const PlacedNode &n : nodes) there.insert(n.node);
    if (placement.size() != (nodes.size() < 2 ? 0 : nodes.size())) return false;
    for (const auto &[node, partners] : placement) {
        std::set<NodeIndex> distinct(partners.begin(), partners.end());
        if (!there.contains(node) || distinct.contains(node) || distinct.size() != partners.size())
            return false;
        if (partners.size() != std::min(copies, nodes.size() - 1)) return false;
        if (!std::ranges::includes(there, distinct)) return false;
    }
    return true;
}

std::uint32_t domain_of(const Nodes &nodes, NodeIndex node) {
    return std::ranges::find(nodes, node, &PlacedNode::node)->domain;
}

std::size_t within_a_domain(const Nodes &nodes, const Placement &placement) {
    std::size_t count = 0;
    for (const auto &[node, partners] : placement)
        count += !partners.empty() && domain_of(nodes, node) == domain_of(nodes, partners.front());
    return count;
}

std::size_t largest(const Nodes &nodes) {
    std::map<std::uint32_t, std::size_t> sizes;
    std::size_t most = 0;
    for (const PlacedNode &n : nodes) most = std::max(most, ++sizes[n.domain]);
    return most;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(placement)

BOOST_AUTO_TEST_CASE(alone_there_is_no_partner) {
    BOOST_TEST(place({}, 1).empty());
    BOOST_TEST(place(nodes_of({0}), 3).empty());
    BOOST_TEST(place_again(nodes_of({0}), 1, {{NodeIndex(0), {NodeIndex(1)}}}).empty());
    BOOST_TEST(sound(nodes_of({0, 0}), place(nodes_of({0, 0}), 0), 0));
}

BOOST_AUTO_TEST_CASE(two_nodes_keep_each_others) {
    auto placement = place(nodes_of({0, 0}), 2);
    BOOST_TEST((placement == Placement{{NodeIndex(0), {NodeIndex(1)}}, {NodeIndex(1), {NodeIndex(0)}}}));
}

BOOST_AUTO_TEST_CASE(partners_are_of_other_domains_and_all_keep_the_same) {
    std::mt19937 random(1);
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::uint32_t> domains(2 + random() % 40);
        std::uint32_t kinds = 1 + random() % 8;
        for (auto &domain : domains) domain = random() % kinds;
        unsigned copies = 1 + random() % 3;
        Nodes nodes = nodes_of(domains);
        auto placement = place(nodes, copies);
        BOOST_REQUIRE(sound(nodes, placement, copies));
        for (auto &[node, load] : loads(placement))
            BOOST_REQUIRE(load == std::min<std::size_t>(copies, nodes.size() - 1));
        std::size_t most = largest(nodes);
        // Where one has more than half, some of its nodes have to make do with their own.
        if (2 * most <= nodes.size())
            BOOST_REQUIRE(within_a_domain(nodes, placement) == 0);
        else
            BOOST_REQUIRE(within_a_domain(nodes, placement) <= 2 * most - nodes.size());
        Nodes shuffled = nodes;
        std::ranges::shuffle(shuffled, random);
        BOOST_REQUIRE((place(shuffled, copies) == placement));
    }
}

BOOST_AUTO_TEST_CASE(after_a_loss_only_what_is_missing_is_placed_anew) {
    std::mt19937 random(2);
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::uint32_t> domains(4 + random() % 40);
        for (auto &domain : domains) domain = random() % 5;
        unsigned copies = 1 + random() % 2;
        Nodes nodes = nodes_of(domains);
        auto before = place(nodes, copies);
        NodeIndex lost(static_cast<std::uint32_t>(random() % nodes.size()));
        std::erase_if(nodes, [&](const PlacedNode &n) { return n.node == lost; });
        if (round % 2 == 0)  // and a new one came
            nodes.push_back({NodeIndex(1000), static_cast<std::uint32_t>(random() % 5)});
        auto after = place_again(nodes, copies, before);
        BOOST_REQUIRE(sound(nodes, after, copies));
        for (auto &[node, partners] : after) {
            if (!before.contains(node)) continue;
            for (NodeIndex partner : before.at(node))
                BOOST_REQUIRE((partner == lost || std::ranges::find(partners, partner) != partners.end()));
        }
        for (auto &[node, load] : loads(after)) BOOST_REQUIRE(load <= copies + 1);
    }
}

BOOST_AUTO_TEST_CASE(many_losses_one_after_the_other_do_not_heap_copies_up) {
    std::mt19937 random(3);
    std::vector<std::uint32_t> domains(64);
    for (std::uint32_t i = 0; i < domains.size(); ++i) domains[i] = i / 16;
    Nodes nodes = nodes_of(domains);
    auto placement = place(nodes, 1);
    while (nodes.size() > 2) {
        nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(random() % nodes.size()));
        placement = place_again(nodes, 1, placement);
        BOOST_REQUIRE(sound(nodes, placement, 1));
        for (auto &[node, load] : loads(placement)) BOOST_REQUIRE(load <= 2);
    }
}

BOOST_AUTO_TEST_SUITE_END()
