// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/announcement.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_CASE(announcements_are_what_they_were) {
    auto again = decode_announcement(encode_announcement({-5000, 3, true, 2, {1, 2}}));
    BOOST_REQUIRE(again.ok());
    BOOST_TEST(again->code == -5000);
    BOOST_TEST(again->rank == 3u);
    BOOST_TEST(again->custom);
    BOOST_TEST(again->count == 2u);
    BOOST_TEST(again->infos == (proto::Bytes{1, 2}));
    BOOST_TEST(decode_announcement(encode_announcement({-5000, 3, true, 0, {}})).ok());
}

BOOST_AUTO_TEST_CASE(announcements_that_can_not_be_are_refused) {
    BOOST_TEST(!decode_announcement(encode_announcement({1, 0, false, 1, {}})).ok());
    BOOST_TEST(!decode_announcement(encode_announcement({1, 0, false, 0, {1}})).ok());
    BOOST_TEST(!decode_announcement(encode_announcement({1, 0, false, max_infos + 1, {1}})).ok());
    BOOST_TEST(
        !decode_announcement(encode_announcement({1, 0, false, 1, proto::Bytes(max_info_bytes + 1)})).ok());
    BOOST_TEST(!decode_announcement(proto::Bytes(50, 1)).ok());
}

BOOST_AUTO_TEST_CASE(an_allowance_of_events_comes_back_with_time) {
    EventAllowance allowance;
    constexpr std::size_t half = EventAllowance::most / 2 - EventAllowance::around_event_bytes;
    BOOST_TEST(allowance.take(5s, half));
    BOOST_TEST(allowance.take(5s, half));
    BOOST_TEST(!allowance.take(5s, 0));
    BOOST_TEST(allowance.take(5s + 10ms, 100));
    BOOST_TEST(!allowance.take(5s + 10ms, half));
    BOOST_TEST(allowance.take(100h, half));
    BOOST_TEST(allowance.take(100h, half));
    BOOST_TEST(!allowance.take(100h, 0));
}
