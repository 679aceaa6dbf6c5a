// SPDX-License-Identifier: Apache-2.0
// Daemons that fall and come back, what they had on record or not.
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// The daemon falls, and its agents come back to the next one with their running workers.
void restart_daemon(TestGroup &g, std::uint32_t node, GenerationId running) {
    g.crash(node);
    g.run(400ms);
    g.boot(node);
    g.feed(node, LocalReady{false, {}});
    g.run(100ms);
    g.feed(node, LocalReady{true, running});
    g.run(6s);
}

/// Node 2's daemon falls with the record of a world that its agents know already; the world.
World lose_record(TestGroup &g) {
    World w = g.world(2);
    ++w.id.number;
    g.cut(2);
    g.feed(2, PeerMessage{NodeIndex(1), Prepare{w.id.term, w.id, w.nodes, {}, "a test"}});
    g.crash(2);
    g.boot(2);
    return w;
}

/// The leader's word of that world; what node 2 answers.
NodeReport hear_world(TestGroup &g, const World &w) {
    Heartbeat h;
    h.term = w.id.term;
    h.acting = true;
    h.sequence = 1;
    g.feed(2, PeerMessage{NodeIndex(1), h});
    h.acked = 1;
    h.sequence = 2;
    h.world = w;
    g.feed(2, PeerMessage{NodeIndex(1), h});
    BOOST_REQUIRE((g.world(2).id == w.id || g.view(2).generation == w.id));
    auto sent = g.actions<SendMessage>(2);
    auto *reply = std::get_if<HeartbeatReply>(&sent.back().message);
    BOOST_REQUIRE(reply != nullptr);
    return reply->report;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_daemon)

BOOST_AUTO_TEST_CASE(a_restarted_daemon_does_not_restart_the_world) {
    for (std::uint32_t size : {1u, 2u, 4u})
        for (std::uint32_t node = 0; node < size; ++node) {
            TestGroup g(TestGroup::config(size, size, size));
            g.job_nodes = nodes({0, 1, 2, 3});
            g.start();
            GenerationId running = g.world(node).id;
            restart_daemon(g, node, running);
            for (std::uint32_t i = 0; i < size; ++i) {
                BOOST_TEST(g.count<Publish>(i) == 1u, "node " << node << " of " << size);
                BOOST_TEST((g.view(i).generation == running));
            }
            g.fail(node, node, 9, 1);
            BOOST_TEST(g.count<Publish>(node) == 2u, "node " << node << " of " << size);
            BOOST_TEST(g.count<End>(node) == 0u);
        }
}

BOOST_AUTO_TEST_CASE(a_worker_that_died_while_the_daemon_was_down_is_noticed) {
    TestGroup g(TestGroup::config(2, 2, 2));
    g.job_nodes = nodes({0, 1});
    g.start();
    restart_daemon(g, 0, {});
    BOOST_TEST(g.count<Publish>(1) == 2u);
    BOOST_TEST(g.count<Publish>(0) == 2u);
}

BOOST_AUTO_TEST_CASE(a_daemon_that_fell_gets_the_time_to_come_back) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    GenerationId running = g.world(1).id;
    g.crash(3);
    g.feed(1, PeerLink{NodeIndex(3), true});
    g.run(4s);
    BOOST_TEST(g.asked.empty());
    g.boot(3);
    g.feed(1, PeerLink{NodeIndex(3), false});
    g.feed(3, LocalReady{true, running});
    g.run(4s);
    BOOST_TEST(g.asked.empty());
    BOOST_TEST(g.count<Publish>(1) == 1u);
    g.crash(3);
    g.feed(1, PeerLink{NodeIndex(3), true});
    g.run(7s);
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u);
}

/// Found by kills at full speed: until the next heartbeat nothing that the reborn node seals counts, and all
/// saves are skipped.
BOOST_AUTO_TEST_CASE(a_daemon_that_is_back_is_counted_on_with_its_link) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.start();
    std::uint32_t leader = g.leader(), other = (leader + 1) % 3;
    GenerationId running = g.world(other).id;
    g.crash(other);
    g.boot(other);
    g.feed(other, LocalReady{true, running});
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
        std::uint32_t node = g.world(leader).nodes[rank].value();
        if (node == other) g.feed(leader, PeerLink{NodeIndex(other), false});
        g.feed(node, LocalSealed{Seal{TrainStep(5), Rank(rank), 3, running}});
    }
    BOOST_TEST((g.actions<StepComplete>(leader).size() == 1u));
}

/// Its agents know that world, and begin it no more.
BOOST_AUTO_TEST_CASE(an_end_in_a_world_of_which_the_record_was_lost_is_told) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.start();
    World w = lose_record(g);
    g.feed(2, LocalReady{true, {}});
    g.feed(2, LocalExit{WorkerExit{w.id, Rank(2), 9, 0, 5, false, ""}});
    BOOST_TEST(hear_world(g, w).exits.size() == 1u);
}

/// Its ranks run in that world already: what they fetch from other nodes counts.
BOOST_AUTO_TEST_CASE(what_ranks_fetch_in_a_world_of_which_the_record_was_lost_is_told) {
    for (bool runs : {true, false}) {
        TestGroup g(TestGroup::config(3, 3, 3));
        g.start();
        GenerationId before = g.world(2).id;
        World w = lose_record(g);
        w.restore_step = TrainStep(5);
        w.restore_generation = before;
        g.feed(2, LocalReady{true, runs ? w.id : GenerationId{}});
        g.feed(2, LocalSealed{Seal{TrainStep(5), Rank(0), 3, before}});
        g.feed(2, LocalParity{Parity{{before, TrainStep(5)}, 3, 0, {Rank(0), Rank(1)}}});
        NodeReport told = hear_world(g, w);
        BOOST_TEST(told.seals.size() == (runs ? 1u : 0u));
        BOOST_TEST(told.parities.size() == (runs ? 1u : 0u));
    }
}

BOOST_AUTO_TEST_SUITE_END()
