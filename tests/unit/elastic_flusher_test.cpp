// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "elastic/flusher.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

constexpr GenerationId gen{Term(1), 1};

CompleteStep step(std::uint64_t n, GenerationId g = gen) {
    return {{g, TrainStep(n)}, 4, {NodeIndex(0), NodeIndex(1)}};
}

FlushConfig by_steps(std::uint64_t n) {
    FlushConfig c;
    c.every_steps = n;
    return c;
}

template <typename A>
std::vector<A> of(const Flusher::Actions &actions) {
    std::vector<A> found;
    for (const auto &a : actions)
        if (auto *wanted = std::get_if<A>(&a)) found.push_back(*wanted);
    return found;
}

/// The step and number that are ordered; step 0: nothing is.
std::pair<std::uint64_t, std::uint64_t> ordered(const Flusher::Actions &actions) {
    auto begun = of<FlushBegin>(actions);
    if (begun.empty()) return {0, 0};
    BOOST_TEST(begun.size() == 1u);
    return {begun[0].step.id.step.value(), begun[0].number};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(flusher)

BOOST_AUTO_TEST_CASE(every_nth_complete_step) {
    Flusher f(by_steps(3), 10, 0s);
    BOOST_TEST(ordered(f.complete(1s, step(5))).first == 0u);
    BOOST_TEST(ordered(f.complete(2s, step(10))).first == 0u);
    BOOST_TEST(ordered(f.complete(2s, step(10))).first == 0u);  // told twice
    auto [at, number] = ordered(f.complete(3s, step(15)));
    BOOST_TEST(at == 15u);
    BOOST_TEST(number == 11u);
    BOOST_TEST(!f.settled());
    auto after = f.done(4s, number);
    BOOST_REQUIRE(of<FlushNote>(after).size() == 1u);
    BOOST_TEST(of<FlushNote>(after)[0].ok);
    BOOST_TEST((of<FlushNote>(after)[0].took == 1s));
    BOOST_TEST(of<FlushDrop>(after)[0].number == number);
    BOOST_TEST(f.settled());
    BOOST_TEST((f.deadline() == Time::max()));
}

/// After a loss the same step is complete on other nodes: who is gone is not asked for its part.
BOOST_AUTO_TEST_CASE(what_another_world_holds_comes_from_its_nodes) {
    Flusher f(by_steps(100), 0, 0s);
    BOOST_TEST(ordered(f.complete(1s, step(10))).first == 0u);
    CompleteStep again = step(10);
    again.nodes = {NodeIndex(0), NodeIndex(2)};
    BOOST_TEST(ordered(f.complete(2s, again)).first == 0u);
    auto begun = of<FlushBegin>(f.hurry(3s));
    BOOST_REQUIRE(begun.size() == 1u);
    BOOST_TEST((begun[0].step.nodes == again.nodes));
}

BOOST_AUTO_TEST_CASE(one_order_at_a_time_and_the_newest_next) {
    Flusher f(by_steps(1), 0, 0s);
    auto first = ordered(f.complete(1s, step(1)));
    BOOST_TEST(first.first == 1u);
    for (std::uint64_t n = 2; n < 9; ++n) BOOST_TEST(ordered(f.complete(1s, step(n))).first == 0u);
    auto after = f.done(2s, first.second);
    // The objects of the first are free before those of the next are kept.
    BOOST_TEST(std::holds_alternative<FlushDrop>(after[1]));
    BOOST_TEST(ordered(after).first == 8u);
}

BOOST_AUTO_TEST_CASE(by_time_with_the_next_complete_step_or_without) {
    FlushConfig c;
    c.every = 10s;
    Flusher f(c, 0, 100s);
    BOOST_TEST(ordered(f.complete(101s, step(1))).first == 0u);
    BOOST_TEST((f.deadline() == 110s));
    BOOST_TEST(ordered(f.tick(109s)).first == 0u);
    auto first = ordered(f.tick(110s));
    BOOST_TEST(first.first == 1u);
    f.done(111s, first.second);
    BOOST_TEST((f.deadline() == Time::max()));  // nothing new
    BOOST_TEST(ordered(f.complete(125s, step(2))).first == 2u);
}

BOOST_AUTO_TEST_CASE(only_when_hurried) {
    Flusher f({}, 0, 0s);
    BOOST_TEST(ordered(f.hurry(0s)).first == 0u);
    BOOST_TEST(f.settled());
    f.complete(1s, step(1));
    BOOST_TEST((f.deadline() == Time::max()));
    auto first = ordered(f.hurry(2s));
    BOOST_TEST(first.first == 1u);
    f.complete(3s, step(2));
    // Hurried once, not for ever: storage may be slower than the steps.
    BOOST_TEST(ordered(f.done(4s, first.second)).first == 0u);
    BOOST_TEST((f.deadline() == Time::max()));
    BOOST_TEST(ordered(f.complete(5s, step(3))).first == 0u);
}

BOOST_AUTO_TEST_CASE(a_hurry_wants_what_was_complete_then) {
    Flusher f({}, 0, 0s);
    f.complete(1s, step(1));
    auto first = ordered(f.hurry(2s));
    f.complete(3s, step(2));
    BOOST_TEST(ordered(f.hurry(4s)).first == 0u, "one order at a time");
    f.complete(5s, step(3));
    auto second = ordered(f.done(6s, first.second));
    BOOST_TEST(second.first == 3u, "step 2 or a newer one");
    BOOST_TEST(ordered(f.failed(7s, second.second, "full")).first == 0u);
    f.complete(8s, step(4));
    auto third = ordered(f.tick(f.deadline()));
    BOOST_TEST(third.first == 4u);
    f.complete(30s, step(5));
    BOOST_TEST(ordered(f.done(31s, third.second)).first == 0u);
    BOOST_TEST((f.deadline() == Time::max()));
}

BOOST_AUTO_TEST_CASE(a_failure_is_told_once_and_tried_again_with_the_newest) {
    FlushConfig c = by_steps(100);
    c.retry_min = 5s;
    c.retry_max = 12s;
    Flusher f(c, 0, 0s);
    f.complete(0s, step(1));
    auto order = ordered(f.hurry(1s));
    auto after = f.failed(2s, order.second, "rank 0 of step 1: the disk is full");
    BOOST_TEST(of<FlushNote>(after).size() == 1u);
    BOOST_TEST(of<FlushDrop>(after).size() == 1u);
    BOOST_TEST(!f.settled());
    BOOST_TEST((f.deadline() == 7s));
    BOOST_TEST(ordered(f.complete(3s, step(2))).first == 0u);
    order = ordered(f.tick(7s));
    BOOST_TEST(order.first == 2u);
    after = f.failed(8s, order.second, "rank 13 of step 2: the disk is full");
    BOOST_TEST(of<FlushNote>(after).empty());
    BOOST_TEST(f.trouble() == "rank 13 of step 2: the disk is full");
    BOOST_TEST((f.deadline() == 18s));
    order = ordered(f.tick(18s));
    after = f.failed(19s, order.second, "no permission");
    BOOST_TEST(of<FlushNote>(after).size() == 1u);
    BOOST_TEST((f.deadline() == 31s));
    BOOST_TEST(f.failures() == 3u);
    order = ordered(f.tick(31s));
    f.done(32s, order.second);
    BOOST_TEST(f.failures() == 0u);
    BOOST_TEST(f.trouble() == "");
}

BOOST_AUTO_TEST_CASE(an_order_that_takes_too_long_is_given_up) {
    FlushConfig c = by_steps(1);
    c.order_limit = 60s;
    Flusher f(c, 0, 0s);
    auto order = ordered(f.complete(0s, step(1)));
    BOOST_TEST((f.deadline() == 60s));
    auto after = f.tick(60s);
    BOOST_TEST(of<FlushDrop>(after).size() == 1u);
    BOOST_TEST(!of<FlushNote>(after)[0].ok);
    // Its late answer is nobody's.
    BOOST_TEST(f.done(61s, order.second).empty());
    BOOST_TEST(!f.settled());
    BOOST_TEST(ordered(f.tick(65s)).first == 1u);
}

BOOST_AUTO_TEST_CASE(answers_of_other_orders_do_not_count) {
    Flusher f(by_steps(1), 0, 0s);
    auto order = ordered(f.complete(0s, step(1)));
    BOOST_TEST(f.done(1s, order.second + 1).empty());
    BOOST_TEST(f.failed(1s, order.second - 1, "late").empty());
    BOOST_TEST(f.flying().has_value());
}

BOOST_AUTO_TEST_CASE(what_is_there_is_not_stored_again) {
    Flusher f(by_steps(1), 0, 0s);
    f.known(0s, {gen, TrainStep(7)});
    BOOST_TEST(ordered(f.complete(1s, step(7))).first == 0u);
    BOOST_TEST(f.settled());
    BOOST_TEST(ordered(f.complete(2s, step(8))).first == 8u);
    // A lower step of a newer generation is newer.
    Flusher g(by_steps(1), 0, 0s);
    g.known(0s, {gen, TrainStep(7)});
    BOOST_TEST(ordered(g.complete(1s, step(3, {Term(1), 2}))).first == 3u);
}

BOOST_AUTO_TEST_CASE(the_deadline_is_never_passed_over) {
    // Whatever happens in whatever order: at its deadline a tick changes something, and an order is not lost.
    std::uint64_t state = 42;
    auto random = [&](std::uint64_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % below;
    };
    for (int run = 0; run < 300; ++run) {
        FlushConfig c;
        c.every_steps = random(3);
        c.every = random(2) != 0 ? 20s : 0s;
        c.order_limit = 40s;
        Flusher f(c, 0, 0s);
        Time now{0};
        std::uint64_t open = 0, newest = 0, kept = 0;
        auto take = [&](const Flusher::Actions &actions) {
            for (const auto &a : actions) {
                if (auto *begin = std::get_if<FlushBegin>(&a)) {
                    BOOST_REQUIRE(open == 0u);
                    open = begin->number;
                    kept = begin->step.id.step.value();
                    BOOST_REQUIRE(kept == newest);
                }
                if (auto *drop = std::get_if<FlushDrop>(&a)) {
                    BOOST_REQUIRE(drop->number == open);
                    open = 0;
                }
            }
        };
        for (int i = 0; i < 200; ++i) {
            now += std::chrono::milliseconds(random(8000));
            if (f.deadline() <= now) {
                take(f.tick(now));
                BOOST_REQUIRE((f.deadline() > now));
            }
            switch (random(6)) {
                case 0:
                case 1:
                    take(f.complete(now, step(++newest)));
                    break;
                case 2:
                    take(f.hurry(now));
                    break;
                case 3:
                    take(f.done(now, random(4) == 0 ? open + 1 : open));
                    break;
                case 4:
                    take(f.failed(now, open, random(2) != 0 ? "full" : "away"));
                    break;
                default:
                    break;
            }
        }
        // Storage is well again: the newest gets there.
        take(f.hurry(now));
        for (int i = 0; i < 5 && !f.settled(); ++i) {
            if (open != 0) take(f.done(now, open));
            now = std::max(now, f.deadline() == Time::max() ? now : f.deadline());
            if (!f.settled()) take(f.tick(now));
        }
        BOOST_TEST(f.settled());
    }
}

BOOST_AUTO_TEST_CASE(a_step_that_was_asked_for_is_ordered_and_no_other) {
    Flusher f({}, 0, 0s);
    BOOST_TEST(ordered(f.complete(1s, step(4))).first == 0u);
    BOOST_TEST(ordered(f.complete(2s, step(5))).first == 0u);
    auto actions = f.ask(2s, step(5).id);
    BOOST_TEST(ordered(actions).first == 5u);
    BOOST_TEST(of<FlushPassed>(actions).empty());
    BOOST_TEST(of<FlushBegin>(f.done(3s, 1)).empty());
    BOOST_TEST(ordered(f.complete(4s, step(6))).first == 0u);
    BOOST_TEST((f.deadline() == Time::max()));
    // Told again, or of one that is there already.
    BOOST_TEST(f.ask(5s, step(5).id).empty());
    BOOST_TEST(f.ask(5s, step(4).id).empty());
}

BOOST_AUTO_TEST_CASE(a_step_that_was_asked_for_may_be_complete_later) {
    Flusher f({}, 0, 0s);
    f.complete(1s, step(4));
    BOOST_TEST(ordered(f.ask(2s, step(5).id)).first == 0u);
    BOOST_TEST((f.deadline() == Time::max()));
    BOOST_TEST(ordered(f.complete(3s, step(5))).first == 5u);
}

BOOST_AUTO_TEST_CASE(what_was_asked_for_meanwhile_is_passed_by_the_newest_and_told) {
    Flusher f({}, 0, 0s);
    f.complete(1s, step(1));
    auto first = ordered(f.ask(1s, step(1).id));
    BOOST_TEST(first.first == 1u);
    for (std::uint64_t n : {2, 3}) {
        BOOST_TEST(f.complete(2s, step(n)).empty());
        BOOST_TEST(f.ask(2s, step(n).id).empty());
    }
    f.complete(2s, step(4));
    auto after = f.done(3s, first.second);
    BOOST_TEST(ordered(after).first == 4u);
    auto passed = of<FlushPassed>(after);
    BOOST_REQUIRE(passed.size() == 1u);
    BOOST_TEST(passed[0].count == 2u);
    BOOST_TEST((passed[0].first == step(2).id));
    BOOST_TEST((passed[0].last == step(3).id));
    BOOST_TEST((passed[0].by == step(4).id));
    BOOST_TEST(of<FlushBegin>(f.done(4s, ordered(after).second)).empty());
    // The last one asked for is itself the newest: it is not passed.
    f.complete(5s, step(5));
    auto flying = ordered(f.ask(5s, step(5).id));
    f.complete(5s, step(6));
    f.ask(5s, step(6).id);
    after = f.done(6s, flying.second);
    BOOST_TEST(ordered(after).first == 6u);
    BOOST_TEST(of<FlushPassed>(after).empty());
}

BOOST_AUTO_TEST_CASE(a_step_that_was_asked_for_is_tried_again) {
    FlushConfig c;
    c.retry_min = 5s;
    Flusher f(c, 0, 0s);
    f.complete(1s, step(1));
    auto order = ordered(f.ask(1s, step(1).id));
    f.failed(2s, order.second, "the disk is full");
    BOOST_TEST((f.deadline() == 7s));
    auto again = f.tick(7s);
    BOOST_TEST(ordered(again).first == 1u);
    BOOST_TEST(of<FlushPassed>(again).empty());
    // A newer one takes its place: told once, however often that fails too.
    f.complete(8s, step(2));
    f.failed(8s, ordered(again).second, "the disk is full");
    again = f.tick(100s);
    BOOST_TEST(ordered(again).first == 2u);
    BOOST_TEST(of<FlushPassed>(again).size() == 1u);
    f.complete(101s, step(3));
    f.failed(101s, ordered(again).second, "the disk is full");
    again = f.tick(1000s);
    BOOST_TEST(ordered(again).first == 3u);
    BOOST_TEST(of<FlushPassed>(again).empty());
}

/// Once early enough to be tried again, and once as late as orders have taken.
BOOST_AUTO_TEST_CASE(twice_before_the_job_ends) {
    Flusher f({}, 0, 0s);
    f.complete(1s, step(5));
    BOOST_TEST((f.deadline() == Time::max()), "no word of storage, no end");
    BOOST_TEST(ordered(f.ends_at(1s, 1000s)).first == 0u);
    BOOST_TEST((f.deadline() == 930s));  // 60 s and 10 s before it
    f.complete(900s, step(10));
    BOOST_TEST(ordered(f.tick(929s)).first == 0u);
    auto first = of<FlushBegin>(f.tick(930s));
    BOOST_REQUIRE(first.size() == 1u);
    BOOST_TEST(first[0].step.id.step.value() == 10u);
    BOOST_TEST((first[0].end_in == Duration(70s)));
    f.done(938s, first[0].number);
    BOOST_TEST(ordered(f.complete(939s, step(15))).first == 0u);
    BOOST_TEST((f.deadline() == 984s));  // it took 8 s
    auto last = of<FlushBegin>(f.tick(984s));
    BOOST_REQUIRE(last.size() == 1u);
    BOOST_TEST((last[0].end_in == Duration(16s)));
    f.done(990s, last[0].number);
    BOOST_TEST(ordered(f.complete(991s, step(20))).first == 0u, "it could be cut off");
    BOOST_TEST((f.deadline() == Time::max()));
}

BOOST_AUTO_TEST_CASE(slow_storage_is_begun_with_earlier) {
    Flusher f({}, 0, 0s);
    f.complete(0s, step(5));
    auto [at, number] = ordered(f.hurry(0s));
    BOOST_TEST(at == 5u);
    f.done(300s, number);
    f.complete(301s, step(10));
    f.ends_at(302s, 10000s);
    BOOST_TEST((f.deadline() == 10000s - 4 * 300s));
    auto [first, second] = ordered(f.tick(8800s));
    BOOST_TEST(first == 10u);
    f.failed(8900s, second, "full");
    BOOST_TEST((f.deadline() == 8905s), "tried again as ever");
}

/// Somebody gave the job more time.
BOOST_AUTO_TEST_CASE(a_later_end_is_heeded) {
    Flusher f({}, 0, 0s);
    f.complete(1s, step(5));
    auto [at, number] = ordered(f.ends_at(50s, 100s));
    BOOST_TEST(at == 5u);
    f.done(51s, number);
    f.complete(52s, step(10));
    BOOST_TEST((f.deadline() == 90s));
    f.ends_at(60s, 1000s);
    BOOST_TEST((f.deadline() == 930s));
    f.ends_at(61s, std::nullopt);
    BOOST_TEST((f.deadline() == Time::max()));
    f.ends_at(62s, 50s);
    BOOST_TEST((f.deadline() == Time::max()), "Slurm lets it run on");
    f.ends_at(63s, 200s);
    BOOST_TEST(ordered(f.tick(300s)).first == 0u);
    BOOST_TEST((f.deadline() == Time::max()));
}

BOOST_AUTO_TEST_CASE(what_is_whole_nowhere_is_not_waited_for) {
    Flusher f({}, 0, 0s);
    f.complete(1s, step(5));
    BOOST_TEST(!f.settled());
    f.forget(step(4).id);
    BOOST_TEST(!f.settled());
    f.forget(step(5).id);
    BOOST_TEST(f.settled());
    BOOST_TEST(ordered(f.hurry(2s)).first == 0u);
    f.complete(3s, step(6));
    auto [at, number] = ordered(f.hurry(4s));
    BOOST_TEST(at == 6u);
    f.forget(step(6).id);
    auto actions = f.lost(5s, number, "it is damaged");
    BOOST_TEST(f.settled());
    f.complete(6s, step(7));
    BOOST_TEST(!f.settled());
}

BOOST_AUTO_TEST_SUITE_END()
