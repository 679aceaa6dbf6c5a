// SPDX-License-Identifier: Apache-2.0
// A daemon that sends all ranks to a checkpoint on storage: stored_daemon -- FOLDER TERM NUMBER STEP RANKS
// prints its socket's path and serves until its standard input ends.
#include <cstdio>
#include <string>

#include "tests/unit/lib_fake_daemon.h"

#define BOOST_TEST_MODULE stored_daemon
#include <boost/test/included/unit_test.hpp>

BOOST_AUTO_TEST_CASE(serves) {
    auto &suite = boost::unit_test::framework::master_test_suite();
    BOOST_REQUIRE(suite.argc == 6);
    auto number = [&](int i) { return std::stoull(suite.argv[i]); };
    dlrover::test::FakeDaemon daemon;
    daemon.restore_from(suite.argv[1], {number(2), number(3)}, number(4),
                        static_cast<std::uint32_t>(number(5)));
    std::printf("%s\n", daemon.socket_path().c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}
