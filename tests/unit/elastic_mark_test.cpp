// SPDX-License-Identifier: Apache-2.0
// Whether nodes share their folder for checkpoints.
#include <boost/test/unit_test.hpp>

#include "elastic/mark_search.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;
using Next = MarkSearch::Next;

BOOST_AUTO_TEST_SUITE(mark_search)

BOOST_AUTO_TEST_CASE(a_mark_that_is_there_ends_the_search) {
    MarkSearch search(Time(0));
    BOOST_TEST((search.looked(1s, false) == Next::look_again));
    BOOST_TEST((search.looked(3s, true) == Next::over));
}

BOOST_AUTO_TEST_CASE(a_mark_that_does_not_come_is_told_of_again_and_again_for_a_while) {
    MarkSearch search(Time(0));
    int told = 0;
    Time now{0};
    Next next = Next::look_again;
    for (; next != Next::over && now < 10min; now += 2s) {
        next = search.looked(now, false);
        told += next == Next::tell;
        BOOST_TEST((now >= mark_patience || told == 0));
    }
    BOOST_TEST(told == 20);
    BOOST_TEST((now < 3min));
}

BOOST_AUTO_TEST_CASE(a_node_is_told_of_once_and_only_when_the_mark_has_been_there_for_long) {
    MarkedFolder folder;
    folder.not_seen(1h, NodeIndex(2));
    BOOST_TEST(folder.news().empty());
    folder.marked(1h);
    folder.marked(1h + 15s);
    folder.not_seen(1h + 10s, NodeIndex(2));
    BOOST_TEST(folder.news().empty());
    folder.not_seen(1h + 20s, NodeIndex(2));
    folder.not_seen(1h + 21s, NodeIndex(1));
    BOOST_TEST((folder.news() == std::vector{NodeIndex(1), NodeIndex(2)}));
    folder.not_seen(1h + 40s, NodeIndex(2));
    BOOST_TEST(folder.news().empty());
}

BOOST_AUTO_TEST_SUITE_END()
