// SPDX-License-Identifier: Apache-2.0
#include "daemon/topology.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <numeric>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

using namespace dlrover::daemon;

namespace {

std::vector<unsigned> range(unsigned first, unsigned count) {
    std::vector<unsigned> cpus(count);
    std::iota(cpus.begin(), cpus.end(), first);
    return cpus;
}

using Node = std::optional<unsigned>;

}  // namespace

BOOST_AUTO_TEST_SUITE(topology)

BOOST_AUTO_TEST_CASE(a_process_belongs_to_the_node_that_has_all_its_cpus) {
    std::vector<NumaNode> nodes{{0, range(0, 4)}, {1, range(4, 4)}};
    BOOST_TEST((numa_node_of(nodes, {0}) == Node(0)));
    BOOST_TEST((numa_node_of(nodes, range(4, 4)) == Node(1)));
    BOOST_TEST((numa_node_of(nodes, {3, 4}) == Node()), "on both: on none");
    BOOST_TEST((numa_node_of(nodes, range(0, 8)) == Node()));
    BOOST_TEST((numa_node_of(nodes, {}) == Node()));
    BOOST_TEST((numa_node_of(nodes, {9}) == Node()));
    BOOST_TEST((numa_node_of({}, {0}) == Node()));
}

BOOST_AUTO_TEST_CASE(ordinary_memory_comes_before_other_kinds) {
    std::vector<NumaNode> nodes{{2, range(0, 4)}, {0, range(0, 4)}, {3, {}}};
    BOOST_TEST((numa_node_of(nodes, {1}) == Node(0)));
}

BOOST_AUTO_TEST_CASE(the_cpus_of_a_process) {
    BOOST_TEST(!cpus_of_process(::getpid()).empty());
    BOOST_TEST(cpus_of_process(0).empty());
    BOOST_TEST(cpus_of_process(0x7fffffff).empty());
}

#ifdef HAVE_HWLOC

BOOST_AUTO_TEST_CASE(hwloc_knows_sockets_and_dies) {
    auto nodes = load_numa_nodes("pack:2 [numa] die:2 core:4 pu:2");
    BOOST_REQUIRE(nodes.size() == 2u);
    BOOST_TEST(nodes[1].cpus == range(16, 16), boost::test_tools::per_element());
    BOOST_TEST((numa_node_of(nodes, {17, 30}) == Node(1)));
    nodes = load_numa_nodes("pack:2 die:2 [numa] core:4 pu:2");
    BOOST_REQUIRE(nodes.size() == 4u);
    BOOST_TEST((numa_node_of(nodes, {17, 18}) == Node(2)));
    BOOST_TEST((numa_node_of(nodes, {17, 30}) == Node()), "two dies of one socket");
    BOOST_TEST(load_numa_nodes("nonsense:").empty());
}

BOOST_AUTO_TEST_CASE(this_machine_has_a_node_at_least) {
    auto nodes = load_numa_nodes();
    BOOST_REQUIRE(!nodes.empty());
    if (nodes.size() == 1)
        BOOST_TEST((numa_node_of(nodes, cpus_of_process(::getpid())) == Node(nodes[0].number)));
}

#endif

BOOST_AUTO_TEST_SUITE_END()
