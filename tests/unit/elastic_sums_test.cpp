// SPDX-License-Identifier: Apache-2.0
// Steps and time of a group are added up once, whoever leads and whatever daemon falls.
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Rank 0 on its node takes `steps` steps of 20 ms, each of them heard of.
struct Training {
    TestGroup &group;
    std::uint64_t done = 0;

    void step(std::uint64_t steps) {
        for (std::uint64_t i = 0; i < steps; ++i) {
            skip(1);
            tell();
        }
    }
    /// Nobody hears of these.
    void skip(std::uint64_t steps) {
        done += steps;
        group.run(20ms * static_cast<int>(steps));
    }
    void tell() {
        RankProgress p;
        p.rank = Rank(0);
        p.step = TrainStep(done - 1);
        p.steps_done = done;
        p.save_sum = 1ms * static_cast<int>(done);
        p.saves_skipped = done / 10;
        p.since_first_step = 1h;  // more than has passed: no waiting for the first one is counted
        group.feed(0, LocalProgress{{p}});
    }
};

GroupConfig config(std::uint32_t size) {
    auto c = TestGroup::config(size, size, size);
    c.batch_host.reset();
    return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_sums)

BOOST_AUTO_TEST_CASE(a_restarted_daemon_goes_on_adding_up) {
    TestGroup g(config(1));
    g.job_nodes = {NodeIndex(0)};
    g.start();
    GenerationId running = g.world(0).id;
    Training training{g};
    training.step(100);
    g.run(200ms);
    BOOST_TEST(g.view(0).goodput.steps == 100u);
    Duration wall = g.view(0).goodput.wall;
    g.crash(0);
    training.skip(50);
    g.boot(0);
    g.feed(0, LocalReady{true, running});
    g.run(6s);
    training.tell();
    training.step(50);
    g.feed(0, LocalFinished{running, Rank(0)});
    BOOST_TEST_REQUIRE(g.count<End>(0) == 1u);
    Goodput sums = g.actions<End>(0).front().goodput;
    BOOST_TEST(sums.steps == 200u);
    BOOST_TEST(sums.steps_repeated == 0u);
    BOOST_TEST(sums.checkpoints_skipped == 20u);
    BOOST_TEST((sums.save == 200ms));
    BOOST_TEST((sums.recovery == 0ms));
    BOOST_TEST((sums.wall >= wall + 8s - 200ms && sums.wall <= wall + 8s + 200ms));
}

BOOST_AUTO_TEST_CASE(a_new_leader_goes_on_adding_up) {
    TestGroup g(config(4));
    g.job_nodes = {NodeIndex(0), NodeIndex(1), NodeIndex(2), NodeIndex(3)};
    g.start();
    GenerationId running = g.world(0).id;
    Training training{g};
    training.step(60);
    g.run(200ms);
    std::uint32_t former = g.leader();
    g.crash(former);
    training.skip(20);
    g.boot(former);
    g.feed(former, LocalReady{true, running});
    g.run(6s);
    BOOST_TEST_REQUIRE(g.leader() < 4u);
    training.tell();
    training.step(20);
    for (std::uint32_t i = 0; i < 4; ++i) g.feed(i, LocalFinished{running, Rank(i)});
    g.run(1s);
    Goodput sums = g.actions<End>(0).front().goodput;
    BOOST_TEST(sums.steps == 100u);
    BOOST_TEST((sums.save == 100ms));
    BOOST_TEST((sums.recovery == 0ms));
}

/// The next daemon never sees the progress of the generation that it found.
BOOST_AUTO_TEST_CASE(steps_that_only_a_checkpoint_proves_count) {
    TestGroup g(config(1));
    g.job_nodes = {NodeIndex(0)};
    g.start();
    GenerationId running = g.world(0).id;
    Training training{g};
    training.step(50);
    g.run(200ms);
    g.crash(0);
    training.skip(50);
    g.boot(0);
    g.feed(0, LocalObjects{{Seal{TrainStep(79), Rank(0), 1, running}}});
    g.feed(0, LocalReady{true, running});
    g.run(6s);
    g.fail(0, 0, 9, 1);
    g.run(1s);
    BOOST_TEST((g.world(0).restore_step == TrainStep(79)));
    g.run(200ms);
    BOOST_TEST(g.view(0).goodput.steps == 80u);
    RankProgress p;  // of the new worker
    p.rank = Rank(0);
    p.step = TrainStep(99);
    p.steps_done = 20;
    p.since_first_step = 1h;
    g.feed(0, LocalProgress{{p}});
    g.run(200ms);
    BOOST_TEST(g.view(0).goodput.steps == 100u);
}

BOOST_AUTO_TEST_CASE(restarts_before_a_fall_are_not_forgotten) {
    TestGroup g(config(1));
    g.job_nodes = {NodeIndex(0)};
    g.start();
    Training training{g};
    training.step(10);
    g.fail(0, 0, 9, 1);
    g.run(1s);
    GenerationId running = g.world(0).id;
    g.crash(0);
    g.boot(0);
    g.feed(0, LocalReady{true, running});
    g.run(6s);
    BOOST_TEST(g.view(0).goodput.restarts == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
