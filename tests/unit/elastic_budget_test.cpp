// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "elastic/restart_budget.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;
using Verdict = RestartBudget::Verdict;

namespace {

WorkerExit worker(std::uint32_t rank, int status, std::int64_t at, std::string text = "") {
    return WorkerExit{{}, Rank(rank), status, at, 0, false, std::move(text)};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(restart_budget)

BOOST_AUTO_TEST_CASE(two_restarts_for_a_hopeless_program) {
    RestartBudget b(10);
    BOOST_TEST((b.on_failure(7, false) == Verdict::restart));
    BOOST_TEST((b.on_failure(7, false) == Verdict::restart));
    BOOST_TEST((b.on_failure(7, false) == Verdict::hopeless));
}

BOOST_AUTO_TEST_CASE(a_step_in_between_is_hope) {
    RestartBudget b(10);
    for (int i = 0; i < 6; ++i) BOOST_TEST((b.on_failure(7, i % 2 == 1) == Verdict::restart));
}

/// A program that saves but reports no steps goes on, too.
BOOST_AUTO_TEST_CASE(a_new_checkpoint_in_between_is_hope) {
    RestartBudget b(10);
    for (std::uint64_t i = 1; i < 9; ++i) {
        BOOST_TEST((b.on_failure(7, false) == Verdict::restart));
        b.on_complete(TrainStep(i));
    }
}

BOOST_AUTO_TEST_CASE(the_corrected_cause_counts) {
    RestartBudget b(10);
    for (std::uint64_t i = 1; i <= 3; ++i) {
        BOOST_TEST((b.on_failure(i, false) == Verdict::restart));
        b.correct(100 + i);
    }
    BOOST_TEST((b.on_failure(103, false) == Verdict::restart));
}

BOOST_AUTO_TEST_CASE(a_new_leader_goes_on_counting) {
    RestartBudget b(3);
    b.resume(2);
    BOOST_TEST(b.left() == 1u);
    BOOST_TEST((b.on_failure(1, true) == Verdict::restart));
    BOOST_TEST((b.on_failure(2, true) == Verdict::exhausted));
    b.resume(99);
    BOOST_TEST(b.left() == 0u);
}

BOOST_AUTO_TEST_CASE(only_a_newer_complete_step_renews) {
    RestartBudget b(1);
    BOOST_TEST((b.on_failure(1, true) == Verdict::restart));
    b.on_complete(TrainStep(5));
    BOOST_TEST((b.on_failure(2, true) == Verdict::restart));
    b.on_complete(TrainStep(5));
    BOOST_TEST((b.on_failure(3, true) == Verdict::exhausted));
}

/// New checkpoints of steps that have been there are hope, but renew nothing.
BOOST_AUTO_TEST_CASE(after_a_step_back_the_same_failure_begins_anew) {
    RestartBudget b(6);
    b.on_complete(TrainStep(200));
    for (int i = 0; i < 2; ++i) BOOST_TEST((b.on_failure(7, false) == Verdict::restart));
    BOOST_TEST((b.on_failure(7, false, true) == Verdict::restart));
    BOOST_TEST(b.hopeless());
    b.go_back(TrainStep(100));
    BOOST_TEST(!b.hopeless());
    for (int i = 0; i < 2; ++i) BOOST_TEST((b.on_failure(7, false) == Verdict::restart));
    b.on_complete(TrainStep(110));
    BOOST_TEST(b.used() == 5u);
    BOOST_TEST((b.on_failure(7, false) == Verdict::restart));
    BOOST_TEST((b.on_failure(8, false) == Verdict::exhausted));
    b.on_complete(TrainStep(210));
    BOOST_TEST(b.used() == 0u);
}

BOOST_AUTO_TEST_CASE(exit_codes_are_those_srun_shows) {
    BOOST_TEST(exit_code_of(3 << 8) == 3);
    BOOST_TEST(exit_code_of(SIGSEGV) == 139);
    BOOST_TEST(exit_code_of(0) == 1);
}

BOOST_AUTO_TEST_CASE(a_signal_comes_before_the_peers_that_lost_their_connection) {
    std::vector<WorkerExit> exits{worker(2, 1 << 8, 1000), worker(1, SIGSEGV, 1200),
                                  worker(0, 1 << 8, 1100, "RuntimeError")};
    BOOST_TEST(first_cause(exits, 500ms) == 1u);
}

BOOST_AUTO_TEST_CASE(earlier_comes_before_later) {
    std::vector<WorkerExit> exits{worker(2, SIGKILL, 2000000), worker(1, 1 << 8, 1000)};
    BOOST_TEST(first_cause(exits, 500ms) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
