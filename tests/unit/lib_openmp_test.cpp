// SPDX-License-Identifier: Apache-2.0
// Loops by the program's OpenMP team. A program of its own: its team spins for ever.
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "lib/openmp_team.h"
#include "lib/parallel.h"

using namespace dlrover::lib;
using namespace std::chrono_literals;

namespace {

using Threads = std::set<std::thread::id>;

/// A program with OpenMP, in which a region of two threads has ended.
struct Team {
    Team() {
        ::setenv("OMP_NUM_THREADS", "2", 1);
        ::setenv("OMP_WAIT_POLICY", "active", 1);
        void *library = ::dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
        BOOST_REQUIRE_MESSAGE(library != nullptr, "libgomp is not there: it comes with the compiler");
        run_by_openmp_team([this] { note(threads); });
        BOOST_REQUIRE(threads.size() == 2u);
    }
    /// Where there are fewer processors than threads it spins but a moment.
    bool spins() {
        auto end = std::chrono::steady_clock::now() + 10s;
        while (!openmp_team_spins() && std::chrono::steady_clock::now() < end) run_by_openmp_team([] {});
        return std::chrono::steady_clock::now() < end;
    }
    void note(Threads &in) {
        std::lock_guard lock(mutex);
        in.insert(std::this_thread::get_id());
    }
    std::mutex mutex;
    Threads threads;
};

Team &team() {
    static Team only;
    return only;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(openmp_team)

BOOST_AUTO_TEST_CASE(without_openmp_there_is_none) {
    BOOST_TEST(::dlsym(RTLD_DEFAULT, "GOMP_parallel") == nullptr);
    BOOST_TEST(!openmp_team_spins());
}

BOOST_AUTO_TEST_CASE(a_team_that_spins_runs_the_loop) {
    BOOST_REQUIRE(team().spins());
    Threads ran;
    std::thread::id first_ran;
    std::vector<std::atomic<int>> done(1000);
    parallel_for(
        done.size(), 2,
        [&](std::uint64_t i) {
            ++done[i];
            team().note(ran);
            std::this_thread::sleep_for(20us);
        },
        [&] { first_ran = std::this_thread::get_id(); });
    for (auto &count : done) BOOST_REQUIRE(count == 1);
    BOOST_TEST((first_ran == std::this_thread::get_id()));
    BOOST_TEST((ran == team().threads));
}

BOOST_AUTO_TEST_CASE(what_the_caller_throws_reaches_it_after_the_loop) {
    BOOST_REQUIRE(team().spins());
    std::atomic<int> running{0};
    auto fail = [] { throw std::runtime_error("no"); };
    auto body = [&](std::uint64_t) {
        ++running;
        std::this_thread::sleep_for(1ms);
        --running;
    };
    BOOST_CHECK_THROW(parallel_for(10, 2, body, fail), std::runtime_error);
    BOOST_TEST(running == 0);
    BOOST_TEST(team().spins(), "and the team is there");
}

BOOST_AUTO_TEST_CASE(one_thread_is_one_thread) {
    Threads ran;
    parallel_for(100, 1, [&](std::uint64_t) { team().note(ran); });
    BOOST_TEST((ran == Threads{std::this_thread::get_id()}));
}

BOOST_AUTO_TEST_CASE(other_threads_have_none) {
    BOOST_REQUIRE(team().spins());
    bool spins = true;
    std::thread([&] { spins = openmp_team_spins(); }).join();
    BOOST_TEST(!spins);
}

BOOST_AUTO_TEST_CASE(nor_has_a_child) {
    BOOST_REQUIRE(team().spins());
    pid_t child = ::fork();
    if (child == 0) {
        std::atomic<bool> stop{false};
        std::thread busy([&] {  // as a team's would be
            while (!stop) {
            }
        });
        bool spins = openmp_team_spins();
        std::atomic<int> count{0};
        parallel_for(10, 2, [&](std::uint64_t) { ++count; });
        stop = true;
        busy.join();
        ::_exit(spins || count != 10 ? 1 : 0);
    }
    int status = -1;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_SUITE_END()
