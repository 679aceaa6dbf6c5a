// SPDX-License-Identifier: Apache-2.0
// Who gets no link: strangers, users, guests, those who say nothing or too much.
#include "links_lab.h"

using namespace dlrover;
using namespace dlrover::transport;
using namespace dlrover::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(links_refusal)

BOOST_AUTO_TEST_CASE(a_user_can_not_pose_as_a_daemon) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2", "127.0.0.12", 1000);
    lab.connect(a, b);
    lab.connect(b, a);
    BOOST_TEST(lab.decodes(a, 6));
    BOOST_TEST(a.changes.empty());
    BOOST_TEST(b.changes.empty());
}

BOOST_AUTO_TEST_CASE(a_node_that_calls_from_another_address_is_refused) {
    Lab lab;
    Node &a = lab.start("n1"), &c = lab.start("n2", "127.0.0.99");
    BOOST_TEST(lab.fails(c, a));
    BOOST_TEST(a.changes.empty());
    BOOST_TEST(!c.links->up("n1"));
}

BOOST_AUTO_TEST_CASE(a_connection_from_an_unprivileged_port_is_closed) {
    if (::geteuid() != 0) {
        BOOST_TEST_MESSAGE("skipped: only root can use privileged ports");
        return;
    }
    Lab lab;
    Node &a = lab.start("n1");
    auto address = parse_address(a.address);
    address->set_port(lab.port);
    auto socket = begin_connect(*address, "127.0.0.12", false);
    BOOST_TEST_REQUIRE(socket.ok());
    BOOST_TEST(lab.closed_by_peer(socket->get()));
}

BOOST_AUTO_TEST_CASE(a_replayed_credential_is_refused) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(b, a);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    b.links.reset();
    BOOST_TEST_REQUIRE(lab.loop.run_until([&] { return !a.links->up("n2"); }));
    Node &again = lab.start("n2");
    {
        std::lock_guard lock(lab.realm->mutex);
        again.credentials->replay = "FAKE:0";
    }
    lab.connect(again, a);
    BOOST_TEST(lab.decodes(a, 4));
    BOOST_TEST(a.ups("n2") == 1u);
    BOOST_TEST(!again.links->up("n1"));
}

/// Slurm does not know login hosts: they may ask, nothing more.
BOOST_AUTO_TEST_CASE(a_guest_may_ask_but_not_take_part) {
    Lab lab;
    Node &a = lab.start("n1"), &guest = lab.start("login", "127.0.0.50");
    lab.connect(guest, a);
    BOOST_TEST_REQUIRE(lab.both_up(a, guest));
    auto request = envelope(5, 1);
    request.kind = PeerEnvelope::Kind::request;
    request.uid = 1234;
    guest.links->send("n1", request);
    BOOST_TEST(lab.loop.run_until([&] { return a.received.size() == 1; }));
    BOOST_TEST(a.received[0].second.uid == 1234u);
    auto reply = envelope(6, 1);
    reply.kind = PeerEnvelope::Kind::reply;
    a.links->send("login", reply);
    BOOST_TEST(lab.loop.run_until([&] { return guest.received.size() == 1; }));
    guest.links->send("n1", envelope(5, 2));
    BOOST_TEST(lab.loop.run_until([&] { return a.downs("login") == 1; }));
    BOOST_TEST(a.received.size() == 1u);
}

BOOST_AUTO_TEST_CASE(guests_can_be_switched_off) {
    Lab lab;
    lab.config.addresses.accept_guests = false;
    Node &a = lab.start("n1"), &guest = lab.start("login", "127.0.0.50");
    BOOST_TEST(lab.fails(guest, a));
    BOOST_TEST(a.changes.empty());
}

BOOST_AUTO_TEST_CASE(an_oversize_frame_ends_the_connection_at_once) {
    Lab lab;
    Node &a = lab.start("n1");
    auto socket = lab.raw(a);
    write_all(socket.get(), {0xff, 0xff, 0xff, 0x7f, 1, 2, 3});
    BOOST_TEST(lab.closed_by_peer(socket.get(), 1s));
}

BOOST_AUTO_TEST_CASE(a_stranger_can_not_fill_memory_before_the_handshake) {
    Lab lab;
    Node &a = lab.start("n1");
    auto socket = lab.raw(a);
    // Announces 3 MiB, which is a legal frame of an authenticated peer, and sends it.
    write_all(socket.get(), {0, 0, 0x30, 0});
    proto::Bytes chunk(32768, 1);
    bool refused = lab.loop.run_until(
        [&] {
            ssize_t n = ::send(socket.get(), chunk.data(), chunk.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            return n < 0 && errno != EAGAIN;
        },
        150ms);
    BOOST_TEST(refused);
}

BOOST_AUTO_TEST_CASE(a_silent_peer_is_cut_off_by_the_deadlines) {
    Lab lab;
    lab.config.session.handshake_timeout = 300ms;
    Node &a = lab.start("n1");
    auto silent = lab.raw(a), half = lab.raw(a);
    write_all(half.get(), {40, 0, 0, 0, 1});
    auto began = lab.loop.now();
    BOOST_TEST(lab.closed_by_peer(half.get()));
    BOOST_TEST((lab.loop.now() - began < 290ms));
    BOOST_TEST(lab.closed_by_peer(silent.get()));
}

BOOST_AUTO_TEST_CASE(handshakes_of_one_host_are_bounded) {
    Lab lab;
    lab.config.max_unfinished_of_host = 3;
    Node &a = lab.start("n1");
    std::vector<UniqueFd> sockets;
    for (int i = 0; i < 5; ++i) sockets.push_back(lab.raw(a));
    // They are accepted in order: with the last all have been.
    BOOST_TEST(lab.closed_by_peer(sockets[4].get()));
    BOOST_TEST(lab.closed_by_peer(sockets[3].get()));
    for (std::size_t i = 0; i < 3; ++i) BOOST_TEST(!lab.closed_by_peer(sockets[i].get(), 10ms), i);
}

BOOST_AUTO_TEST_SUITE_END()
