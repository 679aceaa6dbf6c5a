// SPDX-License-Identifier: Apache-2.0
// Where copying threads run: on made-up machines, and on this one.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "lib/parallel.h"

using namespace dlrover::lib;

namespace {

/// A folder like /sys/devices/system/node.
struct Machine {
    std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("dlrover-numa-" + std::to_string(::getpid()));
    Machine() { std::filesystem::remove_all(folder); }
    ~Machine() { std::filesystem::remove_all(folder); }
    void add(const std::string &node, const std::string &cpus) const {
        std::filesystem::create_directories(folder / node);
        std::ofstream(folder / node / "cpulist") << cpus << "\n";
    }
};

/// Two nodes of four processors each, which are not numbered in a row.
struct TwoNodes : Machine {
    TwoNodes() {
        add("node0", "0-1,4-5");
        add("node1", "2-3,6-7");
    }
};

// What the system says, and how often it was asked.
Cpus mine;
std::vector<int> on;
int asked = 0;

struct Near : NearCpus {
    explicit Near(const Machine &machine)
        : NearCpus({machine.folder, [] { return mine; },
                    [](const std::vector<const std::byte *> &pages) {
                        ++asked;
                        std::vector<int> nodes(pages.size());
                        for (std::size_t i = 0; i < pages.size(); ++i) nodes[i] = on[i % on.size()];
                        return nodes;
                    }}) {
        asked = 0;
    }
};

std::span<const std::byte> pages(std::size_t count) {
    static const std::vector<std::byte> memory(64 * 4096 + 4096);
    return std::span(memory).first(count * 4096);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(lib_numa)

BOOST_AUTO_TEST_CASE(lists_of_processors) {
    BOOST_TEST((parse_cpu_list("0-3,8,10-11\n") == Cpus{0, 1, 2, 3, 8, 10, 11}));
    BOOST_TEST((parse_cpu_list("5") == Cpus{5}));
    BOOST_TEST((parse_cpu_list("\n") == Cpus{}));  // a node of memory alone
    for (const char *wrong :
         {"a", "1-", "-1", "3-1", "1,,2", ",", "2,1", "1-3,3", "99999999", "0-99999999", "1 2"})
        BOOST_TEST(!parse_cpu_list(wrong).has_value(), wrong);
}

BOOST_FIXTURE_TEST_CASE(nodes_are_read_from_the_system, TwoNodes) {
    add("node10", "64-65");
    add("node2", "");
    std::filesystem::create_directories(folder / "power");
    std::ofstream(folder / "online") << "0-2,10\n";
    auto nodes = read_numa_nodes(folder);
    BOOST_REQUIRE(nodes.size() == 3u);
    BOOST_TEST((nodes[0] == NumaNode{0, {0, 1, 4, 5}}));
    BOOST_TEST((nodes[1] == NumaNode{1, {2, 3, 6, 7}}));
    BOOST_TEST((nodes[2] == NumaNode{10, {64, 65}}));
    add("node3", "what");
    BOOST_TEST(read_numa_nodes(folder).empty());
    BOOST_TEST(read_numa_nodes(folder / "nowhere").empty());
}

BOOST_FIXTURE_TEST_CASE(never_outside_of_what_the_process_may_use, TwoNodes) {
    auto nodes = read_numa_nodes(folder);
    BOOST_TEST((cpus_on(nodes, 1, {0, 1, 2, 3, 4, 5, 6, 7}) == Cpus{2, 3, 6, 7}));
    BOOST_TEST((cpus_on(nodes, 1, {0, 3, 4, 7}) == Cpus{3, 7}));
    BOOST_TEST(cpus_on(nodes, 1, {0, 1}).empty(), "none there: they stay");
    BOOST_TEST(cpus_on(nodes, 1, {2, 3}).empty(), "all there: nothing changes");
    BOOST_TEST(cpus_on(nodes, 7, {2, 3}).empty());
    BOOST_TEST(cpus_on(nodes, 1, {}).empty());
}

BOOST_AUTO_TEST_CASE(memory_is_where_most_of_it_is) {
    auto node = [](std::vector<int> pages) { return most_of(pages); };
    BOOST_TEST((node({1, 1, 1, 0}) == 1u));
    BOOST_TEST((node({1, 1, -2, -2, 1}) == 1u));
    BOOST_TEST(!node({1, 0}).has_value());
    BOOST_TEST(!node({1, -2, -2}).has_value(), "most is not there yet");
    BOOST_TEST(!node({-1, -1}).has_value());
    BOOST_TEST(!node({}).has_value());
}

BOOST_FIXTURE_TEST_CASE(threads_go_where_the_memory_is, TwoNodes) {
    Near near(*this);
    mine = {0, 1, 2, 3};
    on = {-2};  // no pages yet
    BOOST_TEST(near.for_memory(pages(64)).empty());
    on = {1, 1, 1, 0};
    BOOST_TEST((near.for_memory(pages(64)) == Cpus{2, 3}));
    BOOST_TEST(asked == 2);
    on = {0};
    BOOST_TEST((near.for_memory(pages(64)) == Cpus{2, 3}));
    BOOST_TEST(asked == 2, "it stays where it is");
    // Slurm may bind the process anew.
    mine = {0, 2};
    BOOST_TEST((near.for_memory(pages(64)) == Cpus{2}));
    mine = {0, 1};
    BOOST_TEST(near.for_memory(pages(64)).empty());
    BOOST_TEST((near.for_memory(pages(8)).empty()));
    BOOST_TEST(asked == 3, "other memory");
}

BOOST_AUTO_TEST_CASE(one_node_is_looked_at_once) {
    Machine machine;
    machine.add("node0", "0-7");
    Near near(machine);
    mine = {0, 1, 2, 3};
    on = {0};
    BOOST_TEST(near.for_memory(pages(8)).empty());
    machine.add("node1", "8-15");
    BOOST_TEST(near.for_memory(pages(8)).empty());
    BOOST_TEST(asked == 0);
    Machine none;
    Near nothing(none);
    BOOST_TEST(nothing.for_memory(pages(8)).empty());
    BOOST_TEST(asked == 0);
}

BOOST_AUTO_TEST_CASE(only_the_other_threads_move) {
    Cpus all = own_cpus();
    BOOST_REQUIRE(!all.empty());
    Cpus one{all.back()};
    std::mutex mutex;
    std::map<pid_t, Cpus> seen;
    std::size_t there = 0;
    auto body = [&](std::uint64_t) {
        std::unique_lock lock(mutex);
        seen[::gettid()] = own_cpus();
        ++there;
        // Until all have come: one thread must not do everything.
        for (int i = 0; there < 3 && i < 5000; ++i) {
            lock.unlock();
            ::usleep(1000);
            lock.lock();
        }
    };
    parallel_for(
        3, 3, body, [] {}, one);
    BOOST_REQUIRE(seen.size() == 3u);
    std::size_t moved = 0;
    for (const auto &[thread, cpus] : seen) moved += cpus == one;
    BOOST_TEST(moved == (all.size() == 1 ? 3u : 1u), "one processor, one thread on it");
    BOOST_TEST((seen.at(::gettid()) == all), "the program's thread stays");
    BOOST_TEST((own_cpus() == all));
}

BOOST_AUTO_TEST_CASE(the_kernel_tells_where_a_page_is) {
    std::vector<std::byte> memory(3 * 4096, std::byte{1});
    std::vector<const std::byte *> touched{memory.data() + 4096};
    auto nodes = nodes_of_pages(touched);
    BOOST_REQUIRE(nodes.size() == 1u);
    BOOST_TEST_MESSAGE("node " << nodes[0]);
    BOOST_TEST(nodes[0] < 1024);  // negative where the kernel may not be asked
    BOOST_TEST((near_cpus().for_memory(memory).size() < std::max<std::size_t>(own_cpus().size(), 1)));
}

BOOST_AUTO_TEST_SUITE_END()
