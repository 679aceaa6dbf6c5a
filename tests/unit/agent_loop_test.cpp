// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/time.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <string>
#include <thread>

#include "agent/loop.h"

using namespace dlrover;
using namespace dlrover::agent;
using namespace std::chrono_literals;

namespace {

struct Pipe {
    Pipe() { BOOST_REQUIRE(::pipe(ends) == 0); }
    ~Pipe() {
        ::close(ends[0]);
        ::close(ends[1]);
    }
    void fill() const { (void)!::write(ends[1], "x", 1); }
    void take() const {
        char byte;
        (void)!::read(ends[0], &byte, 1);
    }
    int ends[2];
};

/// A loop, what happened in it, and a pipe whose bytes are written down.
struct Fixture {
    Fixture() {
        auto made = Loop::create();
        BOOST_REQUIRE(made.ok());
        loop = std::move(*made);
        BOOST_REQUIRE(loop->watch(news.ends[0], EPOLLIN,
                                  [this](std::uint32_t) {
                                      news.take();
                                      story += "news ";
                                  })
                          .ok());
    }
    void time_at(Loop::Duration delay) {
        loop->after(delay, [this] {
            story += "time";
            loop->stop();
        });
    }
    std::unique_ptr<Loop> loop;
    Pipe news;
    std::string story;
};

Pipe *filled_by_signal = nullptr;

}  // namespace

BOOST_FIXTURE_TEST_SUITE(agent_loop, Fixture)

/// As where a file system hangs for a while that output is written to.
BOOST_AUTO_TEST_CASE(what_came_while_a_handler_took_long_is_served_before_the_timers) {
    Pipe slow;
    BOOST_REQUIRE(loop->watch(slow.ends[0], EPOLLIN,
                              [&](std::uint32_t) {
                                  slow.take();
                                  std::this_thread::sleep_for(60ms);
                                  news.fill();
                              })
                      .ok());
    slow.fill();
    time_at(20ms);
    loop->run();
    BOOST_TEST(story == "news time");
}

/// As where the whole step is stopped and goes on: the wait ends by the signal, whatever has come.
BOOST_AUTO_TEST_CASE(what_came_while_the_process_stood_still_is_served_before_the_timers) {
    filled_by_signal = &news;
    struct sigaction action {
    }, former{};
    action.sa_handler = [](int) {
        timespec stands{0, 80'000'000};
        ::nanosleep(&stands, nullptr);
        filled_by_signal->fill();
    };
    BOOST_REQUIRE(::sigaction(SIGALRM, &action, &former) == 0);
    time_at(40ms);
    itimerval soon{{0, 0}, {0, 10'000}};
    BOOST_REQUIRE(::setitimer(ITIMER_REAL, &soon, nullptr) == 0);
    loop->run();
    ::sigaction(SIGALRM, &former, nullptr);
    BOOST_TEST(story == "news time");
}

BOOST_AUTO_TEST_CASE(the_loop_keeps_time_and_order) {
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
