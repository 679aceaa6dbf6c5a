// SPDX-License-Identifier: Apache-2.0
// The daemon's side of the link, with a keeper that answers when the test says so.
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>

#include "daemon/keeper_link.h"
#include "daemon/record_keeper.h"
#include "tests/unit/poll_loop.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

struct Link {
    Link() {
        int pair[2];
        BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        keeper.reset(pair[0]);
        client = std::make_unique<KeeperClient>(loop, UniqueFd(pair[1]), [](const Status &) {});
    }
    /// The keeper takes one packet and answers.
    void answer() {
        auto packet = receive_keeper(keeper.get());
        BOOST_REQUIRE(packet.ok());
        BOOST_TEST(send_keeper(keeper.get(), make_keeper(packet->message.id, keeper::StoredT{})).ok());
    }
    RecordKeeper::Done noted(const std::string &what) {
        return [this, what](const Status &status) { told.push_back(what + (status.ok() ? "" : " refused")); };
    }
    EventLoop::Task note(const std::string &what) {
        return [this, what] { told.push_back(what); };
    }
    bool tells(std::vector<std::string> expected) {
        return loop.run_until([&] { return told.size() >= expected.size(); }) && told == expected;
    }
    test::PollLoop loop;
    UniqueFd keeper;
    std::unique_ptr<KeeperClient> client;
    std::vector<std::string> told;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(keeper_client)

BOOST_AUTO_TEST_CASE(what_waits_for_the_store_comes_after_all_that_was_given_before) {
    Link link;
    link.client->when_stored(link.note("nothing to wait for"));
    BOOST_TEST(link.told.empty(), "later, on the loop");
    BOOST_TEST(link.tells({"nothing to wait for"}));
    link.told.clear();
    link.client->put("a", {1}, -1, link.noted("a"));
    link.client->drop("b");
    link.client->when_stored(link.note("first"));
    link.client->when_stored(link.note("second"));
    link.client->put("c", {1}, -1, link.noted("c"));
    link.client->ready();
    link.client->when_stored(link.note("third"));
    link.answer();
    BOOST_TEST(link.tells({"a"}));
    link.answer();
    BOOST_TEST(link.tells({"a", "first", "second"}));
    link.answer();
    BOOST_TEST(link.tells({"a", "first", "second", "c", "third"}));
}

BOOST_AUTO_TEST_CASE(what_waits_for_a_record_that_is_never_sent_is_told_too) {
    Link link;
    link.client->put("long", std::vector<std::uint8_t>(max_keeper_packet_bytes + 1), -1, link.noted("long"));
    link.client->when_stored(link.note("then"));
    BOOST_TEST(link.loop.run_until([&] { return link.told.size() == 2; }));
    BOOST_TEST(link.told.front() == "long refused");
}

/// Linux reports the reset of a peer that died with unread packets before what that peer had sent.
BOOST_AUTO_TEST_CASE(what_a_daemon_sent_before_it_died_is_read_though_it_never_read_the_answer) {
    Link link;
    link.client->put("a", {1}, -1, {});
    link.answer();
    link.client->put("b", {2}, -1, {});
    link.client.reset();  // the answer was not read
    auto packet = receive_keeper(link.keeper.get());
    BOOST_REQUIRE_MESSAGE(packet.ok(), packet.status().message());
    BOOST_REQUIRE(packet->message.body.AsPut());
    BOOST_TEST(packet->message.body.AsPut()->name == "b");
    BOOST_TEST((receive_keeper(link.keeper.get()).status().code() == Code::unavailable));
}

BOOST_AUTO_TEST_CASE(what_waits_may_store_and_wait_again) {
    Link link;
    link.client->put("a", {1}, -1, {});
    link.client->when_stored([&] {
        link.told.push_back("stored");
        link.client->put("b", {1}, -1, link.noted("b"));
        link.client->when_stored(link.note("then"));
    });
    link.answer();
    BOOST_TEST(link.tells({"stored"}));
    link.answer();
    BOOST_TEST(link.tells({"stored", "b", "then"}));
}

BOOST_AUTO_TEST_SUITE_END()
