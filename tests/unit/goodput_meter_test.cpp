// SPDX-License-Identifier: Apache-2.0
#include "elastic/goodput_meter.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

RankProgress progress(std::uint64_t last, std::uint64_t done, Duration since_first, Duration save = 0s) {
    RankProgress p;
    p.step = TrainStep(last);
    p.steps_done = done;
    p.since_first_step = since_first;
    p.save_sum = save;
    return p;
}

Duration named(const Goodput &g) {
    return g.productive + g.startup + g.lost_steps + g.recovery + g.save + g.other;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(goodput_meter)

BOOST_AUTO_TEST_CASE(an_undisturbed_run_is_startup_and_steps) {
    GoodputMeter m(0s, {});
    m.begin_generation(1s, std::nullopt);
    m.on_progress(12s, progress(9, 10, 10s, 1s));
    Goodput g = m.snapshot(12s, true);
    BOOST_TEST((g.startup == 2s));
    BOOST_TEST((g.productive == 9s));
    BOOST_TEST((g.save == 1s));
    BOOST_TEST(g.steps == 10u);
    BOOST_TEST((named(g) == g.wall));
}

BOOST_AUTO_TEST_CASE(a_failure_costs_recovery_and_the_steps_after_the_checkpoint) {
    GoodputMeter m(0s, {});
    m.begin_generation(0s, std::nullopt);
    m.on_progress(12s, progress(9, 10, 10s));  // first step at 2 s
    m.fail(12s);
    m.begin_generation(12s, TrainStep(7));  // steps 8 and 9 are done again
    m.on_restart();
    m.on_progress(20s, progress(11, 4, 3s));  // first step at 17 s
    Goodput g = m.snapshot(20s, true);
    BOOST_TEST((g.startup == 2s));
    BOOST_TEST((g.recovery == 5s));
    BOOST_TEST((g.lost_steps == 2s));
    BOOST_TEST((g.productive == 11s));
    BOOST_TEST(g.steps == 12u);
    BOOST_TEST(g.steps_repeated == 2u);
    BOOST_TEST(g.restarts == 1u);
    BOOST_TEST((named(g) == g.wall));
}

BOOST_AUTO_TEST_CASE(without_a_checkpoint_everything_is_lost) {
    GoodputMeter m(0s, {});
    m.begin_generation(0s, std::nullopt);
    m.on_progress(10s, progress(9, 10, 9s));
    m.fail(10s);
    m.begin_generation(10s, std::nullopt);
    Goodput g = m.snapshot(11s, false);
    BOOST_TEST((g.productive == 0s));
    BOOST_TEST((g.lost_steps == 9s));
    BOOST_TEST((g.recovery == 1s));
    BOOST_TEST(g.steps_repeated == 10u);
}

BOOST_AUTO_TEST_CASE(a_checkpoint_proves_steps_that_were_not_seen) {
    GoodputMeter m(0s, {});
    m.begin_generation(0s, std::nullopt);
    m.on_progress(5s, progress(9, 10, 5s));
    m.fail(6s);
    m.begin_generation(6s, TrainStep(14));
    BOOST_TEST(m.snapshot(6s, false).steps == 15u);
    BOOST_TEST(m.snapshot(6s, false).steps_repeated == 0u);
}

BOOST_AUTO_TEST_CASE(failing_again_before_a_step_goes_on_recovering) {
    GoodputMeter m(0s, {});
    m.begin_generation(0s, std::nullopt);
    m.on_progress(2s, progress(0, 1, 1s));
    m.fail(2s);
    m.begin_generation(2s, TrainStep(0));
    m.fail(4s);
    m.begin_generation(4s, TrainStep(0));
    BOOST_TEST((m.snapshot(7s, false).recovery == 5s));
}

BOOST_AUTO_TEST_CASE(a_new_leader_goes_on_from_the_last_sum) {
    Goodput base;
    base.wall = 100s;
    base.productive = 90s;
    base.steps = 50;
    GoodputMeter m(7s, base);
    m.on_progress(17s, progress(60, 60, 60s));
    Goodput g = m.snapshot(17s, true);
    BOOST_TEST((g.wall == 110s));
    BOOST_TEST((g.productive == 100s));
}

BOOST_AUTO_TEST_SUITE_END()
