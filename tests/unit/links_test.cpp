// SPDX-License-Identifier: Apache-2.0
// Whole links over loopback: each node has an address of its own in 127/8.
#include <poll.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "common/log.h"
#include "fake_credentials.h"
#include "poll_loop.h"
#include "transport/peer_links.h"

using namespace dlrover;
using namespace dlrover::transport;
using namespace std::chrono_literals;

namespace {

std::uint16_t free_port() {
    auto socket = listen_on({.address = "127.0.0.1"});
    BOOST_TEST_REQUIRE(socket.ok());
    return local_address(socket->get())->port();
}

struct Node {
    std::string name, address;
    std::shared_ptr<test::FakeCredentials> credentials;
    std::unique_ptr<PeerLinks> links;
    std::vector<std::pair<std::string, PeerEnvelope>> received;
    std::vector<std::string> changes;  ///< "+n2", "-n2"
    unsigned ups(const std::string &peer) const {
        return static_cast<unsigned>(std::count(changes.begin(), changes.end(), "+" + peer));
    }
    unsigned downs(const std::string &peer) const {
        return static_cast<unsigned>(std::count(changes.begin(), changes.end(), "-" + peer));
    }
};

struct Lab {
    test::PollLoop loop;
    std::shared_ptr<test::FakeRealm> realm = std::make_shared<test::FakeRealm>();
    std::uint16_t port = free_port();
    std::map<std::string, std::string> slurm{
        {"n1", "127.0.0.11"}, {"n2", "127.0.0.12"}, {"n3", "127.0.0.13"}};
    bool slurm_away = false;
    PeerLinksConfig config;
    std::map<std::string, Node> nodes;

    Lab() {
        config.cluster = "lab";
        config.privileged_ports = ::geteuid() == 0;
        config.session.handshake_timeout = 2s;
        config.session.connection.frame_timeout = 200ms;
        config.reconnect_min = 10ms;
        config.reconnect_max = 50ms;
    }

    Node &start(const std::string &name, const std::string &address, std::uint32_t uid = 0) {
        Node &node = nodes[name];
        node.name = name;
        node.address = address;
        node.credentials = std::make_shared<test::FakeCredentials>(realm, uid);
        PeerLinksConfig c = config;
        c.node = name;
        c.listen = {.address = address, .port = port};
        auto links =
            PeerLinks::create(loop, c, node.credentials, [this](const std::string &peer, auto answer) {
                auto it = slurm.find(peer);
                if (slurm_away)
                    return loop.post([answer] { answer(Status(Code::unavailable, "slurmctld is away")); });
                loop.post([answer, found = it != slurm.end(), text = it == slurm.end() ? "" : it->second] {
                    found ? answer(text) : answer(Status(Code::not_found, "no such node"));
                });
            });
        BOOST_TEST_REQUIRE(links.ok(), links.status().message());
        node.links = std::move(*links);
        node.links->set_callbacks(
            {.on_message = [&node](const std::string &from,
                                   PeerEnvelope e) { node.received.emplace_back(from, std::move(e)); },
             .on_link = [&node](const std::string &peer,
                                bool up) { node.changes.push_back((up ? "+" : "-") + peer); }});
        return node;
    }
    Node &start(const std::string &name) { return start(name, slurm.at(name)); }
    void connect(Node &from, Node &to) { from.links->connect_to(to.name, to.address); }
    bool both_up(Node &a, Node &b) {
        return loop.run_until([&] { return a.links->up(b.name) && b.links->up(a.name); });
    }

    /// A raw connection to a node, from its peer's address.
    UniqueFd raw(Node &to, const std::string &source = "127.0.0.12") {
        auto address = parse_address(to.address);
        address->set_port(port);
        auto socket = begin_connect(*address, source, config.privileged_ports);
        BOOST_TEST_REQUIRE(socket.ok(), socket.status().message());
        return std::move(*socket);
    }
    bool closed_by_peer(int fd, EventLoop::Time limit = 5s) {
        return loop.run_until(
            [&] {
                std::uint8_t buffer[4096];
                ssize_t n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
                return n == 0 || (n < 0 && errno != EAGAIN);
            },
            limit);
    }
};

PeerEnvelope envelope(std::size_t bytes, std::uint32_t id = 0) {
    PeerEnvelope e;
    e.job_id = 7;
    e.id = id;
    e.payload.assign(bytes, static_cast<std::uint8_t>(id));
    return e;
}

void write_all(int fd, const proto::Bytes &bytes) {
    pollfd p{fd, POLLOUT, 0};
    BOOST_TEST_REQUIRE(::poll(&p, 1, 2000) == 1);
    BOOST_TEST_REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                       static_cast<ssize_t>(bytes.size()));
}

}  // namespace

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

BOOST_AUTO_TEST_CASE(an_older_daemon_gets_only_what_it_takes) {
    Lab lab;
    Node &a = lab.start("n1");
    lab.config.session.kinds = 6;
    Node &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST(a.links->takes("n2", PeerEnvelope::Kind::pmix), "nothing is known yet");
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    BOOST_TEST(!a.links->takes("n2", PeerEnvelope::Kind::pmix));
    BOOST_TEST(a.links->takes("n2", PeerEnvelope::Kind::join));
    BOOST_TEST(b.links->takes("n1", PeerEnvelope::Kind::pmix));
    for (auto kind : {PeerEnvelope::Kind::pmix, PeerEnvelope::Kind::join}) {
        auto e = envelope(3);
        e.kind = kind;
        a.links->send("n2", e);
    }
    BOOST_TEST(lab.loop.run_until([&] { return !b.received.empty(); }));
    BOOST_REQUIRE(b.received.size() == 1u);
    BOOST_TEST((b.received[0].second.kind == PeerEnvelope::Kind::join));
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
    BOOST_TEST(a.links->own_address() == "127.0.0.11");
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
    lab.connect(a, lab.nodes["n2"] = {.name = "n2", .address = "127.0.0.12"});
    lab.loop.run_for(100ms);
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

BOOST_AUTO_TEST_CASE(a_user_can_not_pose_as_a_daemon) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2", "127.0.0.12", 1000);
    lab.connect(a, b);
    lab.connect(b, a);
    lab.loop.run_for(300ms);
    BOOST_TEST(a.changes.empty());
    BOOST_TEST(b.changes.empty());
}

BOOST_AUTO_TEST_CASE(a_node_that_calls_from_another_address_is_refused) {
    Lab lab;
    Node &a = lab.start("n1"), &c = lab.start("n2", "127.0.0.99");
    lab.connect(c, a);
    lab.loop.run_for(300ms);
    BOOST_TEST(a.changes.empty());
    BOOST_TEST(!c.links->up("n1"));
}

BOOST_AUTO_TEST_CASE(while_slurm_is_away_only_nodes_of_known_addresses_are_let_in) {
    Lab lab;
    lab.slurm_away = true;
    Node &a = lab.start("n1");
    a.links->connect_to("n2", "127.0.0.12");
    Node &impostor = lab.start("n2", "127.0.0.99"), &stranger = lab.start("n3");
    lab.connect(impostor, a);
    lab.connect(stranger, a);
    lab.loop.run_for(300ms);
    BOOST_TEST(a.changes.empty());
    impostor.links.reset();
    Node &b = lab.start("n2");
    lab.connect(b, a);
    BOOST_TEST(lab.both_up(a, b));
    BOOST_TEST(a.ups("n3") == 0u);
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
    lab.loop.run_for(300ms);
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
    lab.connect(guest, a);
    lab.loop.run_for(200ms);
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
    lab.loop.run_for(50ms);
    unsigned closed = 0;
    for (auto &socket : sockets) closed += lab.closed_by_peer(socket.get(), 20ms);
    BOOST_TEST(closed == 2u);
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
    test::PollLoop stopped;
    Node c{.name = "n3", .address = "127.0.0.13"};
    c.credentials = std::make_shared<test::FakeCredentials>(lab.realm, 0);
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

/// It is sent again by whoever has sent it, and no group's heartbeats are lost for it.
BOOST_AUTO_TEST_CASE(what_pmix_sends_fills_no_queue) {
    Lab lab;
    lab.config.session.connection.queue_bytes = 4u << 20;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    lab.connect(a, b);
    BOOST_TEST_REQUIRE(lab.both_up(a, b));
    for (int i = 0; i < 64; ++i) {
        auto parcel = envelope(1 << 20);
        parcel.kind = PeerEnvelope::Kind::pmix;
        a.links->send("n2", std::move(parcel));
    }
    a.links->send("n2", envelope(3, 9));
    auto last_came = [&] { return !b.received.empty() && b.received.back().second.id == 9; };
    BOOST_TEST(lab.loop.run_until(last_came));
    BOOST_TEST(b.received.size() < 64u);
    BOOST_TEST(a.downs("n2") == 0u);
}

BOOST_AUTO_TEST_CASE(munge_being_away_is_no_refusal_for_ever) {
    Lab lab;
    Node &a = lab.start("n1"), &b = lab.start("n2");
    {
        std::lock_guard lock(lab.realm->mutex);
        b.credentials->silent = true;
    }
    lab.connect(b, a);
    lab.loop.run_for(150ms);
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
