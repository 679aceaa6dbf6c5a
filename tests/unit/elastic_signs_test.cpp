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
