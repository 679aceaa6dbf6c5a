// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "mover/names.h"

using namespace dlrover;
using namespace dlrover::mover;
using namespace std::chrono_literals;

namespace {

/// A name server that can be away.
struct Fixture {
    bool away = false;
    std::string address = "10.0.0.1";
    int asked = 0;
    Names names{[this](const std::string &name) -> Result<std::vector<transport::SocketAddress>> {
        ++asked;
        if (away) return Status(Code::unavailable, name + ": try again");
        return std::vector{*transport::parse_address(address)};
    }};
    Names::Clock::time_point begun = Names::Clock::now();
    std::string find(Names::Clock::duration later) {
        auto found = names.resolve("n1", begun + later);
        return found.ok() ? found->front().host() : found.status().message();
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(mover_names, Fixture)

BOOST_AUTO_TEST_CASE(what_was_found_is_believed_for_a_while) {
    BOOST_TEST(find(0s) == "10.0.0.1");
    address = "10.0.0.2";
    BOOST_TEST(find(59s) == "10.0.0.1");
    BOOST_TEST(asked == 1);
    BOOST_TEST(find(61s) == "10.0.0.2");
}

BOOST_AUTO_TEST_CASE(where_nobody_answers_what_was_found_before_serves) {
    BOOST_TEST(find(0s) == "10.0.0.1");
    away = true;
    BOOST_TEST(find(61s) == "10.0.0.1");
    BOOST_TEST(find(62s) == "10.0.0.1");
    BOOST_TEST(asked == 2, "nor is it asked for each time");
    away = false;
    address = "10.0.0.2";
    BOOST_TEST(find(120s) == "10.0.0.2");
}

BOOST_AUTO_TEST_CASE(what_was_not_found_is_not_asked_for_at_once) {
    away = true;
    BOOST_TEST(find(0s) == "n1: try again");
    away = false;
    BOOST_TEST(find(1s) == "n1: try again");
    BOOST_TEST(asked == 1);
    BOOST_TEST(find(40s) == "10.0.0.1");
}

BOOST_AUTO_TEST_CASE(there_are_so_many_names_and_no_more) {
    for (std::size_t i = 0; i <= Names::most; ++i) (void)names.resolve("n" + std::to_string(i), begun).ok();
    asked = 0;
    BOOST_TEST(names.resolve("n" + std::to_string(Names::most), begun).ok());
    BOOST_TEST(asked == 0);
    BOOST_TEST(names.resolve("n5", begun).ok());
    BOOST_TEST(asked == 1);
}

BOOST_AUTO_TEST_SUITE_END()
