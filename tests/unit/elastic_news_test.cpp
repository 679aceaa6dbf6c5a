// SPDX-License-Identifier: Apache-2.0
// What each node hears beside worlds: who was lost, which steps are safe, which are on storage, that all is
// over.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Three nodes of one rank, with a copy of each object; node 1 leads.
struct Fixture {
    explicit Fixture(std::uint32_t count = 3) : g(config(count)) {
        for (std::uint32_t i = 0; i < count; ++i) g.job_nodes.emplace_back(i);
        g.start();
        BOOST_REQUIRE(g.leader() == 1u);
    }
    static GroupConfig config(std::uint32_t count) {
        GroupConfig c = TestGroup::config(count, 2, count);
        c.copies = 1;
        return c;
    }
    CheckpointId id(std::uint64_t step) const { return {g.world(1).id, TrainStep(step)}; }
    /// On its own node, or on its partner.
    void seal(std::uint64_t step, bool copies) {
        World w = g.world(1);
        for (std::uint32_t r = 0; r < w.nodes.size(); ++r)
            g.feed((copies ? w.partners : w.nodes)[r].value(),
                   LocalSealed{Seal{TrainStep(step), Rank(r), 3, w.id}});
    }
    /// Not by the next heartbeat: at once.
    template <typename A>
    void expect_one(std::uint64_t step) const {
        for (std::uint32_t node : {0u, 1u, 2u}) {
            auto told = g.actions<A>(node);
            BOOST_REQUIRE_MESSAGE(told.size() == 1u, "node " << node << ": " << told.size());
            BOOST_TEST((told[0].id == id(step)));
        }
    }
    TestGroup g;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(news)

BOOST_AUTO_TEST_CASE(every_node_hears_which_rank_its_world_has_lost) {
    Fixture f;
    GenerationId of = f.g.world(1).id;
    f.g.fail(2, 2, SIGKILL, 7);
    for (std::uint32_t node : {0u, 1u, 2u}) {
        auto stop = f.g.actions<StopWorkers>(node).back();
        BOOST_TEST((stop.losses == Losses{of, {Rank(2)}, {}}));
        BOOST_TEST(stop.reason == "rank 2 on node 2 was killed by signal 9 (Killed)");
    }
    f.g.run(3s);
    of = f.g.world(1).id;
    f.g.fail(0, 0, SIGKILL, 7);
    BOOST_TEST((f.g.actions<StopWorkers>(2).back().losses == Losses{of, {Rank(0)}, {}}));
}

BOOST_AUTO_TEST_CASE(every_node_hears_which_nodes_its_world_has_lost) {
    Fixture f(4);
    GenerationId of = f.g.world(1).id;
    f.g.cut(3);
    f.g.run(4s);
    for (std::uint32_t node : {0u, 1u, 2u}) {
        auto stop = f.g.actions<StopWorkers>(node).back();
        BOOST_TEST((stop.losses == Losses{of, {}, nodes({3})}));
        BOOST_TEST(stop.reason == "node 3 lost");
    }
}

BOOST_AUTO_TEST_CASE(every_node_hears_once_that_a_step_is_safe) {
    Fixture f;
    f.seal(5, false);
    f.g.run(1s);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST(f.g.count<StepSafe>(node) == 0u);
    f.seal(5, true);
    f.g.run(250ms);  // single seals come with the next heartbeat's answer
    f.expect_one<StepSafe>(5);
    f.g.run(2s);
    f.expect_one<StepSafe>(5);
}

BOOST_AUTO_TEST_CASE(every_node_hears_once_that_a_step_is_on_storage) {
    for (std::uint32_t home : {0u, 1u}) {  // a follower, the leader
        Fixture f;
        f.g.feed(home, LocalDurable{f.id(5)});
        f.expect_one<StepDurable>(5);
        f.g.feed(home, LocalDurable{f.id(5)});
        f.g.feed(home, LocalDurable{f.id(4)});
        f.g.run(2s);
        f.expect_one<StepDurable>(5);
        for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST((f.g.view(node).durable == f.id(5)));
    }
}

BOOST_AUTO_TEST_CASE(what_is_on_storage_is_known_beyond_leaders_and_daemons) {
    Fixture f;
    CheckpointId id = f.id(5);
    GenerationId running = id.generation;
    f.g.feed(2, LocalDurable{id});
    f.g.crash(1);
    for (std::uint32_t node : {0u, 2u}) f.g.feed(node, PeerLink{NodeIndex(1), true});
    f.g.run(3s);
    f.g.boot(1);
    f.g.feed(1, LocalReady{true, running});
    f.g.run(2s);
    BOOST_REQUIRE((f.g.leader() == 2u || f.g.leader() == 0u));
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST((f.g.view(node).durable == id), "node " << node);
    BOOST_TEST(f.g.count<StepDurable>(0) == 1u);
    BOOST_TEST(f.g.count<StepDurable>(1) == 2u, "its daemon is a new one");
}

BOOST_AUTO_TEST_CASE(every_node_hears_once_that_the_jobs_time_is_nearly_over) {
    Fixture f;
    auto told = [&](std::size_t times) {
        for (std::uint32_t node : {0u, 1u, 2u})
            BOOST_TEST(f.g.count<JobEndsSoon>(node) == times, "node " << node);
    };
    f.g.feed(1, LocalJobEnd{});
    f.g.run(1s);
    f.g.feed(1, LocalJobEnd{f.g.now() + 125s});
    f.g.run(4s);
    told(0);
    f.g.run(3s);
    told(1);
    for (std::uint32_t node : {0u, 1u, 2u}) {
        auto in = f.g.actions<JobEndsSoon>(node).back().in;
        BOOST_TEST((in && *in <= 120s && *in > 119s));
    }
    f.g.feed(1, LocalJobEnd{f.g.now() + 100s});
    f.g.run(10s);
    told(1);
    f.g.feed(1, LocalJobEnd{f.g.now() + 3600s});  // somebody has given it more time
    f.g.run(1s);
    told(2);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST(!f.g.actions<JobEndsSoon>(node).back().in);
    f.g.feed(1, LocalJobEnd{f.g.now() + 5s});
    f.g.run(1s);
    told(3);
    f.g.run(10s);  // and it is past
    told(3);
}

BOOST_AUTO_TEST_CASE(the_next_leader_knows_the_jobs_end_from_slurm) {
    Fixture f;
    f.g.feed(1, LocalJobEnd{f.g.now() + 60s});
    f.g.run(1s);
    f.g.crash(1);
    for (std::uint32_t node : {0u, 2u}) f.g.feed(node, PeerLink{NodeIndex(1), true});
    f.g.run(5s);
    BOOST_REQUIRE((f.g.leader() == 0u || f.g.leader() == 2u));
    f.g.feed(f.g.leader(), LocalJobEnd{f.g.now() + 50s});
    f.g.run(1s);
    for (std::uint32_t node : {0u, 2u}) {
        auto told = f.g.actions<JobEndsSoon>(node);
        BOOST_REQUIRE(!told.empty());
        BOOST_TEST(told.back().in.has_value());
    }
}

/// It was cut off when it gave up. That all ranks have finished, or that Slurm has requeued the job, is true
/// whoever says it.
BOOST_AUTO_TEST_CASE(what_an_earlier_leader_gave_up_goes_on) {
    auto ended = [](int code, NextRun next_run) {
        TestGroup g(TestGroup::config(4, 2, 4));
        g.start();
        auto first = g.leader();
        Term term = g.view(first).term;
        g.slurm = SlurmAnswer::Result::unreachable;
        g.cut(first);
        g.run(10s);
        auto second = g.leader();
        BOOST_REQUIRE(second != first);
        Finish word{term, code, "given up", {}, next_run};
        for (std::uint32_t node : {0u, second}) g.feed(node, PeerMessage{NodeIndex(first), word});
        return std::pair(g.count<End>(0), g.count<End>(second));
    };
    BOOST_TEST((ended(1, NextRun::none) == std::pair(std::size_t{0}, std::size_t{0})));
    BOOST_TEST((ended(0, NextRun::none) == std::pair(std::size_t{1}, std::size_t{1})));
    BOOST_TEST((ended(1, NextRun::comes) == std::pair(std::size_t{1}, std::size_t{1})));
}

/// After a cut its side of the group would act while the other still does.
BOOST_AUTO_TEST_CASE(a_node_with_another_time_without_slurm_is_named_once) {
    TestGroup g(TestGroup::config(3, 2, 3));
    auto told = [&] {
        auto notes = g.actions<Note>(g.leader());
        return std::ranges::count_if(notes, [](const Note &n) {
            return n.text.find("node 2 has timing.without_slurm = 30.0 s, node") != std::string::npos;
        });
    };
    g.start();
    g.run(1s);
    BOOST_TEST(told() == 0);
    g.crash(2);
    g.without_slurm[2] = 30s;
    g.boot(2);
    g.feed(2, LocalReady{true, {}});
    g.run(3s);
    BOOST_TEST(told() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
