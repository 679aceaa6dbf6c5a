// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "agent/loop.h"
#include "agent/process_tree.h"
#include "agent/spawn.h"

using namespace dlrover;
using namespace dlrover::agent;
using namespace std::chrono_literals;

namespace {

/// Forks a child that makes a grandchild in a session of its own; both sleep. The pids come through a pipe.
std::pair<pid_t, pid_t> make_family() {
    int ends[2];
    BOOST_REQUIRE(::pipe(ends) == 0);
    pid_t child = ::fork();
    if (child == 0) {
        pid_t grandchild = ::fork();
        if (grandchild == 0) {
            ::setsid();
            pid_t me = ::getpid();
            if (::write(ends[1], &me, sizeof me) < 0) ::_exit(1);
        }
        for (;;) ::pause();
    }
    pid_t grandchild = 0;
    BOOST_REQUIRE(::read(ends[0], &grandchild, sizeof grandchild) == sizeof grandchild);
    ::close(ends[0]);
    ::close(ends[1]);
    return {child, grandchild};
}

bool contains(const std::vector<pid_t> &all, pid_t pid) {
    return std::find(all.begin(), all.end(), pid) != all.end();
}

bool all_killed(pid_t spared = 0) {
    auto end = Loop::now() + 10s;
    while (!kill_descendants(::getpid(), spared) && Loop::now() < end) ::usleep(1000);
    return Loop::now() < end;
}

void reap_all() {
    while (::waitpid(-1, nullptr, 0) > 0) continue;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(agent_tree)

BOOST_AUTO_TEST_CASE(finds_and_kills_what_left_the_session) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto [child, grandchild] = make_family();
    auto all = descendants(::getpid());
    BOOST_TEST(contains(all, child));
    BOOST_TEST(contains(all, grandchild));
    BOOST_TEST(all_killed());
    reap_all();
    BOOST_TEST(descendants(::getpid()).empty());
    BOOST_TEST(::kill(grandchild, 0) == -1);
}

BOOST_AUTO_TEST_CASE(orphans_are_found) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto [child, grandchild] = make_family();
    ::kill(child, SIGKILL);
    BOOST_REQUIRE(::waitpid(child, nullptr, 0) == child);
    BOOST_TEST(contains(descendants(::getpid()), grandchild));
    BOOST_TEST(all_killed());
    reap_all();
}

BOOST_AUTO_TEST_CASE(the_spared_child_and_its_own_live) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto [spared, below] = make_family();
    auto [other, other_below] = make_family();
    BOOST_TEST(all_killed(spared));
    auto left = descendants(::getpid());
    BOOST_TEST(contains(left, spared));
    BOOST_TEST(contains(left, below));
    BOOST_TEST(!contains(left, other));
    BOOST_TEST(!contains(left, other_below));
    BOOST_TEST(all_killed());
    reap_all();
}

BOOST_AUTO_TEST_CASE(spawned_programs_get_a_clean_start) {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGUSR1);
    SpawnRequest request;
    request.signals = InheritedSignals::take(blocked);
    request.argv = {
        "/bin/sh", "-c",
        "read x; echo \"got:$x $A\"; ps -o sid= -p $$ | tr -d ' '; echo $$; grep SigBlk /proc/self/status; "
        "grep SigIgn /proc/self/status"};
    request.environment = {"A=1", "PATH=/usr/bin:/bin"};
    auto spawned = spawn(request);
    request.signals.restore();
    BOOST_REQUIRE(spawned.ok());
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(spawned->stdout_pipe.get(), buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(n));
    reap_all();
    std::string pid = std::to_string(spawned->pid);
    BOOST_TEST(text.starts_with("got: 1\n" + pid + "\n" + pid + "\n"), text);  // no stdin; leads its session
    BOOST_TEST(text.find("SigBlk:\t0000000000000000") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(the_loop_keeps_time_and_order) {
    auto loop = Loop::create().value();
    std::string order;
    loop->after(20ms, [&] { order += 'c'; });
    loop->after(0ms, [&] { order += 'a'; });
    Loop::Timer cancelled = loop->after(10ms, [&] { order += 'x'; });
    loop->after(10ms, [&] { order += 'b'; });
    loop->after(30ms, [&] { loop->stop(); });
    loop->cancel(cancelled);
    BOOST_TEST(cancelled == 0u);
    loop->run();
    BOOST_TEST(order == "abc");
}

BOOST_AUTO_TEST_CASE(a_callback_may_forget_another_that_is_ready) {
    auto loop = Loop::create().value();
    int first[2], second[2];
    BOOST_REQUIRE(::pipe(first) == 0 && ::pipe(second) == 0);
    int calls = 0;
    auto on_events = [&](std::uint32_t) {
        ++calls;
        loop->forget(first[0]);
        loop->forget(second[0]);
        loop->stop();
    };
    BOOST_REQUIRE(loop->watch(first[0], 1, on_events).ok());
    BOOST_REQUIRE(loop->watch(second[0], 1, on_events).ok());
    BOOST_REQUIRE(::write(first[1], "x", 1) == 1 && ::write(second[1], "x", 1) == 1);
    loop->run();
    BOOST_TEST(calls == 1);
    for (int fd : {first[0], first[1], second[0], second[1]}) ::close(fd);
}

BOOST_AUTO_TEST_SUITE_END()
