// SPDX-License-Identifier: Apache-2.0
// Whole flows of a group with a perfect network: start, failure, restore, the end.
#include <boost/test/unit_test.hpp>
#include <deque>

#include "elastic/member.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// N members; messages and stores are delivered at once, in order, time stands still unless told.
struct Group {
    explicit Group(std::uint32_t nodes, std::uint16_t ranks = 2, std::uint32_t max_restarts = 3) {
        for (std::uint32_t i = 0; i < nodes; ++i) {
            GroupConfig c;
            c.self = NodeIndex(i);
            c.nodes.assign(nodes, NodeSpec{ranks});
            c.batch_host = NodeIndex(0);
            c.min_nodes = c.max_nodes = nodes;
            c.max_restarts = max_restarts;
            members.emplace_back(c, std::nullopt, now);
        }
        seen.resize(nodes);
    }
    void feed(std::uint32_t node, const Input &input) {
        queue.emplace_back(node, input);
        while (!queue.empty()) {
            auto [n, in] = queue.front();
            queue.pop_front();
            for (auto &action : members[n].step(now, in)) take(n, action);
        }
    }
    void take(std::uint32_t node, const Action &action) {
        if (auto *m = std::get_if<SendMessage>(&action)) {
            queue.emplace_back(m->to.value(), PeerMessage{NodeIndex(node), m->message});
            for (NodeIndex to : m->also)
                queue.emplace_back(to.value(), PeerMessage{NodeIndex(node), m->message});
        }
        if (auto *s = std::get_if<Store>(&action))
            queue.emplace_back(node,
                               Stored{s->sequence, static_cast<std::uint16_t>(s->want_port ? 2000 : 0)});
        seen[node].push_back(action);
    }
    void run(Duration d) {
        for (Time end = now + d; now < end; now += 50ms)
            for (std::uint32_t i = 0; i < members.size(); ++i)
                if (members[i].next_deadline() <= now) feed(i, Tick{});
    }
    void start() {
        for (std::uint32_t i = 0; i < members.size(); ++i) feed(i, LocalReady{true, {}});
        run(3s);
    }
    template <typename A>
    std::vector<A> actions(std::uint32_t node) const {
        std::vector<A> found;
        for (const auto &a : seen[node])
            if (auto *wanted = std::get_if<A>(&a)) found.push_back(*wanted);
        return found;
    }
    World world(std::uint32_t node) const { return actions<Publish>(node).back().world; }
    void seal(std::uint32_t node, std::uint32_t rank, std::uint64_t step) {
        feed(node, LocalSealed{Seal{TrainStep(step), Rank(rank),
                                    static_cast<std::uint32_t>(members.size() * 2), world(node).id}});
    }
    void kill(std::uint32_t node, std::uint32_t rank, int status = 9, std::uint64_t signature = 0) {
        feed(node, LocalExit{WorkerExit{world(node).id, Rank(rank), status, 0, signature, false, ""}});
    }
    Time now{0};
    std::vector<Member> members;
    std::vector<std::vector<Action>> seen;
    std::deque<std::pair<std::uint32_t, Input>> queue;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(member_flow)

BOOST_AUTO_TEST_CASE(starts_once_everybody_is_ready) {
    for (std::uint32_t n : {1u, 2u, 4u}) {
        Group g(n);
        g.start();
        for (std::uint32_t i = 0; i < n; ++i) {
            BOOST_REQUIRE(g.actions<Publish>(i).size() == 1u);
            BOOST_TEST(g.world(i).nodes.size() == n);
            BOOST_TEST(g.world(i).master_port == 2000);
            BOOST_TEST(!g.world(i).restore_step.has_value());
        }
        if (n > 1) BOOST_TEST((*g.members[n - 1].view().leader == NodeIndex(1)));
    }
}

BOOST_AUTO_TEST_CASE(a_failure_restarts_all_from_the_newest_complete_step) {
    Group g(2);
    g.start();
    for (std::uint64_t step : {5u, 6u})
        for (std::uint32_t rank = 0; rank < 4; ++rank)
            if (!(step == 6 && rank == 3)) g.seal(rank / 2, rank, step);
    g.kill(0, 1);
    for (std::uint32_t i = 0; i < 2; ++i) {
        BOOST_TEST(g.actions<Publish>(i).size() == 2u);
        BOOST_TEST((g.world(i).restore_step == TrainStep(5)));
        BOOST_TEST(g.actions<StopWorkers>(i).size() == 2u);  // the first is of generation 0
    }
}

BOOST_AUTO_TEST_CASE(hopeless_programs_get_two_restarts) {
    Group g(2);
    g.start();
    for (int i = 0; i < 3; ++i) g.kill(0, 0, 3 << 8, 42);
    g.run(1s);  // the first cause is awaited
    BOOST_TEST(g.actions<Publish>(1).size() == 3u);
    for (std::uint32_t i = 0; i < 2; ++i) {
        BOOST_REQUIRE(g.actions<End>(i).size() == 1u);
        BOOST_TEST(g.actions<End>(i)[0].exit_code == 3);
    }
}

BOOST_AUTO_TEST_CASE(the_budget_counts_restarts_without_a_new_complete_step) {
    Group g(1, 1, 2);
    g.start();
    std::uint64_t signature = 0;
    for (std::uint64_t step = 1; step <= 5; ++step) {
        g.feed(0, LocalSealed{Seal{TrainStep(step), Rank(0), 1, g.world(0).id}});
        g.kill(0, 0, 9, ++signature);
    }
    BOOST_TEST(g.actions<End>(0).empty());
    for (int i = 0; i < 2; ++i) g.kill(0, 0, 9, ++signature);
    g.run(1s);
    BOOST_REQUIRE(g.actions<End>(0).size() == 1u);
    BOOST_TEST(g.actions<End>(0)[0].exit_code == 137);
}

BOOST_AUTO_TEST_CASE(ends_with_zero_when_all_ranks_finished) {
    Group g(2);
    g.start();
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        BOOST_TEST(g.actions<End>(0).empty());
        g.feed(rank / 2, LocalFinished{g.world(0).id, Rank(rank)});
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
        BOOST_REQUIRE(g.actions<End>(i).size() == 1u);
        BOOST_TEST(g.actions<End>(i)[0].exit_code == 0);
    }
}

BOOST_AUTO_TEST_SUITE_END()
