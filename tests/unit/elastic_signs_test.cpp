// SPDX-License-Identifier: Apache-2.0
// What it takes to call a node lost: silence, and a second sign.
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Node 3 is silent from now on; how long until Slurm is asked to take it out. after: its link breaks then.
Duration time_to_verdict(std::optional<Duration> after) {
    TestGroup g(TestGroup::config(4, 2, 3));
    g.start();
    g.run(2s);
    auto leader = g.leader();
    g.cut(3);
    Time began = g.now();
    while (g.count_asked(AskSlurm::What::shrink_to) == 0 && g.now() - began < 20s) {
        if (after && g.now() - began >= *after)
            g.feed(leader, PeerLink{NodeIndex(3), true}), after.reset();
        else
            g.run(10ms);
    }
    return g.now() - began;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_signs)

/// Silence for a limit and a broken link, or silence for 1.6 limits. What was on its way when it began is a
/// heartbeat.
BOOST_AUTO_TEST_CASE(a_silent_node_is_lost_by_two_signs) {
    Timings t;
    Duration slack = t.heartbeat + 50ms, limit = t.leader_silence, alone = limit * 8 / 5;
    Duration whole = time_to_verdict({}), broken = time_to_verdict(limit * 3 / 4),
             late = time_to_verdict(limit * 5 / 4);
    BOOST_TEST((whole >= alone - slack && whole <= alone + slack), "the link stands: " << whole.count());
    BOOST_TEST((broken >= limit - slack && broken <= limit + slack), "broken before: " << broken.count());
    BOOST_TEST((late >= limit * 5 / 4 && late <= limit * 5 / 4 + slack), "broken after: " << late.count());
}

/// The leader's link to node 3 does not carry anything any more, the others' links do.
struct CutFromLeader {
    explicit CutFromLeader(std::uint32_t nodes) : g(TestGroup::config(nodes, 2, nodes - 1)) {
        g.start();
        g.run(2s);
        leader = g.leader();
        g.cut(leader, 3);
        began = g.now();
    }
    void run_until_asked() {
        while (g.count_asked(AskSlurm::What::shrink_to) == 0 && g.now() - began < 20s) g.run(10ms);
    }
    std::string said() const {
        for (const Note &n : g.actions<Note>(leader))
            if (n.text.starts_with("node 3 gone")) return n.text;
        return "";
    }
    TestGroup g;
    std::uint32_t leader = 0;
    Time began{0};
};

BOOST_AUTO_TEST_CASE(a_node_that_others_reach_gets_longer) {
    CutFromLeader t(5);
    Duration limit = Timings().leader_silence;
    t.run_until_asked();
    Duration took = t.g.now() - t.began;
    BOOST_TEST((took >= limit * 16 / 5 && took <= limit * 37 / 10), took.count());
    BOOST_TEST(t.said().ends_with(
                   " reaches node 3, this node does not): Slurm is asked to take them out of the job"),
               t.said());
}

/// Found on the virtual cluster: the node that is cut off stood, deposed its leader, and was then cut off
/// from that one.
BOOST_AUTO_TEST_CASE(who_is_cut_off_from_the_leader_alone_does_not_stand) {
    for (std::uint32_t node : {0u, 1u, 2u, 3u, 4u}) {
        TestGroup g(TestGroup::config(5, 2, 4));
        g.start();
        g.run(2s);
        std::uint32_t leader = g.leader();
        if (node == leader) continue;
        Term term = g.view(leader).term;
        g.cut(leader, node);
        g.run(3s);
        BOOST_TEST((g.view(leader).leader == NodeIndex(leader)), node);
        for (std::uint32_t other = 0; other < 5; ++other) BOOST_TEST((g.view(other).term == term), other);
        g.heal();
        g.run(5s);
        BOOST_TEST((g.view(leader).term == term), node);
        BOOST_TEST(g.asked.empty(), node);
    }
}

BOOST_AUTO_TEST_CASE(a_link_that_is_whole_again_in_time_costs_no_node) {
    CutFromLeader t(5);
    t.g.run(3s);
    BOOST_TEST(t.g.count_asked(AskSlurm::What::shrink_to) == 0u);
    t.g.heal();
    t.g.run(10s);
    BOOST_TEST(t.g.count_asked(AskSlurm::What::shrink_to) == 0u);
    BOOST_TEST(t.g.count<Publish>(t.leader) == 1u);
}

/// First from the leader, then from all: what was said before counts no more.
BOOST_AUTO_TEST_CASE(who_is_reached_no_more_is_lost_as_ever) {
    CutFromLeader t(5);
    t.g.run(1s);
    t.g.cut(3);
    t.run_until_asked();
    Duration took = t.g.now() - t.began, limit = Timings().leader_silence;
    BOOST_TEST((took >= limit * 7 / 5 && took <= limit * 2), took.count());
    BOOST_TEST(t.said().starts_with("node 3 gone (nor do node 4, node 0"), t.said());
    BOOST_TEST(t.said().find(" say that it answers them): Slurm") != std::string::npos, t.said());
}

/// Found by the simulator: it was not asked about, since it had never answered this leader.
BOOST_AUTO_TEST_CASE(a_node_that_a_new_leader_has_never_heard_gets_longer_too) {
    TestGroup g(TestGroup::config(5, 2, 5));
    g.job_nodes = nodes({0, 1, 2, 3, 4});
    g.start();
    g.run(2s);
    std::uint32_t first = g.leader();
    BOOST_REQUIRE((first == 1u && g.world(first).nodes.size() == 5u));
    g.cut(2, 4);
    g.crash(first);
    while (g.leader() >= 5) g.run(20ms);
    BOOST_REQUIRE(g.leader() == 2u);
    Time began = g.now();
    auto asked_for_4 = [&] {
        return std::ranges::any_of(g.asked, [](const AskSlurm &a) {
            return a.what == AskSlurm::What::shrink_to && !contains(a.nodes, NodeIndex(4));
        });
    };
    while (!asked_for_4() && g.now() - began < 20s) g.run(20ms);
    Duration took = g.now() - began, limit = Timings().leader_silence;
    BOOST_TEST((took >= limit * 16 / 5 && took <= limit * 37 / 10), took.count());
    BOOST_TEST((g.view(2).leader == NodeIndex(2)));
}

BOOST_AUTO_TEST_CASE(a_word_for_an_earlier_leader_counts_for_nothing) {
    CutFromLeader t(5);
    t.g.cut(3);
    Term old(t.g.view(t.leader).term.value() - 1);
    while (t.g.count_asked(AskSlurm::What::shrink_to) == 0 && t.g.now() - t.began < 20s) {
        t.g.feed(t.leader, PeerMessage{NodeIndex(4), Reached{old, NodeIndex(3), NodeIndex(t.leader)}});
        t.g.run(20ms);
    }
    BOOST_TEST((t.g.now() - t.began <= Timings().leader_silence * 2));
}

BOOST_AUTO_TEST_CASE(who_is_no_leader_or_knows_no_such_node_passes_on_nothing) {
    TestGroup g(TestGroup::config(4, 2, 3));
    g.start();
    std::uint32_t other = (g.leader() + 1) % 4;
    auto said = [&] { return g.count<SendMessage>(other); };
    std::size_t before = said();
    Term term = g.view(other).term;
    for (NodeIndex node : {NodeIndex(77), NodeIndex(max_table - 1)}) {
        g.feed(other, PeerMessage{NodeIndex((other + 1) % 4), Reach{term, node, NodeIndex((other + 1) % 4)}});
        g.feed(other, PeerMessage{NodeIndex((other + 1) % 4), Reached{term, node, NodeIndex(other)}});
        g.feed(other,
               PeerMessage{NodeIndex((other + 1) % 4), Reached{term, NodeIndex((other + 1) % 4), node}});
    }
    // Passed on once only: from who asks.
    g.feed(other, PeerMessage{NodeIndex((other + 1) % 4),
                              Reach{term, NodeIndex((other + 2) % 4), NodeIndex((other + 3) % 4)}});
    BOOST_TEST(said() == before);
}

/// Its daemon fell, it may be: the node's agents have their lease.
BOOST_AUTO_TEST_CASE(a_link_that_breaks_at_once_is_no_second_sign) {
    Timings t;
    Duration took = time_to_verdict(t.leader_silence / 4);
    BOOST_TEST((took >= t.agent_lease - t.heartbeat && took <= t.agent_lease + 1s), took.count());
}

BOOST_AUTO_TEST_CASE(a_broken_link_alone_is_no_verdict) {
    TestGroup g(TestGroup::config(4, 2, 3));
    g.start();
    g.run(2s);
    g.feed(g.leader(), PeerLink{NodeIndex(3), true});
    g.run(10s);
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 0u);
}

/// In a large group on a bad network there is always a node that may be lost in a moment. Here three in turn
/// are silent, for less than it takes.
BOOST_AUTO_TEST_CASE(a_lost_node_does_not_wait_for_one_doubt_after_the_other) {
    Timings t;
    TestGroup g(TestGroup::config(9, 2, 9));
    g.start();
    g.run(2s);
    const Duration period = t.leader_silence * 3 / 2, quiet = period - t.heartbeat - 60ms;
    const Time began = g.now();
    auto is_quiet = [&](int i) {
        Duration since = g.now() - began - i * (period / 3);
        return since >= Duration(0) && since % period < quiet;
    };
    auto step = [&] {
        for (int i = 0; i < 3; ++i) is_quiet(i) ? g.cut(5 + i) : g.heal(5 + i);
        g.run(20ms);
    };
    while (g.now() - began < period * 2) step();
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 0u);
    g.cut(4);
    Time lost = g.now();
    while (g.count_asked(AskSlurm::What::shrink_to) == 0 && g.now() - lost < 20s) step();
    Duration took = g.now() - lost;
    BOOST_TEST((took >= t.leader_silence * 13 / 5 - t.heartbeat - 50ms), took.count());
    BOOST_TEST((took <= t.leader_silence * 13 / 5 + t.heartbeat + 50ms), took.count());
}

BOOST_AUTO_TEST_SUITE_END()
