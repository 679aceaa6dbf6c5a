// SPDX-License-Identifier: Apache-2.0
// Whole links over loopback: each node has an address of its own in 127/8.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>

#include "common/log.h"
#include "fake_credentials.h"
#include "poll_loop.h"
#include "transport/peer_links.h"

namespace dlrover::test {

using namespace dlrover::transport;
using namespace std::chrono_literals;

inline std::uint16_t free_port() {
    auto socket = listen_on({.address = "127.0.0.1"});
    BOOST_TEST_REQUIRE(socket.ok());
    return local_address(socket->get())->port();
}

struct Node {
    std::string name, address;
    std::shared_ptr<FakeCredentials> credentials;
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
    PollLoop loop;
    std::shared_ptr<FakeRealm> realm = std::make_shared<FakeRealm>();
    std::uint16_t port = free_port();
    std::map<std::string, std::string> slurm{
        {"n1", "127.0.0.11"}, {"n2", "127.0.0.12"}, {"n3", "127.0.0.13"}};
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
        node.credentials = std::make_shared<FakeCredentials>(realm, uid);
        PeerLinksConfig c = config;
        c.node = name;
        c.listen = {.address = address, .port = port};
        auto links =
            PeerLinks::create(loop, c, node.credentials, [this](const std::string &peer, auto answer) {
                auto it = slurm.find(peer);
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

    /// Whether `node` opens so many credentials more: who tries again has been refused before.
    bool decodes(const Node &node, unsigned more) {
        unsigned before = node.credentials->decoded();
        return loop.run_until([&] { return node.credentials->decoded() >= before + more; });
    }
    /// Whether a link is tried and fails: the first time is a warning.
    bool fails(Node &from, Node &to) {
        auto before = log::count(log::Level::warning);
        connect(from, to);
        return loop.run_until([&] { return log::count(log::Level::warning) > before; });
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

inline PeerEnvelope envelope(std::size_t bytes, std::uint32_t id = 0) {
    PeerEnvelope e;
    e.job_id = 7;
    e.id = id;
    e.payload.assign(bytes, static_cast<std::uint8_t>(id));
    return e;
}

inline void write_all(int fd, const proto::Bytes &bytes) {
    pollfd p{fd, POLLOUT, 0};
    BOOST_TEST_REQUIRE(::poll(&p, 1, 2000) == 1);
    BOOST_TEST_REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                       static_cast<ssize_t>(bytes.size()));
}

}  // namespace dlrover::test
