// SPDX-License-Identifier: Apache-2.0
// How often a member takes the exit of a worker of its node.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Two nodes of two ranks each. Node 1 leads, node 0 is watched.
struct TwoRanks : TestGroup {
    TwoRanks() : TestGroup(two_ranks()) {
        start();
        BOOST_REQUIRE(leader() == 1u);
    }
    static GroupConfig two_ranks() {
        GroupConfig c = config(2, 2, 2);
        for (auto &node : c.nodes) node.ranks = 2;
        return c;
    }
    void exit(GenerationId generation, Rank rank, int status = SIGKILL) {
        feed(0, LocalExit{WorkerExit{generation, rank, status, 0, 1, false, ""}});
    }
    std::vector<Report> reports() const {
        std::vector<Report> found;
        for (const auto &sent : actions<SendMessage>(0))
            if (auto *report = std::get_if<Report>(&sent.message)) found.push_back(*report);
        return found;
    }
    /// Of node 0, in the world it is in.
    Rank first_rank() const { return Rank(world(0).nodes.front() == NodeIndex(0) ? 0 : 2); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_exit)

BOOST_AUTO_TEST_CASE(an_exit_is_taken_once_for_each_rank_and_generation) {
    TwoRanks g;
    GenerationId running = g.world(0).id;
    Rank first = g.first_rank(), second(first.value() + 1);
    g.cut(0);
    auto before = g.reports().size();
    g.exit(running, first);
    BOOST_TEST(g.reports().size() == before + 1);
    g.exit(running, first);
    g.exit(running, first, SIGSEGV);
    BOOST_TEST(g.reports().size() == before + 1, "nothing new is told");
    g.exit(running, second, SIGTERM);
    BOOST_REQUIRE(g.reports().size() == before + 2);
    auto exits = g.reports().back().report.exits;
    BOOST_REQUIRE(exits.size() == 2u);
    BOOST_TEST((exits[0].rank == first && exits[0].wait_status == SIGKILL));
    BOOST_TEST((exits[1].rank == second && exits[1].wait_status == SIGTERM));
}

BOOST_AUTO_TEST_CASE(an_exit_of_a_generation_that_does_not_run_is_not_taken) {
    TwoRanks g;
    GenerationId running = g.world(0).id;
    g.cut(0);
    auto before = g.reports().size();
    g.exit({running.term, running.number + 1}, g.first_rank());
    g.exit({running.term, running.number - 1}, g.first_rank());
    BOOST_TEST(g.reports().size() == before);
}

BOOST_AUTO_TEST_CASE(told_twice_it_costs_one_restart_and_counts_again_in_the_next_generation) {
    TwoRanks g;
    GenerationId running = g.world(0).id;
    g.exit(running, g.first_rank());
    g.exit(running, g.first_rank());
    g.feed(0, LocalStopped{running});
    g.feed(1, LocalStopped{running});
    g.run(6s);
    BOOST_REQUIRE(g.count<Publish>(0) == 2u);
    BOOST_TEST(g.world(0).restart_count == 1u);
    GenerationId next = g.world(0).id;
    g.exit(running, g.first_rank());
    g.run(6s);
    BOOST_TEST(g.count<Publish>(0) == 2u, "the old generation's exit came late");
    g.exit(next, g.first_rank());
    g.feed(0, LocalStopped{next});
    g.feed(1, LocalStopped{next});
    g.run(6s);
    BOOST_TEST(g.count<Publish>(0) == 3u);
    BOOST_TEST(g.world(0).restart_count == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
