// SPDX-License-Identifier: Apache-2.0
// Ranks that stay, under daemons whose time is the test's: who is waited for, how long, and what is too much.
#include <csignal>

#include <boost/test/unit_test.hpp>

#include "proto/local_codec.h"
#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

constexpr int exit_status_3 = 3 << 8;

/// On n1 both ranks stay; on n2 they are ended, as ever.
struct Stay : TwoNodes {
    std::vector<Client> connections;

    Stay() { greet(); }
    void greet() {
        for (std::uint16_t rank : {0, 1}) connections.push_back(n1.start_worker(w1, rank, true));
    }
    void close() {
        for (const Client &client : std::exchange(connections, {})) n1.daemon->on_closed(client);
    }
    Client leave(std::uint16_t local_rank) { return leave(w1, local_rank); }
    Client leave(const local::WorldPublishedT &from, std::uint16_t local_rank) {
        Client client = n1.client(local::Role::Worker, alice);
        local::LeaveGenerationT leave;
        leave.job_id = 7;
        leave.generation = std::make_unique<proto::Generation>(*from.generation);
        leave.local_rank = local_rank;
        n1.say(client, std::move(leave));
        return client;
    }
    static local::WorkersStoppedT stopped(const local::WorldPublishedT &w) {
        local::WorkersStoppedT stopped;
        stopped.generation = std::make_unique<proto::Generation>(*w.generation);
        return stopped;
    }
    /// A rank of n2 fails, and n2 has ended its own.
    void fail() {
        n2.exited(a2, w2, 0, exit_status_3);
        run(100ms);
        n2.say(a2, stopped(w2), 0);
        run(100ms);
    }
    std::optional<bool> told_to_stay() {
        auto stop = n1.port->take<local::StopWorkersT>(a1.id);
        return stop ? std::optional(stop->stays) : std::nullopt;
    }
    bool has_world() {
        auto world = n1.port->take<local::WorldPublishedT>(a1.id);
        if (world) w1 = std::move(*world);
        if (auto other = n2.port->take<local::WorldPublishedT>(a2.id)) w2 = std::move(*other);
        return world.has_value();
    }
    /// The agent says that the processes go on, or are new ones.
    void go_on(const std::vector<std::string> &variables = {"RANK=0"}, bool stayed = true) {
        for (std::uint16_t rank : {0, 1}) {
            local::WorkerStartedT started;
            started.generation = std::make_unique<proto::Generation>(*w1.generation);
            started.local_rank = rank;
            started.stayed = stayed;
            started.variables = variables;
            n1.say(a1, std::move(started), 0);
        }
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_stay, Stay)

BOOST_AUTO_TEST_CASE(the_next_world_waits_for_every_rank_of_the_agent) {
    fail();
    BOOST_TEST((told_to_stay() == true));
    close();
    // The end of a lost connection may be read late: one rank is not two.
    Client first = leave(0), again = leave(0);
    run(1s);
    BOOST_TEST(!has_world());
    Client second = leave(1);
    run(1s);
    BOOST_TEST(has_world());
    go_on();
    for (const Client &client : {first, again, second})
        BOOST_TEST(n1.port->take<local::NextWorldT>(client.id).has_value());
}

BOOST_AUTO_TEST_CASE(who_has_not_left_after_three_seconds_is_ended_with_the_others_of_his_agent) {
    fail();
    BOOST_TEST((told_to_stay() == true));
    close();
    leave(0);
    run(2600ms);
    BOOST_TEST(!told_to_stay().has_value());
    run(1s);
    BOOST_TEST((told_to_stay() == false));
    BOOST_TEST(has_world());  // to be begun when they are gone
}

/// An agent of an older version, say, which the word that they stay means nothing to.
BOOST_AUTO_TEST_CASE(an_agent_may_end_its_ranks_all_the_same) {
    fail();
    BOOST_TEST((told_to_stay() == true));
    close();
    n1.say(a1, stopped(w1), 0);
    run(500ms);
    BOOST_TEST(has_world());
    go_on({}, false);
    greet();
    run(5s);
    BOOST_TEST(!told_to_stay().has_value());
}

BOOST_AUTO_TEST_CASE(each_end_has_three_seconds_of_its_own) {
    fail();
    close();
    leave(0);
    leave(1);
    run(100ms);
    BOOST_REQUIRE(has_world());
    go_on();
    greet();
    run(2s);
    n1.port->sent[a1.id].clear();
    fail();
    BOOST_TEST((told_to_stay() == true));
    close();
    run(2s);  // of the first one's time nothing is left by now
    BOOST_TEST(!told_to_stay().has_value());
    leave(0);
    leave(1);
    run(1s);
    BOOST_TEST(has_world());
}

BOOST_AUTO_TEST_CASE(only_where_all_ranks_of_an_agent_stay) {
    n1.daemon->on_closed(connections.back());
    connections.back() = n1.start_worker(w1, 1, false);
    fail();
    BOOST_TEST((told_to_stay() == false));
}

BOOST_AUTO_TEST_CASE(a_rank_that_leaves_alone_fails_when_a_lost_leader_would_have_been_followed) {
    close();
    leave(0);
    leave(1);
    run(5s);
    BOOST_TEST(count_events(n1, "which nobody else did") == 0u);
    run(3s);
    BOOST_TEST(count_events(n1, "which nobody else did") > 0u);
    n2.say(a2, stopped(w2), 0);
    run(1s);
    BOOST_TEST(has_world());
}

BOOST_AUTO_TEST_CASE(a_rank_with_another_connection_has_not_left_but_fails_all_the_same) {
    n1.daemon->on_closed(connections.back());
    connections.pop_back();
    Client left = leave(0);
    auto refused = n1.port->take<local::FailureT>(left.id);
    BOOST_REQUIRE(refused.has_value());
    BOOST_TEST((refused->code == local::Refusal::NotReady));
    for (int i = 0; i < 32; ++i) {  // as the library does
        n1.daemon->on_closed(left);
        run(250ms);
        left = leave(0);
    }
    BOOST_TEST(count_events(n1, "Rank 0 has left the generation, which nobody else did") == 1u);
}

BOOST_AUTO_TEST_CASE(who_leaves_alone_and_is_gone_again_has_not_left) {
    Client left = leave(0);  // somebody else of the user's, with rank 0's numbers
    n1.daemon->on_closed(left);
    run(20s);
    BOOST_TEST(count_events(n1, "which nobody else did") == 0u);
}

/// Its time is its own, not that of somebody who was there before.
BOOST_AUTO_TEST_CASE(who_leaves_alone_later_has_as_long_as_the_first_one_had) {
    n1.daemon->on_closed(leave(0));
    run(6s);
    close();
    leave(1);
    run(5s);
    BOOST_TEST(count_events(n1, "which nobody else did") == 0u);
    run(3s);
    BOOST_TEST(count_events(n1, "Rank 1 has left the generation, which nobody else did") == 1u);
}

BOOST_AUTO_TEST_CASE(ranks_that_wait_do_not_keep_others_waiting_when_their_agent_is_gone) {
    fail();
    close();
    Client first = leave(0), second = leave(1);
    n1.daemon->on_closed(a1);
    run(1s);
    a1 = n1.start_agent(alice);
    run(20s);
    BOOST_TEST(has_world());
    go_on({}, false);
    BOOST_TEST(!n1.port->take<local::NextWorldT>(first.id).has_value(), "it is not who was started");
    BOOST_TEST(!n1.port->take<local::NextWorldT>(second.id).has_value());
}

BOOST_AUTO_TEST_CASE(a_second_end_while_the_first_one_is_waited_for) {
    fail();
    close();
    leave(0);
    n2.exited(a2, w2, 1, exit_status_3);  // of the same generation: nothing new
    leave(1);
    run(500ms);
    BOOST_REQUIRE(has_world());
    go_on();
    greet();
    n2.exited(a2, w2, 0, exit_status_3);  // at once, before n1's ranks have done anything
    run(100ms);
    n2.say(a2, stopped(w2), 0);
    close();
    leave(1);
    leave(0);
    run(1s);
    BOOST_TEST(has_world());
}

BOOST_AUTO_TEST_CASE(a_daemon_that_is_back_may_hear_of_the_ranks_before_their_agent) {
    fail();
    close();
    n1.restart();
    leave(0);
    leave(1);
    run(500ms);
    a1 = n1.start_agent(alice, from_proto(w1.generation), true);
    run(8s);
    BOOST_TEST(has_world());
    BOOST_TEST((told_to_stay() != false));
}

BOOST_AUTO_TEST_CASE(the_end_of_the_group_is_told_and_nothing_is_kept) {
    fail();
    close();
    Client left = leave(0);
    n2.exited(a2, w2, 1, exit_status_3);
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    n1.say(a1, std::move(signal), 0);
    run(3s);
    auto refused = n1.port->take<local::FailureT>(left.id);
    BOOST_REQUIRE(refused.has_value());
    BOOST_TEST((refused->code == local::Refusal::Stale));
    refused = n1.port->take<local::FailureT>(leave(1).id);
    BOOST_REQUIRE(refused.has_value());
    BOOST_TEST((refused->code == local::Refusal::Stale));
}

BOOST_AUTO_TEST_CASE(what_an_agent_may_say_of_an_environment_is_bounded) {
    fail();
    close();
    Client left = leave(0);
    leave(1);
    run(100ms);
    BOOST_REQUIRE(has_world());
    go_on(std::vector<std::string>(proto::max_next_world_bytes / sizeof(std::string) + 1));  // empty ones
    auto refused = n1.port->take<local::FailureT>(left.id);
    BOOST_REQUIRE(refused.has_value());
    BOOST_TEST((refused->code == local::Refusal::Internal));
}

BOOST_AUTO_TEST_SUITE_END()
