// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/number.h"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <vector>

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;

namespace {

template <typename T>
std::optional<std::chrono::seconds> timeout(T number, pmix_data_type_t type, const char *key = PMIX_TIMEOUT) {
    pmix_info_t infos[2];
    bool yes = true;
    PMIX_INFO_LOAD(&infos[0], PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], key, &number, type);
    return timeout_in(infos);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(numbers)

BOOST_AUTO_TEST_CASE(a_timeout_may_be_of_any_type_of_number) {
    BOOST_TEST((timeout(7, PMIX_INT) == 7s));
    BOOST_TEST((timeout(std::int8_t{7}, PMIX_INT8) == 7s));
    BOOST_TEST((timeout(std::int16_t{7}, PMIX_INT16) == 7s));
    BOOST_TEST((timeout(std::int32_t{7}, PMIX_INT32) == 7s));
    BOOST_TEST((timeout(std::int64_t{7}, PMIX_INT64) == 7s));
    BOOST_TEST((timeout(7u, PMIX_UINT) == 7s));
    BOOST_TEST((timeout(std::uint8_t{200}, PMIX_UINT8) == 200s));
    BOOST_TEST((timeout(std::uint16_t{60000}, PMIX_UINT16) == 60000s));
    BOOST_TEST((timeout(std::uint32_t{7}, PMIX_UINT32) == 7s));
    BOOST_TEST((timeout(std::uint64_t{7}, PMIX_UINT64) == 7s));
    BOOST_TEST((timeout(std::size_t{7}, PMIX_SIZE) == 7s));
    BOOST_TEST((timeout(std::time_t{7}, PMIX_TIME) == 7s));
}

BOOST_AUTO_TEST_CASE(what_is_no_timeout_is_none) {
    BOOST_TEST(!timeout(0, PMIX_INT).has_value());
    BOOST_TEST(!timeout(-1, PMIX_INT).has_value());
    BOOST_TEST(!timeout(std::int64_t{-1}, PMIX_INT64).has_value());
    BOOST_TEST(!timeout(7.0, PMIX_DOUBLE).has_value());
    BOOST_TEST(!timeout(true, PMIX_BOOL).has_value());
    BOOST_TEST(!timeout(7, PMIX_INT, "pmix.other").has_value());
    BOOST_TEST(!timeout_in({}).has_value());
}

BOOST_AUTO_TEST_CASE(a_timeout_that_is_too_long_is_a_long_one) {
    constexpr auto longest = std::chrono::seconds(std::numeric_limits<std::int32_t>::max());
    BOOST_TEST((timeout(std::numeric_limits<std::uint32_t>::max(), PMIX_UINT32) == longest));
    BOOST_TEST((timeout(std::numeric_limits<std::uint64_t>::max(), PMIX_UINT64) == longest));
    BOOST_TEST((timeout(std::numeric_limits<std::size_t>::max(), PMIX_SIZE) == longest));
    BOOST_TEST((timeout(std::numeric_limits<std::time_t>::max(), PMIX_TIME) == longest));
}

BOOST_AUTO_TEST_SUITE_END()
