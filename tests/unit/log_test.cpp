// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <boost/test/unit_test.hpp>

#include "common/repeat_filter.h"

using namespace dlrover;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(logging)

BOOST_AUTO_TEST_CASE(a_repeated_line_is_held_back_and_counted) {
    log::RepeatFilter filter({.same_lines = 3, .all_lines = 100, .known_texts = 10, .window = 60s});
    auto now = log::RepeatFilter::Time(1s);
    for (int i = 0; i < 3; ++i) {
        auto verdict = filter.admit("", "n1 is lost", now);
        BOOST_TEST(verdict.pass);
        BOOST_TEST(verdict.last == (i == 2));
    }
    for (int i = 0; i < 40; ++i) BOOST_TEST(!filter.admit("", "n1 is lost", now + 1s).pass);
    BOOST_TEST(filter.admit("", "n2 is lost", now + 1s).pass);
    auto verdict = filter.admit("", "n1 is lost", now + 61s);
    BOOST_TEST(verdict.pass);
    BOOST_TEST(verdict.held_back == 40u);
    BOOST_TEST(filter.admit("", "n1 is lost", now + 61s).held_back == 0u);
}

BOOST_AUTO_TEST_CASE(all_lines_together_are_bounded) {
    log::RepeatFilter filter({.same_lines = 3, .all_lines = 5, .known_texts = 100, .window = 60s});
    int passed = 0;
    for (int i = 0; i < 50; ++i) passed += filter.admit("", "line " + std::to_string(i), 1s).pass;
    BOOST_TEST(passed == 5);
    BOOST_TEST(filter.admit("", "line 1000", 62s).pass);
}

BOOST_AUTO_TEST_CASE(what_jobs_bring_about_keeps_nothing_else_out) {
    log::RepeatFilter filter(
        {.same_lines = 3, .job_lines = 4, .all_lines = 10, .known_texts = 100, .window = 60s});
    auto pass = [&](const std::string &job, int lines) {
        int passed = 0;
        for (int i = 0; i < lines; ++i) passed += filter.admit(job, "line " + std::to_string(i), 1s).pass;
        return passed;
    };
    BOOST_TEST(pass("7.0", 50) == 4);
    BOOST_TEST(pass("8.0", 50) == 4, "another job has its own");
    BOOST_TEST(pass("9.0", 50) == 2, "all jobs together are bounded");
    BOOST_TEST(pass("", 50) == 10, "what is about no job is written all the same");
    BOOST_TEST(filter.admit("7.0", "later", 62s).pass);
}

BOOST_AUTO_TEST_CASE(memory_of_the_filter_is_bounded) {
    log::RepeatFilter filter(
        {.same_lines = 1, .job_lines = 1, .all_lines = 1000000, .known_texts = 4, .window = 60s});
    for (int i = 0; i < 1000; ++i) BOOST_TEST(filter.admit("", std::to_string(i), 1s).pass);
    for (int i = 0; i < 1000; ++i) BOOST_TEST(filter.admit(std::to_string(i), "a line", 1s).pass);
}

BOOST_AUTO_TEST_CASE(a_text_can_not_forge_a_line) {
    BOOST_TEST(log::one_line("a\nb\tc\x1b[31m") == "a?b?c?[31m");
    BOOST_TEST(log::one_line("gr\xc3\xbc\xc3\x9f") == "gr\xc3\xbc\xc3\x9f");
    BOOST_TEST(log::one_line("cut \xc3") == "cut ?");
    BOOST_TEST(log::one_line("c1 \xc2\x85 end") == "c1 ? end");
    auto record = log::journal_record(log::Level::warning, "dlroverd", "12.0", "x\nPRIORITY=0");
    BOOST_TEST(record == "PRIORITY=4\nSYSLOG_IDENTIFIER=dlroverd\nDLROVER_JOB=12.0\nMESSAGE=x?PRIORITY=0\n");
}

BOOST_AUTO_TEST_CASE(lines_are_counted_by_level) {
    auto before = log::count(log::Level::warning);
    log::info("the test writes this line");
    log::debug(log::Job{JobId(1), StepId(2)}, "the test writes this line, unseen");
    BOOST_TEST(log::count(log::Level::warning) == before);
    log::warning(log::Job{JobId(1), StepId(2)}, "the test writes this line");
    log::error("the test writes this line");
    BOOST_TEST(log::count(log::Level::warning) == before + 2);
}

BOOST_AUTO_TEST_SUITE_END()
