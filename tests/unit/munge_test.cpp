// SPDX-License-Identifier: Apache-2.0
// With a real munged of the test's own: own key, own socket, in a folder of its own.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/unique_fd.h"
#include "poll_loop.h"
#include "transport/munge_credentials.h"
#include "transport/peer_links.h"

using namespace dlrover;
using namespace dlrover::transport;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

std::string find_munged() {
    for (const char *path : {"/usr/sbin/munged", "/usr/local/sbin/munged", "/usr/bin/munged"})
        if (::access(path, X_OK) == 0) return path;
    return {};
}

boost::test_tools::assertion_result munged_is_there(boost::unit_test::test_unit_id) {
    if (!find_munged().empty()) return true;
    std::fprintf(stderr, "skipped: munged is not installed\n");
    return false;
}

class Munged {
  public:
    Munged() {
        char name[] = "/tmp/dlrover-munge-XXXXXX";
        BOOST_TEST_REQUIRE(::mkdtemp(name) != nullptr);
        folder_ = name;
        // munged wants every folder above its socket open to all and writable by nobody else.
        BOOST_TEST_REQUIRE(::chmod(name, 0755) == 0);
        write_key();
        pid_ = ::fork();
        if (pid_ == 0) run();
        BOOST_TEST_REQUIRE(pid_ > 0);
        wait_for_socket();
    }
    ~Munged() {
        stop();
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }
    void stop() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGTERM);
        ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    std::string socket() const { return folder_ + "/socket"; }
    std::unique_ptr<Credentials> credentials(std::uint32_t readable_by = ::geteuid()) const {
        return make_munge_credentials({.socket = socket(), .readable_by = readable_by}).value();
    }

  private:
    void write_key() const {
        std::ifstream random("/dev/urandom", std::ios::binary);
        char key[128];
        random.read(key, sizeof key);
        UniqueFd fd(::open((folder_ + "/key").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        BOOST_TEST_REQUIRE(::write(fd.get(), key, sizeof key) == static_cast<ssize_t>(sizeof key));
    }
    void run() const {
        std::string program = find_munged();
        std::string args[] = {"--socket=" + socket(), "--key-file=" + folder_ + "/key",
                              "--pid-file=" + folder_ + "/pid", "--log-file=" + folder_ + "/log",
                              "--seed-file=" + folder_ + "/seed"};
        UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
        ::dup2(null.get(), 1);
        ::dup2(null.get(), 2);
        ::execl(program.c_str(), "munged", "--force", "--foreground", args[0].c_str(), args[1].c_str(),
                args[2].c_str(), args[3].c_str(), args[4].c_str(), nullptr);
        ::_exit(127);
    }
    void wait_for_socket() {
        const std::vector<std::uint8_t> probe{1};
        auto give_up = std::chrono::steady_clock::now() + 10s;
        while (!credentials()->encode(probe).ok()) {
            BOOST_TEST_REQUIRE((std::chrono::steady_clock::now() < give_up), "munged does not answer");
            BOOST_TEST_REQUIRE(::waitpid(pid_, nullptr, WNOHANG) == 0);
            ::usleep(10000);
        }
    }
    std::string folder_;
    pid_t pid_ = 0;
};

const std::vector<std::uint8_t> some_bytes{1, 2, 3, 0, 255};

/// A credential made by another uid; empty when that could not be done.
std::string made_by(const Munged &munged, uid_t uid) {
    int ends[2];
    BOOST_TEST_REQUIRE(::pipe(ends) == 0);
    UniqueFd out(ends[0]), in(ends[1]);
    pid_t child = ::fork();
    if (child == 0) {
        if (::setgid(uid) != 0 || ::setuid(uid) != 0) ::_exit(1);
        auto text = munged.credentials(0)->encode(some_bytes);
        ::_exit(text && ::write(in.get(), text->data(), text->size()) > 0 ? 0 : 1);
    }
    in.reset();
    char buffer[4096];
    ssize_t n = ::read(out.get(), buffer, sizeof buffer);
    ::waitpid(child, nullptr, 0);
    return n > 0 ? std::string(buffer, static_cast<std::size_t>(n)) : std::string();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(munge, *boost::unit_test::precondition(munged_is_there))

BOOST_AUTO_TEST_CASE(a_credential_is_opened_once) {
    Munged munged;
    auto credentials = munged.credentials();
    auto text = credentials->encode(some_bytes);
    BOOST_TEST_REQUIRE(text.ok(), text.status().message());
    auto voucher = credentials->decode(*text);
    BOOST_TEST_REQUIRE(voucher.ok(), voucher.status().message());
    BOOST_TEST((voucher->payload == some_bytes));
    BOOST_TEST(voucher->uid == ::geteuid());
    auto again = credentials->decode(*text);
    BOOST_TEST((again.status().code() == Code::permission_denied));
}

BOOST_AUTO_TEST_CASE(forged_foreign_and_unprotected_credentials_are_refused) {
    Munged munged, other;
    auto credentials = munged.credentials();
    for (std::string bad : {"", "MUNGE:AAAA:", "x"}) {
        auto voucher = credentials->decode(bad);
        BOOST_TEST((voucher.status().code() == Code::permission_denied), bad << voucher.status().to_string());
    }
    auto foreign = other.credentials()->encode(some_bytes);
    BOOST_TEST((credentials->decode(*foreign).status().code() == Code::permission_denied));
    auto for_another = munged.credentials(::geteuid() + 12345)->encode(some_bytes);
    BOOST_TEST((credentials->decode(*for_another).status().code() == Code::permission_denied));
    auto text = *credentials->encode(some_bytes);
    text[text.size() / 2] = text[text.size() / 2] == 'A' ? 'B' : 'A';
    BOOST_TEST((credentials->decode(text).status().code() == Code::permission_denied));
}

BOOST_AUTO_TEST_CASE(the_maker_of_a_credential_is_named) {
    if (::geteuid() != 0) {
        std::fprintf(stderr, "skipped: only root can become another user\n");
        return;
    }
    Munged munged;
    std::string text = made_by(munged, 65534);
    BOOST_TEST_REQUIRE(!text.empty());
    auto voucher = munged.credentials(0)->decode(text);
    BOOST_TEST_REQUIRE(voucher.ok(), voucher.status().message());
    BOOST_TEST(voucher->uid == 65534u);
}

BOOST_AUTO_TEST_CASE(without_munged_nobody_can_tell) {
    Munged munged;
    auto credentials = munged.credentials();
    auto text = credentials->encode(some_bytes);
    munged.stop();
    BOOST_TEST((credentials->encode(some_bytes).status().code() == Code::unavailable));
    BOOST_TEST((credentials->decode(*text).status().code() == Code::unavailable));
}

BOOST_AUTO_TEST_CASE(two_daemons_meet) {
    Munged munged;
    test::PollLoop loop;
    PeerLinksConfig config;
    config.cluster = "lab";
    config.trusted_uid = ::geteuid();
    config.privileged_ports = ::geteuid() == 0;
    auto look_up = [](const std::string &node, auto answer) {
        answer(std::string(node == "n1" ? "127.0.0.21" : "127.0.0.22"));
    };
    auto start = [&](const std::string &node, const std::string &address, std::uint16_t port) {
        config.node = node;
        config.listen = {.address = address, .port = port};
        auto links = PeerLinks::create(loop, config, munged.credentials(), look_up);
        BOOST_TEST_REQUIRE(links.ok(), links.status().message());
        return std::move(*links);
    };
    auto a = start("n1", "127.0.0.21", 0);
    auto b = start("n2", "127.0.0.22", a->port());
    std::vector<std::uint8_t> got;
    b->set_callbacks(
        {.on_message = [&](const std::string &, PeerEnvelope e) { got = std::move(e.payload); }});
    a->connect_to("n2", "127.0.0.22");
    BOOST_TEST(loop.run_until([&] { return a->up("n2") && b->up("n1"); }));
    PeerEnvelope envelope;
    envelope.payload = some_bytes;
    a->send("n2", envelope);
    BOOST_TEST(loop.run_until([&] { return !got.empty(); }));
    BOOST_TEST((got == some_bytes));
}

BOOST_AUTO_TEST_SUITE_END()
