// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(units)

BOOST_AUTO_TEST_CASE(durations) {
    BOOST_TEST((*parse_duration("250ms") == 250ms));
    BOOST_TEST((*parse_duration("1.5s") == 1500ms));
    BOOST_TEST((*parse_duration("2h") == 2h));
    for (const char *bad : {"", "5", "s", "-1s", "1 s", "1d", "nan s", "1e9h", "99999999h", "1s1"})
        BOOST_TEST(!parse_duration(bad).ok(), bad);
}

BOOST_AUTO_TEST_CASE(sizes) {
    BOOST_TEST(*parse_size_bytes("4096") == 4096u);
    BOOST_TEST(*parse_size_bytes("64KiB") == 65536u);
    BOOST_TEST(*parse_size_bytes("1.5G") == 3u << 29);
    for (const char *bad : {"", "K", "-4", "4 K", "4KB", "9999999999T", "0x10"})
        BOOST_TEST(!parse_size_bytes(bad).ok(), bad);
}

BOOST_AUTO_TEST_CASE(integers) {
    BOOST_TEST(*parse_uint("42", 1, 100) == 42u);
    for (const char *bad : {"", "0", "101", "+5", "-5", "5 ", "99999999999999999999"})
        BOOST_TEST(!parse_uint(bad, 1, 100).ok(), bad);
}

BOOST_AUTO_TEST_CASE(printing) {
    BOOST_TEST(format_size_bytes(312) == "312 B");
    BOOST_TEST(format_size_bytes(3u << 29) == "1.5 GiB");
    BOOST_TEST(format_duration(35ms) == "35 ms");
    BOOST_TEST(format_duration(2100ms) == "2.1 s");
    BOOST_TEST(format_duration(200s) == "3 min 20 s");
    BOOST_TEST(format_duration(125min) == "2 h 5 min");
}

BOOST_AUTO_TEST_SUITE_END()
