// SPDX-License-Identifier: Apache-2.0
// Parities on other nodes: two daemons, each of which keeps the other's.
#include <boost/test/unit_test.hpp>

#include "daemon/parity.h"
#include "tests/unit/daemon_movers.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

std::size_t parities(Node &node, std::uint64_t step) {
    auto places = Copying::held(node, step);
    return static_cast<std::size_t>(
        std::ranges::count_if(places, [](auto place) { return !is_rank(Rank(place)); }));
}

std::size_t objects(Node &node, std::uint64_t step) {
    return Copying::held(node, step).size() - parities(node, step);
}

struct Parities : Copying {
    Parities() : Copying(2, "rs:4+2") {}  // of two nodes: one of one object
    bool safe(std::uint64_t step) {
        return status_at(n1, alice).groups.at(0)->copies->safe_step == static_cast<std::int64_t>(step);
    }
};

struct Rebuilding : Fetching {
    Rebuilding() : Fetching("rs:4+2") {}
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_parities, Parities)

BOOST_AUTO_TEST_CASE(every_node_has_the_others_parities_and_no_copies) {
    for (std::uint64_t step = 5; step < 16; ++step) {
        BOOST_TEST(try_save_everywhere(step), step);
        run(2s);
        for (Node *node : {&n1, &n2}) {
            BOOST_TEST(objects(*node, step) == 2u);
            BOOST_TEST(parities(*node, step) == 2u);
        }
    }
    BOOST_TEST(safe(15));
    BOOST_TEST(m1->folds == 22);
    auto copies = std::move(status_at(n1, alice, false).groups.at(0)->copies);
    BOOST_TEST(copies->parities >= 2u);
    BOOST_TEST(copies->parity_bytes >= 2 * Node::object_bytes);
}

BOOST_AUTO_TEST_CASE(what_is_added_up_may_be_here_already) {
    m2->spared = 100;
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(safe(5));
    BOOST_REQUIRE(m2->lent_for[0].size() == 1u);
    BOOST_TEST((m2->lent_for[0][0] == std::set<std::uint32_t>{2, 3}));
    BOOST_TEST((m2->read.empty() && m1->read.empty()));
    BOOST_TEST(status_at(n2, alice, false).groups.at(0)->copies->spared_bytes == 200u);
}

/// It would leave out, or not fill in, what lies between chunks.
BOOST_AUTO_TEST_CASE(nothing_is_left_out_unless_both_movers_come_to_every_byte) {
    m1->die();
    m1->is_exact = false;
    m1->connect();
    BOOST_TEST(try_save_everywhere(5));
    run(3s);
    BOOST_TEST(safe(5));
    for (Mover *mover : {&*m1, &*m2})
        for (const auto &[rank, lent] : mover->lent_for)
            for (const auto &ranks : lent) BOOST_TEST(ranks.empty(), rank);
}

BOOST_AUTO_TEST_CASE(a_sum_whose_mover_has_died_begins_anew) {
    m2->lost_folds = true;
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(m2->folds > 0);
    BOOST_TEST(parities(n2, 5) == 0u);
    BOOST_TEST(!safe(5));
    m2->die();
    m2->lost_folds = false;
    m2->connect();
    run(20s);
    BOOST_TEST(parities(n2, 5) == 2u);
    BOOST_TEST(safe(5));
    BOOST_TEST(try_save_everywhere(6));
    run(2s);
    BOOST_TEST(safe(6));
}

BOOST_AUTO_TEST_CASE(a_daemon_that_comes_back_has_its_parities_still) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    int before = m2->folds;
    n2.restart();
    loop.advance(100ms);
    a2 = n2.start_agent(alice, from_proto(w2.generation));
    loop.advance(3s);
    m2->connect();
    run(20s);
    BOOST_TEST(parities(n2, 5) == 2u);
    BOOST_TEST(m2->folds == before);
    for (std::uint64_t step : {6, 7, 8, 9}) {
        BOOST_TEST(try_save_everywhere(step), step);
        run(3s);
    }
    BOOST_TEST(safe(9));
}

BOOST_AUTO_TEST_CASE(a_daemon_that_comes_back_in_the_midst_begins_its_sums_anew) {
    m2->lost_folds = true;
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    m2->die();
    n2.restart();
    loop.advance(100ms);
    a2 = n2.start_agent(alice, from_proto(w2.generation));
    loop.advance(3s);
    m2->lost_folds = false;
    m2->connect();
    run(20s);
    BOOST_TEST(parities(n2, 5) == 2u);
    BOOST_TEST(safe(5));
}

BOOST_AUTO_TEST_CASE(late_words_that_come_twice_add_nothing_twice) {
    unruly = true;
    for (std::uint64_t step : {5, 6, 7}) {
        BOOST_TEST(try_save_everywhere(step), step);
        run(40s);
        BOOST_TEST(safe(step), step);
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(daemon_rebuilding, Rebuilding)

BOOST_AUTO_TEST_CASE(what_a_node_has_lost_is_made_again_and_comes_back) {
    BOOST_TEST(objects(n2, 5) == 0u);
    begin_world();
    for (int i = 0; i < 100 && coming(); ++i) run(100ms);
    auto answer = restore();
    auto *plan = std::get_if<local::RestorePlanT>(&answer);
    BOOST_REQUIRE(plan != nullptr);
    BOOST_TEST(plan->train_step == 5);
    BOOST_TEST(plan->table_bytes == 128u);
    BOOST_TEST(objects(n1, 5) == 4u);
    run(10s);
    BOOST_TEST(parities(n2, 5) == 2u);  // protected anew
}

BOOST_AUTO_TEST_CASE(who_waits_for_it_is_told_so_and_waits) {
    m1->lost_folds = true;
    begin_world();
    run(25s);
    BOOST_TEST(coming() != nullptr);
    m1->die();
    m1->lost_folds = false;
    m1->connect();
    run(10s);
    BOOST_TEST(coming() == nullptr);
    auto answer = restore();
    BOOST_TEST(std::get_if<local::RestorePlanT>(&answer) != nullptr);
}

BOOST_AUTO_TEST_CASE(what_the_parts_do_not_give_is_given_up_and_said) {
    m1->spoilt = true;
    begin_world();
    run(40s);
    BOOST_TEST(warned(n1, "could not be made of its parts again: the parts did not give the object"));
    BOOST_TEST(parities(n1, 5) == 0u);
    BOOST_TEST(fails_with("it does not hold that object any more"));
}

BOOST_AUTO_TEST_SUITE_END()
