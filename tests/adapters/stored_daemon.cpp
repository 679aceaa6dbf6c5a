// SPDX-License-Identifier: Apache-2.0
// A daemon for adapters' ranks; prints its socket's path and serves until its standard input ends.
//   stored_daemon -- FOLDER TERM NUMBER STEP RANKS    sends all ranks to that checkpoint on storage
//   stored_daemon -- with-storage|without-storage     serves one rank, and says at the end what is sealed
#include <cstdio>
#include <string>

#include "tests/unit/lib_fake_daemon.h"

#define BOOST_TEST_MODULE stored_daemon
#include <boost/test/included/unit_test.hpp>

BOOST_AUTO_TEST_CASE(serves) {
    auto &suite = boost::unit_test::framework::master_test_suite();
    BOOST_REQUIRE((suite.argc == 2 || suite.argc == 6));
    auto number = [&](int i) { return std::stoull(suite.argv[i]); };
    dlrover::test::FakeDaemon daemon;
    if (suite.argc == 6)
        daemon.restore_from(suite.argv[1], {number(2), number(3)}, number(4),
                            static_cast<std::uint32_t>(number(5)));
    else
        daemon.storage_told = suite.argv[1] == std::string("with-storage");
    std::printf("%s\n", daemon.socket_path().c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    for (const auto &seal : daemon.sealed())
        std::printf("step %ju %s\n", static_cast<std::uintmax_t>(seal.train_step),
                    seal.to_storage ? "to storage" : "in memory");
}
