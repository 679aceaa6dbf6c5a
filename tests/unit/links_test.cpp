// SPDX-License-Identifier: Apache-2.0
// The life of links between daemons.
#include "links_lab.h"

using namespace dlrover;
using namespace dlrover::transport;
using namespace dlrover::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(links)

BOOST_AUTO_TEST_CASE(messages_go_both_ways_in_order) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    for (std::uint32_t i = 0; i < 200; ++i) a.links->send("n2", envelope(i * 300, i));
    b.links->send("n1", envelope(3, 9));
    BOOST_TEST(lab.loop.run_until([&] { return b.received.size() == 200 && a.received.size() == 1; }));
    for (std::uint32_t i = 0; i < b.received.size(); ++i) {
        BOOST_TEST(b.received[i].first == "n1");
        BOOST_TEST(b.received[i].second.id == i);
        BOOST_TEST((b.received[i].second.payload == envelope(i * 300, i).payload));
    }
    BOOST_TEST(a.received[0].first == "n2");
}

BOOST_AUTO_TEST_CASE(the_largest_message_passes_and_a_larger_one_is_dropped) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    a.links->send("n2", envelope(max_body_bytes, 1));
    a.links->send("n2", envelope(max_body_bytes - 1024, 2));
    BOOST_TEST(lab.loop.run_until([&] { return b.received.size() == 1; }));
    BOOST_TEST(b.received[0].second.id == 2u);
    BOOST_TEST(a.links->up("n2"));
}

BOOST_AUTO_TEST_CASE(simultaneous_connects_leave_one_link) {
    for (int round = 0; round < 20; ++round) {
        Lab lab;
        Node &a = lab.start("n1"), &b = lab.start("n2");
        lab.connect(a, b);
        lab.connect(b, a);
        BOOST_TEST_REQUIRE(lab.both_up(a, b));
        lab.loop.run_for(60ms);
        BOOST_TEST_REQUIRE(lab.both_up(a, b));
        a.links->send("n2", envelope(1, 1));
        b.links->send("n1", envelope(1, 2));
        BOOST_TEST(lab.loop.run_until([&] { return a.received.size() == 1 && b.received.size() == 1; }));
        BOOST_TEST(a.ups("n2") - a.downs("n2") == 1u);
        BOOST_TEST(b.ups("n1") - b.downs("n1") == 1u);
    }
}

BOOST_AUTO_TEST_CASE(a_link_stays_while_either_side_wants_it) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    lab.connect(b, a);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    lab.loop.run_for(50ms);
    a.links->release("n2");
    lab.loop.run_for(100ms);
    BOOST_TEST(a.links->up("n2"));
    BOOST_TEST(b.links->up("n1"));
    b.links->release("n1");
    BOOST_TEST(lab.loop.run_until([&] { return !a.links->up("n2") && !b.links->up("n1"); }));
    BOOST_TEST(
        lab.loop.run_until([&] { return a.downs("n2") == a.ups("n2") && b.downs("n1") == b.ups("n1"); }));
}

BOOST_AUTO_TEST_CASE(a_peer_that_comes_back_is_found_again) {
    Lab lab;
    Node &a = lab.start("n1");
    BOOST_TEST(lab.fails(a, lab.nodes["n2"] = {.name = "n2", .address = "127.0.0.12"}));
    BOOST_TEST(!a.links->up("n2"));
    for (unsigned life = 1; life <= 3; ++life) {
        Node &b = lab.start("n2");
        BOOST_TEST_REQUIRE(lab.both_up(a, b));
        b.links.reset();
        BOOST_TEST(lab.loop.run_until([&] { return a.downs("n2") == life; }));
    }
}

/// The callback ends what the link's own code is still busy with.
BOOST_AUTO_TEST_CASE(a_peer_may_be_released_from_the_callback) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    unsigned told = 0;
    a.links->set_callbacks({.on_message = {}, .on_link = [&](const std::string &peer, bool up) {
                                told += !up;
                                a.links->release(peer);
                            }});
    b.links.reset();
    BOOST_TEST(lab.loop.run_until([&] { return told == 1; }));
    lab.loop.run_for(100ms);
    lab.start("n2");
    lab.loop.run_for(100ms);
    BOOST_TEST(!a.links->up("n2"));
    a.links->connect_to("n2", b.address);
    a.links->set_callbacks(
        {.on_message = [&](const std::string &peer, const PeerEnvelope &) { a.links->release(peer); },
         .on_link = {}});
    BOOST_TEST(lab.loop.run_until([&] { return a.links->up("n2"); }));
    for (int i = 0; i < 3; ++i) b.links->send("n1", envelope(10));
    BOOST_TEST(lab.loop.run_until([&] { return !a.links->up("n2"); }));
}

BOOST_AUTO_TEST_CASE(a_link_that_says_nothing_is_probed_and_a_dead_one_reset) {
    Lab lab;
    lab.config.session.probe = 30ms;
    lab.config.session.dead_after = 150ms;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    lab.loop.run_for(500ms);
    BOOST_TEST(a.downs("n2") == 0u);

    // A peer whose daemon does not run any more, but whose kernel still answers.
    PollLoop stopped;
    Node c{.name = "n3", .address = "127.0.0.13"};
    c.credentials = std::make_shared<FakeCredentials>(lab.realm, 0);
    PeerLinksConfig config = lab.config;
    config.node = "n3";
    config.listen = {.address = c.address, .port = lab.port};
    auto links = PeerLinks::create(stopped, config, c.credentials,
                                   [&](const std::string &peer, auto answer) { answer(lab.slurm.at(peer)); });
    BOOST_TEST_REQUIRE(links.ok());
    (*links)->connect_to("n1", a.address);
    BOOST_TEST_REQUIRE(lab.loop.run_until([&] {
        stopped.run_for(1ms);
        return a.links->up("n3");
    }));
    BOOST_TEST(lab.loop.run_until([&] { return a.downs("n3") == 1; }, 2s));
}

BOOST_AUTO_TEST_CASE(a_full_queue_resets_the_link) {
    Lab lab;
    lab.config.session.connection.queue_bytes = 4u << 20;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    // The loop does not turn, so b reads nothing.
    for (int i = 0; i < 64; ++i) a.links->send("n2", envelope(1 << 20));
    BOOST_TEST(a.downs("n2") == 0u);
    BOOST_TEST(lab.loop.run_until([&] { return a.downs("n2") == 1 && a.ups("n2") == 2; }));
}

BOOST_AUTO_TEST_CASE(munge_being_away_is_no_refusal_for_ever) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    {
        std::lock_guard lock(lab.realm->mutex);
        b.credentials->silent = true;
    }
    lab.connect(b, a);
    BOOST_TEST(lab.loop.run_until([&] { return b.credentials->asked_in_vain() >= 3; }));
    BOOST_TEST(!b.links->up("n1"));
    {
        std::lock_guard lock(lab.realm->mutex);
        b.credentials->silent = false;
    }
    BOOST_TEST(lab.both_up(a, b));
}

BOOST_AUTO_TEST_CASE(many_peers_at_once) {
    Lab lab;
    Node &hub = lab.start("n0", "127.0.0.10");
    lab.slurm["n0"] = "127.0.0.10";
    for (int i = 100; i < 140; ++i) {
        std::string name = "n" + std::to_string(i);
        lab.slurm[name] = "127.0.0." + std::to_string(i);
        lab.connect(lab.start(name), hub);
    }
    BOOST_TEST(lab.loop.run_until([&] { return hub.changes.size() >= 40; }, 30s));
    for (int i = 100; i < 140; ++i) BOOST_TEST(hub.links->up("n" + std::to_string(i)));
}

BOOST_AUTO_TEST_SUITE_END()
