// SPDX-License-Identifier: Apache-2.0
// Groups so large that their leader does not look at all nodes with each word of one
// (GroupConfig::look_pause).
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "elastic/large_group.h"
#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

GroupConfig of_size(std::uint32_t nodes) {
    GroupConfig c;
    c.nodes.assign(nodes, NodeSpec{1});
    suit_size(c);
    return c;
}

/// Four nodes of one rank and a spare, with a copy of each object, as in a group of thousands; node 1 leads.
struct Fixture {
    Fixture() : g(config()) {
        for (std::uint32_t i = 0; i < 5; ++i) g.job_nodes.emplace_back(i);
        g.start();
        BOOST_REQUIRE(g.leader() == 1u);
    }
    static GroupConfig config() {
        GroupConfig c = TestGroup::config(5, 2, 4);
        c.copies = 1;
        c.look_pause = 20ms;
        return c;
    }
    void seal(std::uint64_t step) {
        World w = g.world(1);
        for (std::uint32_t r = 0; r < w.nodes.size(); ++r)
            for (NodeIndex node : {w.nodes[r], w.partners[r]})
                g.feed(node.value(), LocalSealed{Seal{TrainStep(step), Rank(r), 4, w.id}});
    }
    std::optional<Rank> rank_at(NodeIndex node) {
        World w = g.world(1);
        auto at = std::ranges::find(w.nodes, node);
        return at == w.nodes.end() ? std::nullopt : std::optional(Rank(at - w.nodes.begin()));
    }
    TestGroup g;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(large)

BOOST_AUTO_TEST_CASE(small_groups_have_the_timings_that_are_set) {
    Timings set;
    for (std::uint32_t nodes : {2u, 512u, 5000u}) {
        GroupConfig c = of_size(nodes);
        BOOST_TEST((c.timings.heartbeat == set.heartbeat));
        BOOST_TEST((c.timings.leader_silence == set.leader_silence));
        BOOST_TEST((c.timings.election == set.election));
        BOOST_TEST((c.look_pause > Duration(0)) == (nodes > 512));
    }
}

BOOST_AUTO_TEST_CASE(what_waits_for_heartbeats_grows_with_thousands_of_nodes) {
    for (std::uint32_t nodes : {6000u, 10000u, max_table}) {
        GroupConfig c = of_size(nodes);
        const Timings &t = c.timings;
        BOOST_TEST((t.heartbeat >= heartbeat_each * 6000));
        BOOST_TEST((t.leader_silence >= 4 * t.heartbeat));
        BOOST_TEST((t.election > t.leader_silence));
        BOOST_TEST((t.agent_lease > t.leader_silence));
        BOOST_TEST((t.fence_wait > t.leader_silence));
    }
}

/// Members that learn of nodes that have joined at different times wait equally long for each other.
BOOST_AUTO_TEST_CASE(nodes_that_join_change_no_timing) {
    GroupConfig c;
    c.nodes.assign(9000, NodeSpec{1});
    c.step_nodes = 8000;
    suit_size(c);
    BOOST_TEST((c.timings.heartbeat == of_size(8000).timings.heartbeat));
}

BOOST_AUTO_TEST_CASE(what_all_have_sealed_is_complete_and_safe_a_moment_later) {
    Fixture f;
    f.seal(5);
    BOOST_TEST(f.g.count<StepComplete>(1) == 0u, "not with the last word");
    f.g.run(100ms);
    for (std::uint32_t node : {0u, 1u, 2u, 3u}) {
        BOOST_TEST_REQUIRE(f.g.count<StepComplete>(node) == 1u);
        BOOST_TEST_REQUIRE(f.g.count<StepSafe>(node) == 1u);
        BOOST_TEST((f.g.actions<StepSafe>(node)[0].id == CheckpointId{f.g.world(1).id, TrainStep(5)}));
    }
}

/// What a node has dropped is looked at with its word, not a moment later.
BOOST_AUTO_TEST_CASE(a_step_of_which_a_part_is_damaged_is_not_called_safe_any_longer) {
    Fixture f;
    f.seal(5);
    f.g.run(1s);
    BOOST_TEST_REQUIRE(f.g.view(1).safe.has_value());
    World w = f.g.world(1);
    CheckpointId id{w.id, TrainStep(5)};
    f.g.feed(1, LocalDamaged{{id, *f.rank_at(NodeIndex(1))}});
    BOOST_TEST(!f.g.view(1).safe.has_value());
}

BOOST_AUTO_TEST_CASE(a_process_that_ends_and_a_node_that_is_lost) {
    Fixture f;
    f.seal(5);
    f.g.run(1s);
    GenerationId before = f.g.world(1).id;
    f.g.fail(2, 2, SIGKILL, 7);
    f.g.run(200ms);
    BOOST_TEST((f.g.world(3).id > before));
    BOOST_TEST((f.g.world(3).restore_step == TrainStep(5)));
    f.g.run(2s);
    f.g.cut(3);
    f.g.run(3s);
    BOOST_TEST((f.g.world(1).nodes == nodes({0, 1, 2, 4})));
    BOOST_TEST((f.g.world(4).restore_step == TrainStep(5)));
}

BOOST_AUTO_TEST_CASE(the_next_leader_is_elected_and_goes_on) {
    Fixture f;
    f.seal(5);
    f.g.run(1s);
    f.g.cut(1);
    f.g.run(5s);
    BOOST_TEST(f.g.view(2).leader.has_value());
    BOOST_TEST((f.g.view(2).leader == NodeIndex(2)));
    BOOST_TEST((f.g.world(2).restore_step == TrainStep(5)));
    BOOST_TEST(!contains(f.g.world(2).nodes, NodeIndex(1)));
}

/// The first heartbeat after a Commit does not repeat the world; whoever has missed it hears it with the
/// next.
BOOST_AUTO_TEST_CASE(a_commit_that_was_lost_is_made_good) {
    Fixture f;
    f.seal(5);
    f.g.run(1s);
    auto worlds_told = [&] {
        std::size_t count = 0;
        for (const auto &sent : f.g.actions<SendMessage>(1))
            if (auto *h = std::get_if<Heartbeat>(&sent.message); h && sent.to == NodeIndex(3))
                count += h->world.has_value();
        return count;
    };
    std::size_t before = worlds_told();
    f.g.fail(2, 2, SIGKILL, 7);
    f.g.run(1s);
    BOOST_TEST(worlds_told() == before, "nobody lacked it");
    f.g.crash(3);
    f.g.boot(3);
    f.g.feed(1, PeerLink{NodeIndex(3), true});
    f.g.feed(1, PeerLink{NodeIndex(3), false});
    f.g.feed(3, LocalReady{true, {}});
    f.g.run(1s);
    BOOST_TEST(worlds_told() > before, "its workers do not run it");
}

/// Forty nodes in a row are lost, the leader among them: within the agents' lease another one leads.
BOOST_AUTO_TEST_CASE(a_rack_is_lost_with_the_leader) {
    GroupConfig c = TestGroup::config(100, 10, 100);
    c.batch_host = NodeIndex(99);
    TestGroup g(c);
    for (std::uint32_t i = 0; i < 100; ++i) g.job_nodes.emplace_back(i);
    g.start();
    BOOST_REQUIRE(g.leader() == 0u);
    for (std::uint32_t i = 0; i < 40; ++i) g.cut(i);
    g.run(c.timings.agent_lease);
    BOOST_TEST((g.view(70).leader == NodeIndex(40)));
    g.run(3s);
    BOOST_TEST(g.world(70).nodes.size() == 60u);
}

BOOST_AUTO_TEST_SUITE_END()
