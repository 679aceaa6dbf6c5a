// SPDX-License-Identifier: Apache-2.0
#include "helper_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace dlrover::test {
namespace {

constexpr int patience_ms = 60000;

}  // namespace

HelperNode::HelperNode(std::string program, local::Role role) : program_(std::move(program)), role_(role) {
    char name[] = "/tmp/dlrover-test-XXXXXX";
    dir_ = ::mkdtemp(name);
    listen();
}

HelperNode::~HelperNode() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(dir_);
}

void HelperNode::start(const std::function<void()> &set_up) {
    BOOST_REQUIRE(pid_ < 0);
    connection_.reset();
    pid_ = ::fork();
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::setenv("DLROVER_JOB_ID", std::to_string(job).c_str(), 1);
        ::setenv("DLROVER_STEP_ID", std::to_string(step).c_str(), 1);
        ::setenv("SLURM_JOB_ID", std::to_string(job).c_str(), 1);
        ::setenv("DLROVER_SOCKET", (dir_ + "/s").c_str(), 1);
        if (set_up) set_up();
        ::execl(program_.c_str(), program_.c_str(), nullptr);
        ::_exit(127);
    }
    greet();
}

void HelperNode::signal(int number) const {
    BOOST_REQUIRE(::kill(pid_, number) == 0);
}

int HelperNode::wait(bool untraced) {
    int status = 0;
    BOOST_REQUIRE(::waitpid(pid_, &status, untraced ? WUNTRACED : 0) == pid_);
    if (!WIFSTOPPED(status)) pid_ = -1;
    return status;
}

void HelperNode::greet() {
    if (!listener_) listen();
    pollfd polled{listener_.get(), POLLIN, 0};
    BOOST_REQUIRE(::poll(&polled, 1, patience_ms) == 1);
    connection_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    reader_ = {};
    received_.clear();
    auto hello = greeting(local::Body::Hello);
    BOOST_TEST((hello.body.AsHello()->role == role_));
    answer(hello.id, proto::make_local(0, local::HelloReplyT{}));
    welcome();
}

void HelperNode::listen() {
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (dir_ + "/s").c_str());
    ::unlink(address.sun_path);
    BOOST_REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    BOOST_REQUIRE(::listen(listener_.get(), 8) == 0);
}

void HelperNode::stop_daemon() {
    connection_.reset();
    listener_.reset();
    ::unlink((dir_ + "/s").c_str());
}

void HelperNode::answer(std::uint32_t id, local::MessageT message) {
    message.id = id;
    push(std::move(message));
}

local::MessageT HelperNode::greeting(local::Body kind) {
    while (received_.empty()) receive();
    local::MessageT message = std::move(received_.front());
    received_.erase(received_.begin());
    BOOST_REQUIRE((message.body.type == kind));
    return message;
}

void HelperNode::push(local::MessageT message, const std::vector<int> &fds) {
    auto frame = proto::make_frame(proto::encode_local(message));
    auto sent = proto::send_with_fds(connection_.get(), frame, fds);
    BOOST_REQUIRE(sent.ok());
    BOOST_REQUIRE(*sent == frame.size());
}

void HelperNode::receive() {
    pollfd polled{connection_.get(), POLLIN, 0};
    BOOST_REQUIRE_MESSAGE(::poll(&polled, 1, patience_ms) == 1, "the program does not answer");
    std::uint8_t buffer[65536];
    ssize_t n = ::recv(connection_.get(), buffer, sizeof buffer, 0);
    BOOST_REQUIRE_MESSAGE(n > 0, "the program ended the connection");
    BOOST_REQUIRE(reader_.feed({buffer, static_cast<std::size_t>(n)}).ok());
    while (auto payload = reader_.next()) {
        auto message = proto::decode_local(*payload);
        BOOST_REQUIRE(message.ok());
        received_.push_back(std::move(*message));
    }
}

local::MessageT HelperNode::wait_for(local::Body kind) {
    for (;;) {
        for (auto it = received_.begin(); it != received_.end(); ++it) {
            if (it->body.type != kind) continue;
            local::MessageT message = std::move(*it);
            received_.erase(it);
            BOOST_TEST(message.id == 0u);
            return message;
        }
        receive();
    }
}

std::optional<local::MessageT> HelperNode::take_within(std::chrono::milliseconds time) {
    pollfd polled{connection_.get(), POLLIN, 0};
    if (received_.empty() && ::poll(&polled, 1, static_cast<int>(time.count())) == 1) receive();
    if (received_.empty()) return std::nullopt;
    local::MessageT message = std::move(received_.front());
    received_.erase(received_.begin());
    return message;
}

void HelperNode::push_cancel(std::uint64_t order) {
    local::CancelOrderT cancel;
    cancel.order = order;
    push(proto::make_local(0, cancel));
}

}  // namespace dlrover::test
