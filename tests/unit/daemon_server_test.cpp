// SPDX-License-Identifier: Apache-2.0
#include "daemon/local_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "common/asio_loop.h"
#include "common/log.h"
#include "daemon/peer_process.h"
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
        if (message.body.type == local::Body::Prepare) {
            server->hold(from.id);
            prepared = from.id;
            ++prepares;
        }
        if (message.body.type == local::Body::Subscribe)
            for (int i = 0; i < pushes; ++i) {
                auto push = proto::make_local(0, local::GroupEndedT{});
                server->send(from.id, std::move(push), std::vector<SharedFd>(pushed ? 1 : 0, pushed));
            }
        order.push_back(from.id);
        server->done(from.id, message.id);
    }
    void on_closed(const Client &) override { ++closed; }
    UniqueFd raw() const {
        UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        connect(fd);
        return fd;
    }
    void connect(const UniqueFd &fd) const {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, path.c_str());
        BOOST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
        timeval patience{10, 0};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
    /// From now on, and by the loop's own clock: how often a tenth of a second has passed. Whoever on the
    /// loop tries again that often, and began before, has done it as many times.
    void count_tenths() {
        loop.post([this] { tenth(); });
    }
    void tenth() {
        timer = loop.after(100ms, [this] {
            ++tenths;
            tenth();
        });
    }
    AsioLoop loop;
    std::string dir, path;
    std::unique_ptr<LocalServer> server;
    std::thread thread;
    EventLoop::Handle timer;
    /// Whoever was held last. Returns when that is done.
    void release() {
        std::atomic<bool> done{false};
        loop.post([&] {
            server->release(prepared);
            done = true;
        });
        while (!done) std::this_thread::yield();
    }
    std::vector<ConnectionId> order;  ///< of whom messages came; on the loop
    SharedFd pushed;                  ///< with each of the pushes
    std::atomic<int> closed{0}, tenths{0}, prepares{0};
    ConnectionId prepared = 0;  ///< on the loop
    int pushes = 0;
};

bool wait_until(const std::function<bool()> &condition) {
    for (auto end = std::chrono::steady_clock::now() + 10s; !condition();) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(5ms);
    }
    return true;
}

/// This process can open `left` files more, until the end.
class FewFiles {
  public:
    explicit FewFiles(std::size_t left) {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        rlimit low = before_;
        low.rlim_cur = 256;
        ::setrlimit(RLIMIT_NOFILE, &low);
        int fd;
        while ((fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) taken_.emplace_back(fd);
        BOOST_TEST(taken_.size() > left);
        taken_.resize(taken_.size() - std::min(left, taken_.size()));
    }
    ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
    FewFiles(const FewFiles &) = delete;
    FewFiles &operator=(const FewFiles &) = delete;

  private:
    rlimit before_{};
    std::vector<UniqueFd> taken_;
};

/// Greets on a connection that was made by hand; whether an answer came.
bool is_greeted(int fd) {
    local::HelloT hello;
    hello.role = local::Role::Cli;
    auto frame = proto::make_frame(proto::encode_local(proto::make_local(1, std::move(hello))));
    char byte;
    return ::write(fd, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()) &&
           ::read(fd, &byte, 1) == 1;
}

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

/// As of a module whose patience has ended while this process was held up.
BOOST_AUTO_TEST_CASE(a_request_of_somebody_who_is_gone_is_served) {
    Server server({});
    std::promise<void> go_on;
    server.loop.post([&] { go_on.get_future().wait(); });
    auto answer = proto::LocalClient::ask_once(server.path, local::Role::Spank, local::RegisterStepT{}, 20ms);
    BOOST_TEST((answer.status().code() == Code::timeout));
    go_on.set_value();
    BOOST_TEST(wait_until([&] { return server.closed == 1; }));
    std::promise<std::size_t> served;
    server.loop.post([&] { served.set_value(server.order.size()); });
    BOOST_TEST(served.get_future().get() == 1u);
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

/// As of a client that says more than is read at once: each reading ends in the midst of a message.
BOOST_AUTO_TEST_CASE(who_is_always_in_the_midst_of_a_message_goes_on) {
    Server server({.frame_time = 1s});
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_REQUIRE(client.ok());
    proto::Bytes frame = proto::make_frame(proto::encode_local(proto::make_local(0, local::RestoreT{})));
    std::size_t half = frame.size() / 2;
    auto whole = static_cast<ssize_t>(frame.size());
    BOOST_TEST(::write(client->fd(), frame.data(), half) == static_cast<ssize_t>(half));
    std::rotate(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(half), frame.end());
    for (int i = 0; i < 30; ++i) {
        std::this_thread::sleep_for(50ms);
        BOOST_TEST(::send(client->fd(), frame.data(), frame.size(), MSG_NOSIGNAL) == whole);
    }
    BOOST_TEST(::send(client->fd(), frame.data(), frame.size() - half, MSG_NOSIGNAL) ==
               whole - static_cast<ssize_t>(half));
    BOOST_TEST(client->call(local::RestoreT{}, 5s).ok());
    BOOST_TEST(server.closed == 0);
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

/// The kernel closes it with the last one who has it, and waits for its bytes to leave for as long as its
/// user says.
BOOST_AUTO_TEST_CASE(a_passed_socket_that_lingers_holds_up_nobody) {
    Server server({});
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    BOOST_REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr *>(&address), size) == 0);
    BOOST_REQUIRE(::listen(listener.get(), 1) == 0);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address), &size);
    UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    BOOST_REQUIRE(::connect(full.get(), reinterpret_cast<sockaddr *>(&address), size) == 0);
    UniqueFd peer(::accept(listener.get(), nullptr, nullptr));
    std::vector<std::uint8_t> some(1 << 16);
    while (::send(full.get(), some.data(), some.size(), MSG_DONTWAIT) > 0) {
    }
    linger slow{1, 60};
    ::setsockopt(full.get(), SOL_SOCKET, SO_LINGER, &slow, sizeof slow);
    for (bool greeted : {true, false}) {
        auto fd = server.raw();
        if (greeted) BOOST_TEST(is_greeted(fd.get()));
        int pass = full.get();
        BOOST_TEST(proto::send_with_fds(fd.get(), some, std::span(&pass, 1)).ok());
        if (!greeted) full.reset();  // the server's are the last ones
    }
    auto begun = std::chrono::steady_clock::now();
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 50s);
    BOOST_TEST((client.ok() && client->call(local::StatusRequestT{}, 50s).ok()));
    BOOST_TEST((std::chrono::steady_clock::now() - begun < 20s), "it waited for somebody's socket");
}

BOOST_AUTO_TEST_CASE(who_asks_much_has_one_turn_like_the_others) {
    Server server({});
    auto many = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    auto one = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_REQUIRE((many.ok() && one.ok()));
    std::promise<void> all_there;
    server.loop.post([&] { all_there.get_future().wait(); });
    for (int i = 0; i < 100; ++i) BOOST_REQUIRE(many->send(local::StatusRequestT{}, 5s).ok());
    BOOST_REQUIRE(one->send(local::StatusRequestT{}, 5s).ok());
    all_there.set_value();
    std::promise<std::vector<ConnectionId>> order;
    BOOST_REQUIRE(wait_until([&] {
        std::promise<std::size_t> count;
        server.loop.post([&] { count.set_value(server.order.size()); });
        return count.get_future().get() == 101u;
    }));
    server.loop.post([&] { order.set_value(server.order); });
    auto came = order.get_future().get();
    auto turn =
        std::ranges::find_if(came, [&](ConnectionId id) { return std::ranges::count(came, id) == 1; });
    BOOST_REQUIRE((turn != came.end()));
    BOOST_TEST((turn - came.begin() < 5));
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
    BOOST_TEST(wait_until([&] { return server.closed > 0; }));
    BOOST_TEST(server.closed == 1);
}

BOOST_AUTO_TEST_CASE(descriptors_that_wait_for_a_reader_are_counted) {
    Server server({.queue_bytes = 1u << 30, .queue_fds = 50});
    server.pushes = 20000;
    auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_TEST(client->send(local::SubscribeT{}, 5s).ok());
    BOOST_TEST(client->receive(10s).ok());
    BOOST_TEST(server.closed == 0);  // none is passed
    server.pushed = std::make_shared<UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    auto other = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_TEST(other->send(local::SubscribeT{}, 5s).ok());
    BOOST_TEST(wait_until([&] { return server.closed > 0; }));
}

/// Of one user with many connections; to be another one takes root.
BOOST_AUTO_TEST_CASE(descriptors_that_wait_for_a_user_are_counted,
                     *boost::unit_test::precondition([](auto) { return ::geteuid() == 0; })) {
    Server server({.queue_bytes = 1u << 30, .queue_fds = 1u << 20, .queue_fds_per_user = 50});
    std::filesystem::permissions(server.dir, std::filesystem::perms(0711));
    server.pushes = 20000;
    server.pushed = std::make_shared<UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    auto own = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
    BOOST_TEST(own->send(local::SubscribeT{}, 5s).ok());
    BOOST_TEST(own->receive(10s).ok());
    BOOST_TEST(server.closed == 0);
    std::thread([&] {
        ::syscall(SYS_setresuid, -1, 65534, -1);  // of this thread alone
        auto client = proto::LocalClient::connect(server.path, local::Role::Cli, 5s);
        BOOST_TEST(client->send(local::SubscribeT{}, 5s).ok());
        BOOST_TEST(wait_until([&] { return server.closed > 0; }));
    }).join();
    BOOST_TEST(own->receive(10s).ok());
}

/// No descriptor for the connection, or one for it but none to watch it by.
BOOST_AUTO_TEST_CASE(without_descriptors_it_waits_and_goes_on) {
    for (std::size_t left : {0u, 1u}) {
        Server server({});
        auto first = server.raw();
        BOOST_TEST(is_greeted(first.get()));
        UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        auto errors = log::count(log::Level::error);
        auto worked = std::clock();
        {
            FewFiles few(left);
            server.connect(fd);
            BOOST_TEST(wait_until([&] { return log::count(log::Level::error) > errors; }));
            server.count_tenths();
            BOOST_TEST(wait_until([&] { return server.tenths >= 4; }));
        }
        BOOST_TEST((std::clock() - worked < CLOCKS_PER_SEC / 5), "it did not wait");
        BOOST_TEST(log::count(log::Level::error) == errors + 1, left << " left");
        BOOST_TEST(is_greeted(fd.get()), left << " left");
    }
}

BOOST_AUTO_TEST_CASE(who_is_held_is_read_when_he_is_released) {
    Server server({.frame_time = 100ms});
    auto client = proto::LocalClient::connect(server.path, local::Role::Worker, 5s);
    auto other = proto::LocalClient::connect(server.path, local::Role::Worker, 5s);
    BOOST_REQUIRE((client.ok() && other.ok()));
    for (int i = 0; i < 3; ++i) BOOST_TEST(client->send(local::PrepareT{}, 5s).ok());
    for (int i = 1; i <= 3; ++i) {
        BOOST_TEST(wait_until([&] { return server.prepares == i; }));
        BOOST_TEST(other->call(local::RestoreT{}, 5s).ok(), "others are served meanwhile");
        BOOST_TEST(server.prepares == i);
        server.release();
    }
    BOOST_TEST(client->call(local::RestoreT{}, 5s).ok());
}

BOOST_AUTO_TEST_CASE(who_is_held_and_goes_is_there_until_he_is_released) {
    Server server({});
    auto other = proto::LocalClient::connect(server.path, local::Role::Worker, 5s);
    {
        auto client = proto::LocalClient::connect(server.path, local::Role::Worker, 5s);
        BOOST_TEST(client->send(local::PrepareT{}, 5s).ok());
        BOOST_TEST(wait_until([&] { return server.prepares == 1; }));
    }
    // Also when something to be sent finds him gone.
    server.loop.post([&] { server.server->push(server.prepared, local::GroupEndedT{}); });
    BOOST_TEST(other->call(local::RestoreT{}, 5s).ok());
    BOOST_TEST(server.closed == 0);
    server.release();
    BOOST_TEST(wait_until([&] { return server.closed == 1; }));
    server.release();
}

BOOST_AUTO_TEST_CASE(who_connected_can_be_killed_even_if_he_is_stopped) {
    Server s({});
    pid_t child = ::fork();
    if (child == 0) {
        auto client = proto::LocalClient::connect(s.path, local::Role::Mover, 10s);
        local::PrepareT prepare;
        if (!client || !client->call(std::move(prepare), 10s).ok()) ::_exit(1);
        ::raise(SIGSTOP);
        ::_exit(2);
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
    BOOST_REQUIRE(WIFSTOPPED(status));
    std::promise<std::shared_ptr<LocalProcess>> found;
    s.loop.post([&] {
        found.set_value(s.server->process(s.prepared));
        s.server->release(s.prepared);
    });
    auto process = found.get_future().get();
    BOOST_REQUIRE(process != nullptr);
    BOOST_TEST(s.closed == 0);
    BOOST_TEST(process->kill());
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(WIFSIGNALED(status));
    for (int i = 0; i < 500 && s.closed == 0; ++i) std::this_thread::sleep_for(10ms);
    BOOST_TEST(s.closed == 1);
    BOOST_TEST(!process->kill());
}

BOOST_AUTO_TEST_CASE(who_is_gone_or_not_his_users_is_nobody_to_kill) {
    // Nobody's socket: the number is what there is.
    UniqueFd none(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    pid_t child = ::fork();
    if (child == 0) {
        ::pause();
        ::_exit(0);
    }
    BOOST_TEST(PeerProcess::of(none.get(), child, ::geteuid() + 1) == nullptr);
    auto process = PeerProcess::of(none.get(), child, ::geteuid());
    BOOST_REQUIRE(process != nullptr);
    BOOST_TEST(process->kill());
    ::waitpid(child, nullptr, 0);
    BOOST_TEST(!process->kill());
    BOOST_TEST(PeerProcess::of(none.get(), child, ::geteuid()) == nullptr);
}

BOOST_AUTO_TEST_CASE(a_process_does_not_say_by_its_name_whose_it_is) {
    UniqueFd none(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int ready[2];
    BOOST_REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    uid_t other = ::geteuid() + 4242;
    std::string name = "Uid: " + std::to_string(other);
    pid_t child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_NAME, name.c_str());
        (void)!::write(ready[1], "x", 1);
        ::pause();
        ::_exit(0);
    }
    char c = 0;
    BOOST_REQUIRE(::read(ready[0], &c, 1) == 1);
    BOOST_TEST(PeerProcess::of(none.get(), child, other) == nullptr);
    auto process = PeerProcess::of(none.get(), child, ::geteuid());
    BOOST_REQUIRE(process != nullptr);
    BOOST_TEST(process->kill());
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
}

/// A whole step, by scontrol suspend; a process that is stopped alone is not.
BOOST_AUTO_TEST_CASE(a_process_that_is_stopped_with_its_parent_is_suspended) {
    UniqueFd none(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int told[2];
    BOOST_REQUIRE(::pipe2(told, O_CLOEXEC) == 0);
    pid_t parent = ::fork();
    if (parent == 0) {
        pid_t child = ::fork();
        if (child > 0) (void)!::write(told[1], &child, sizeof child);
        for (;;) ::pause();
    }
    pid_t child = 0;
    BOOST_REQUIRE(::read(told[0], &child, sizeof child) == sizeof child);
    auto process = PeerProcess::of(none.get(), child, ::geteuid());
    BOOST_REQUIRE(process != nullptr);
    BOOST_TEST(!process->is_suspended());
    ::kill(child, SIGSTOP);
    ::usleep(50000);
    BOOST_TEST(!process->is_suspended());
    ::kill(parent, SIGSTOP);
    BOOST_TEST(wait_until([&] { return process->is_suspended(); }));
    ::kill(child, SIGKILL);
    ::kill(parent, SIGKILL);
    ::waitpid(parent, nullptr, 0);
    BOOST_TEST(wait_until([&] { return !process->is_suspended(); }));
    ::close(told[0]);
    ::close(told[1]);
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
