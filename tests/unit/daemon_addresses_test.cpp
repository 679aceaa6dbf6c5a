// SPDX-License-Identifier: Apache-2.0
// Daemons that come back while Slurm does not answer know each other's addresses.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "daemon/backoff.h"
#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;

namespace {

/// Both daemons have been killed at once, and come back while Slurm is silent.
struct Silence : TwoNodes {
    GenerationId running{Term(w1.generation->term()), w1.generation->number()};

    Silence() { save_everywhere(5); }
    void restart_both() {
        slurm.silent = true;
        for (Node *node : {&n1, &n2}) {
            node->daemon.reset();
            node->peers.reset();
        }
        dialed.clear();
        for (Node *node : {&n1, &n2}) node->boot(node->keeper.copy());
        loop.advance(100ms);
    }
    void start_agents() {
        a1 = n1.start_agent(alice, running);
        a2 = n2.start_agent(alice, running);
    }
    /// As a daemon of before left them.
    void forget_records() {
        for (Node *node : {&n1, &n2})
            node->edit_group_record([](records::GroupRecordT &group) { group.addresses.clear(); });
    }
};

/// Of the agent's lease.
std::ptrdiff_t renewals(const Node &node, const Client &agent) {
    return std::ranges::count(node.port->history, std::pair(agent.id, local::Body::LeaseRenewed));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_addresses)

BOOST_FIXTURE_TEST_CASE(daemons_that_come_back_while_slurm_is_silent_link_again, Silence) {
    restart_both();
    BOOST_TEST(n1.peers->up("n2"));
    BOOST_TEST((dialed[{"n1", "n2"}] == "10.0.0.n2"));
    BOOST_TEST((dialed[{"n2", "n1"}] == "10.0.0.n1"));
    start_agents();
    run(30s);
    BOOST_TEST(renewals(n1, a1) > 10);
    BOOST_TEST(renewals(n2, a2) > 10);
    BOOST_TEST(!n1.port->take<local::StopWorkersT>(a1.id).has_value());
    BOOST_TEST(!n2.port->take<local::StopWorkersT>(a2.id).has_value());
    n1.exited(a1, w1, 0, SIGKILL);
    await_worlds();
    BOOST_TEST(w1.restore_step == 5);
}

BOOST_FIXTURE_TEST_CASE(an_address_that_slurm_corrects_is_used_and_on_record, Silence) {
    restart_both();
    slurm.addresses["n2"] = "10.0.0.99";
    slurm.speak();
    run(100ms);
    BOOST_TEST((dialed[{"n1", "n2"}] == "10.0.0.99"));
    BOOST_TEST((dialed[{"n2", "n1"}] == "10.0.0.n1"));
    BOOST_TEST(n1.peers->up("n2"));
    restart_both();
    BOOST_TEST((dialed[{"n1", "n2"}] == "10.0.0.99"));
}

BOOST_FIXTURE_TEST_CASE(a_node_that_slurm_does_not_know_any_more_is_forgotten, Silence) {
    restart_both();
    slurm.addresses.erase("n2");
    slurm.speak();
    run(100ms);
    std::vector<std::string> left{"10.0.0.n1", ""};
    BOOST_TEST(n1.group_record().addresses == left, boost::test_tools::per_element());
    n2.daemon.reset();
    n2.peers.reset();
    run(100ms);
    n2.peers = std::make_unique<TestNetwork>(*this, "n2");
    run(1s);
    BOOST_TEST(!n1.peers->up("n2"), "nobody calls it");
}

BOOST_FIXTURE_TEST_CASE(without_addresses_on_record_a_daemon_waits_for_slurm, Silence) {
    forget_records();
    restart_both();
    BOOST_TEST(dialed.empty());
    BOOST_TEST(!n1.peers->up("n2"));
    start_agents();
    slurm.speak();
    run(100ms);
    BOOST_TEST(n1.peers->up("n2"));
    BOOST_TEST((n1.group_record().addresses == std::vector<std::string>{"10.0.0.n1", "10.0.0.n2"}));
    run(10s);
    BOOST_TEST(!n1.port->take<local::StopWorkersT>(a1.id).has_value());
}

BOOST_FIXTURE_TEST_CASE(addresses_that_do_not_fit_into_the_record_are_left_out, Silence) {
    restart_both();
    slurm.addresses["n2"] = std::string(200'000, 'x');
    slurm.speak();
    run(100ms);
    BOOST_TEST(n1.group_record().addresses.empty());
    BOOST_TEST((dialed[{"n1", "n2"}].size() == 200'000u));
}

BOOST_FIXTURE_TEST_CASE(slurm_is_asked_again_ever_more_seldom_and_when_it_is_back, Silence) {
    forget_records();
    slurm.away = true;
    restart_both();
    slurm.speak();
    run(5s);
    slurm.addresses_asked = 0;
    run(120s);
    BOOST_TEST(slurm.addresses_asked >= 6u);   // of two daemons
    BOOST_TEST(slurm.addresses_asked <= 18u);  // a question every 2 s would be 120
    BOOST_TEST(!n1.peers->up("n2"));
    slurm.away = false;
    slurm.returned();
    run(100ms);
    BOOST_TEST(n1.peers->up("n2"));
    slurm.addresses_asked = 0;
    run(60s);
    BOOST_TEST(slurm.addresses_asked == 0u);
}

BOOST_AUTO_TEST_CASE(pauses_double_up_to_the_longest) {
    Backoff backoff(2s, 30s);
    BOOST_TEST(!backoff.failing());
    for (int round = 0; round < 2; ++round) {
        for (EventLoop::Time due : {2s, 4s, 8s, 16s, 30s, 30s}) {
            auto pause = backoff.next();
            BOOST_TEST((pause >= due / 2 && pause <= due + due / 2));
        }
        BOOST_TEST(backoff.failing());
        backoff.reset();
    }
    std::set<EventLoop::Time> different;
    for (int i = 0; i < 8; ++i) different.insert(Backoff(2s, 30s).next());
    BOOST_TEST(different.size() > 1u);
}

BOOST_AUTO_TEST_SUITE_END()
