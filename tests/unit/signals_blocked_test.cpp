// SPDX-License-Identifier: Apache-2.0
#include "base/signals_blocked.h"

#include <boost/test/unit_test.hpp>
#include <optional>
#include <thread>

using namespace dlrover;

namespace {

bool blocked(int signal) {
    sigset_t now;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return ::sigismember(&now, signal) == 1;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(signals_blocked)

BOOST_AUTO_TEST_CASE(for_this_thread_while_it_lives_and_for_new_ones_for_good) {
    sigset_t one, before;
    ::sigemptyset(&one);
    ::sigaddset(&one, SIGUSR2);
    ::pthread_sigmask(SIG_BLOCK, &one, &before);
    std::optional<SignalsBlocked> guard(std::in_place);
    BOOST_TEST(blocked(SIGTERM));
    bool terminated = false, interrupted = false;
    std::thread([&] { terminated = blocked(SIGTERM), interrupted = blocked(SIGINT); }).join();
    BOOST_TEST(terminated);
    BOOST_TEST(interrupted);
    guard.reset();
    BOOST_TEST(!blocked(SIGTERM));
    BOOST_TEST(blocked(SIGUSR2));  // as it was before
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BOOST_AUTO_TEST_SUITE_END()
