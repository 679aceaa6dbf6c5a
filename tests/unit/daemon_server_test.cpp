// SPDX-License-Identifier: Apache-2.0
#include "daemon/local_server.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <thread>

#include "common/asio_loop.h"
#include "proto/local_client.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace std::chrono_literals;

namespace {

/// Answers everything with Done; sends `pushes` unasked when asked to subscribe.
struct Server final : LocalServer::Handler {
    explicit Server(LocalServer::Limits limits) {
        char name[] = "/tmp/dlrover-server-XXXXXX";
        dir = ::mkdtemp(name);
        path = dir + "/s";
        auto made = LocalServer::create(loop, path, limits, {"n1", "lab", "1"}, *this);
        BOOST_REQUIRE(made.ok());
        server = std::move(*made);
        thread = std::thread([this] { loop.run(); });
    }
    ~Server() override {
        loop.stop();
        thread.join();
        server.reset();
        std::filesystem::remove_all(dir);
    }
    void on_message(const Client &from, local::MessageT message) override {
        if (message.body.type == local::Body::Subscribe)
            for (int i = 0; i < pushes; ++i) server->push(from.id, local::GroupEndedT{});
        server->done(from.id, message.id);
    }
    void on_closed(const Client &) override { ++closed; }
    UniqueFd raw() const {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, path.c_str());
        UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        BOOST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
        timeval patience{10, 0};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        return fd;
    }
    AsioLoop loop;
    std::string dir, path;
    std::unique_ptr<LocalServer> server;
    std::thread thread;
    std::atomic<int> closed{0};
    int pushes = 0;
};

bool ends(int fd) {
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(fd, buffer, sizeof buffer)) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_server)

BOOST_AUTO_TEST_CASE(it_greets_and_answers) {
    Server server({});
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_REQUIRE(client.ok());
    BOOST_TEST(client->server().node == "n1");
    BOOST_TEST(client->call(local::StatusRequestT{}, 5s).ok());
}

BOOST_AUTO_TEST_CASE(a_message_that_is_never_whole_ends_the_connection) {
    Server server({.frame_time = 50ms});
    auto silent = server.raw();
    BOOST_TEST(ends(silent.get()));
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_REQUIRE(client.ok());
    BOOST_TEST(::write(client->fd(), "\x10", 1) == 1);
    BOOST_TEST((client->receive(10s).status().code() == Code::unavailable));
}

BOOST_AUTO_TEST_CASE(rubbish_ends_the_connection) {
    Server server({});
    for (const char *bytes : {"\xff\xff\xff\xff", "\x08\0\0\0ABCDEFGH"}) {
        auto fd = server.raw();
        BOOST_TEST(::write(fd.get(), bytes, bytes[0] == '\x08' ? 12 : 4) > 0);
        BOOST_TEST(ends(fd.get()));
    }
    BOOST_TEST(proto::LocalClient::connect(server.path, local::Role::Cli, 5s).ok());
}

BOOST_AUTO_TEST_CASE(a_passed_descriptor_ends_the_connection) {
    Server server({});
    auto fd = server.raw();
    int pass = fd.get();
    BOOST_TEST(proto::send_with_fds(fd.get(), std::vector<std::uint8_t>{1}, std::span(&pass, 1)).ok());
    BOOST_TEST(ends(fd.get()));
}

BOOST_AUTO_TEST_CASE(the_greeting_comes_first_and_once) {
    Server server({});
    auto fd = server.raw();
    auto frame = proto::make_frame(proto::encode_local(proto::make_local(1, local::StatusRequestT{})));
    BOOST_TEST(::write(fd.get(), frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()));
    BOOST_TEST(ends(fd.get()));
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    local::HelloT again;
    again.role = local::Role::Spank;
    BOOST_TEST((client->call(std::move(again), 5s).status().code() == Code::invalid_argument));
}

BOOST_AUTO_TEST_CASE(who_does_not_read_is_cut_off) {
    Server server({.queue_bytes = 64u << 10});
    server.pushes = 100000;
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_TEST(client->send(local::SubscribeT{}, 5s).ok());
    for (int i = 0; i < 1000 && server.closed == 0; ++i) std::this_thread::sleep_for(10ms);
    BOOST_TEST(server.closed == 1);
}

BOOST_AUTO_TEST_CASE(a_socket_left_behind_is_replaced_a_living_one_not) {
    Server server({});
    AsioLoop loop;
    auto second = LocalServer::create(loop, server.path, {}, {}, server);
    BOOST_TEST((second.status().code() == Code::already_exists));
    std::string dead = server.dir + "/dead";
    {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, dead.c_str());
        UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        BOOST_REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    }
    BOOST_TEST(LocalServer::create(loop, dead, {}, {}, server).ok());
}

BOOST_AUTO_TEST_SUITE_END()
