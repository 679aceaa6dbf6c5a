// SPDX-License-Identifier: Apache-2.0
#include "proto/local_client.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

using namespace dlrover;
using namespace dlrover::proto;
using namespace std::chrono_literals;

namespace {

/// A daemon with one connection: answers each message by `answer`.
class FakeDaemon {
  public:
    using Answer = std::function<std::vector<local::MessageT>(const local::MessageT &)>;
    explicit FakeDaemon(Answer answer) : answer_(std::move(answer)) {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        dir_ = ::mkdtemp(name);
        path = dir_ + "/s";
        listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un a{};
        a.sun_family = AF_UNIX;
        std::strcpy(a.sun_path, path.c_str());
        BOOST_REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr *>(&a), sizeof a) == 0);
        BOOST_REQUIRE(::listen(listener_.get(), 4) == 0);
        thread_ = std::thread([this] { serve(); });
    }
    ~FakeDaemon() {
        thread_.join();
        std::filesystem::remove_all(dir_);
    }
    std::string path;

  private:
    void serve() {
        UniqueFd c(::accept(listener_.get(), nullptr, nullptr));
        FrameReader reader;
        std::uint8_t buffer[4096];
        for (ssize_t n; (n = ::read(c.get(), buffer, sizeof buffer)) > 0;) {
            if (!reader.feed({buffer, static_cast<std::size_t>(n)}).ok()) return;
            while (auto payload = reader.next()) {
                auto message = decode_local(*payload);
                if (!message.ok()) return;
                for (const auto &reply : answer_(*message)) {
                    Bytes frame = make_frame(encode_local(reply));
                    if (::send(c.get(), frame.data(), frame.size(), MSG_NOSIGNAL) < 0)
                        return;  // a client that has its answer is gone
                }
            }
        }
    }
    Answer answer_;
    std::string dir_;
    UniqueFd listener_;
    std::thread thread_;
};

std::vector<local::MessageT> greet(const local::MessageT &m) {
    std::vector<local::MessageT> replies;
    if (m.body.type == local::Body::Hello) replies.push_back(make_local(m.id, local::HelloReplyT{}));
    return replies;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(local_client)

BOOST_AUTO_TEST_CASE(nobody_there) {
    auto c = LocalClient::connect("/nonexistent/s", local::Role::Cli, 100ms);
    BOOST_TEST((c.status().code() == Code::unavailable));
}

BOOST_AUTO_TEST_CASE(pushes_before_the_answer_are_kept) {
    FakeDaemon daemon([](const local::MessageT &m) {
        auto replies = greet(m);
        if (m.body.type == local::Body::Subscribe) {
            replies.push_back(make_local(0, local::LeaseRenewedT{}));
            replies.push_back(make_local(m.id, local::DoneT{}));
        }
        return replies;
    });
    auto c = LocalClient::connect(daemon.path, local::Role::Worker, 1s);
    BOOST_REQUIRE(c.ok());
    BOOST_TEST(c->call(local::SubscribeT{}, 1s).ok());
    BOOST_TEST(c->pending());
    BOOST_TEST((c->receive(0ms)->message.body.type == local::Body::LeaseRenewed));
    BOOST_TEST((c->receive(1ms).status().code() == Code::timeout));
    BOOST_TEST(c->connected());
}

BOOST_AUTO_TEST_CASE(a_failure_is_a_status_with_its_sentence) {
    FakeDaemon daemon([](const local::MessageT &m) {
        auto replies = greet(m);
        if (m.body.type == local::Body::Restore) {
            local::FailureT f;
            f.code = local::Refusal::Stale;
            f.text = "generation 3 is over";
            replies.push_back(make_local(m.id, std::move(f)));
        }
        return replies;
    });
    auto c = LocalClient::connect(daemon.path, local::Role::Worker, 1s);
    auto r = c->call(local::RestoreT{}, 1s);
    BOOST_TEST((r.status().code() == Code::stale));
    BOOST_TEST(r.status().message() == "generation 3 is over");
}

BOOST_AUTO_TEST_CASE(a_silent_daemon_costs_the_timeout_and_the_connection) {
    FakeDaemon daemon(greet);
    auto c = LocalClient::connect(daemon.path, local::Role::Worker, 1s);
    BOOST_TEST((c->call(local::RestoreT{}, 50ms).status().code() == Code::timeout));
    BOOST_TEST(!c->connected());
}

BOOST_AUTO_TEST_CASE(one_request_is_answered_like_a_call) {
    FakeDaemon daemon([](const local::MessageT &m) {
        auto replies = greet(m);
        if (replies.empty()) replies.push_back(make_local(m.id, local::DoneT{}));
        return replies;
    });
    auto answer = LocalClient::ask_once(daemon.path, local::Role::Spank, local::RestoreT{}, 1s);
    BOOST_REQUIRE(answer.ok());
    BOOST_TEST((answer->message.body.type == local::Body::Done));
}

BOOST_AUTO_TEST_CASE(one_request_of_a_wrong_version_is_refused) {
    FakeDaemon daemon([](const local::MessageT &m) {
        local::FailureT refusal;
        refusal.code = local::Refusal::Unsupported;
        std::vector<local::MessageT> replies;
        replies.push_back(make_local(m.id, std::move(refusal)));
        return replies;
    });
    auto answer = LocalClient::ask_once(daemon.path, local::Role::Spank, local::RestoreT{}, 1s);
    BOOST_TEST((answer.status().code() == Code::unsupported));
}

BOOST_AUTO_TEST_CASE(one_request_comes_though_nobody_answers) {
    int requests = 0;
    {
        FakeDaemon daemon([&](const local::MessageT &m) {
            requests += m.body.type == local::Body::Restore;
            return std::vector<local::MessageT>{};
        });
        auto answer = LocalClient::ask_once(daemon.path, local::Role::Spank, local::RestoreT{}, 50ms);
        BOOST_TEST((answer.status().code() == Code::timeout));
    }
    BOOST_TEST(requests == 1);
}

BOOST_AUTO_TEST_SUITE_END()
