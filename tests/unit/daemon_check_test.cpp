// SPDX-License-Identifier: Apache-2.0
// A check of two nodes: what their daemons say to each other and to their movers.
#include "daemon/group_check.h"

#include "daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;

namespace {

/// A node's check, and a mover that does what it is told; unless the test says otherwise.
struct Side {
    Side(ManualLoop &l, std::uint32_t number) : loop(l), self(number) {
        GroupMover::Hooks mover_hooks;
        mover_hooks.changed = [] {};
        mover = std::make_unique<GroupMover>(GroupMover::Services{loop, port, settings}, "", mover_hooks);
        GroupCheck::Hooks hooks;
        hooks.send = [this](NodeIndex to, const MoveWord &word) {
            auto bytes = encode_move_word(word);  // as on a link
            loop.post([this, to, bytes] {
                if (cut || others->at(to.value())->cut) return;
                auto decoded = decode_move_word(bytes);
                BOOST_REQUIRE(decoded.ok());
                BOOST_TEST(GroupCheck::is_word_of_check(decoded->kind));
                others->at(to.value())->check->on_word(NodeIndex(self), *decoded);
            });
        };
        hooks.address_of = [](NodeIndex node) { return "10.0.0." + std::to_string(node.value()); };
        hooks.mover = [this] { return mover->ready() ? mover.get() : nullptr; };
        hooks.room = [this] { return room ? Status() : Status(Code::resource_exhausted, "no room"); };
        hooks.done = [this](elastic::LocalCheck result) { results.push_back(std::move(result)); };
        check = std::make_unique<GroupCheck>(loop, std::move(hooks));
    }
    void start_mover() {
        mover->on_hello(client, 1);
        local::MoverReadyT ready;
        ready.port = 4000;
        ready.ways = 1;
        say(std::move(ready));
    }
    template <typename BodyT>
    void say(BodyT body) {
        mover->on_message(client, proto::make_local(0, std::move(body)));
    }
    void pump() {
        auto queue = std::exchange(port.sent[client.id], {});
        for (auto &message : queue) {
            if (auto *m = message.body.AsMeasureNode()) take_measure(*m);
            if (auto *expect = message.body.AsExpectObject()) take_expect(*expect);
            if (auto *send = message.body.AsSendObject()) take_send(*send);
        }
    }
    void take_measure(const local::MeasureNodeT &order) {
        BOOST_TEST(order.bytes == GroupCheck::bytes);
        local::NodeMeasuredT answer;
        answer.order = order.order;
        answer.ok = !miscalculates;
        answer.unfit = miscalculates;
        answer.text = miscalculates ? "the processor miscalculates" : "sound GPUs: 8";
        answer.work_us = order.work ? 150000 : 0;
        answer.xxh3 = 77;
        say(std::move(answer));
    }
    void take_expect(const local::ExpectObjectT &order) {
        BOOST_TEST(order.table_xxh3 == 77u);
        BOOST_TEST((order.data_bytes == GroupCheck::bytes && order.parity));
        expected[order.key] = order.order;
        local::ExpectingObjectT answer;
        answer.order = order.order;
        answer.ok = true;
        say(std::move(answer));
    }
    void take_send(const local::SendObjectT &order) {
        ++sent;
        for (auto &[number, other] : *others) {
            auto it = other->expected.find(order.key);
            if (it == other->expected.end()) continue;
            local::ObjectArrivedT arrived;
            arrived.order = it->second;
            arrived.ok = !other->spoils;
            arrived.text = "it arrived without its checksum";
            other->expected.erase(it);
            other->say(std::move(arrived));
        }
        local::ObjectSentT answer;
        answer.order = order.order;
        answer.ok = true;
        say(std::move(answer));
    }

    ManualLoop &loop;
    std::uint32_t self;
    Settings settings;
    TestPort port;
    Client client{7, alice, alice, 1007, local::Role::Mover};
    std::unique_ptr<GroupMover> mover;
    std::unique_ptr<GroupCheck> check;
    std::map<std::uint32_t, Side *> *others = nullptr;
    std::map<std::vector<std::uint8_t>, std::uint64_t> expected;
    std::vector<elastic::LocalCheck> results;
    bool room = true, cut = false, spoils = false, miscalculates = false;
    int sent = 0;
};

struct Pair {
    ManualLoop loop;
    Side a{loop, 0}, b{loop, 1};
    std::map<std::uint32_t, Side *> sides{{0, &a}, {1, &b}};

    Pair() { a.others = b.others = &sides; }
    void start() {
        a.start_mover();
        b.start_mover();
        loop.advance();
    }
    void run(std::chrono::milliseconds time = 200ms) {
        for (auto end = loop.now() + time; loop.now() < end;) {
            loop.advance(10ms);
            a.pump();
            b.pump();
        }
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_check, Pair)

BOOST_AUTO_TEST_CASE(bytes_go_there_and_back) {
    start();
    a.check->run({5, NodeIndex(1), true});
    run();
    BOOST_REQUIRE(a.results.size() == 1u);
    BOOST_TEST((a.results[0].run == 5u && a.results[0].ok), a.results[0].text);
    BOOST_TEST((a.results[0].work == 150ms && a.results[0].exchange > 0ms));
    BOOST_TEST(a.results[0].text == "sound GPUs: 8");
    BOOST_TEST((a.sent == 1 && b.sent == 1));
    BOOST_TEST(b.results.empty());
}

BOOST_AUTO_TEST_CASE(both_begin_at_once) {
    start();
    a.check->run({1, NodeIndex(1), false});
    b.check->run({1, NodeIndex(0), false});
    run();
    BOOST_TEST((a.results.size() == 1u && a.results[0].ok));
    BOOST_TEST((b.results.size() == 1u && b.results[0].ok));
    BOOST_TEST((a.results[0].work == 0ms));
}

BOOST_AUTO_TEST_CASE(what_arrives_spoilt_has_failed) {
    start();
    b.spoils = true;
    a.check->run({1, NodeIndex(1), true});
    run();
    BOOST_REQUIRE(a.results.size() == 1u);
    BOOST_TEST(!a.results[0].ok);
    BOOST_TEST(a.results[0].text == "it arrived without its checksum");
    b.spoils = false;
    a.spoils = true;
    a.check->run({2, NodeIndex(1), true});
    run();
    BOOST_REQUIRE(a.results.size() == 2u);
    BOOST_TEST(a.results[1].text == "on the way back: it arrived without its checksum");
}

BOOST_AUTO_TEST_CASE(a_processor_that_miscalculates_sends_nothing) {
    start();
    a.miscalculates = true;
    a.check->run({1, NodeIndex(1), true});
    run();
    BOOST_REQUIRE(a.results.size() == 1u);
    BOOST_TEST((!a.results[0].ok && a.results[0].unfit));
    BOOST_TEST(a.results[0].text == "the processor miscalculates");
    BOOST_TEST(b.expected.empty());
}

/// Its job would be killed for want of it.
BOOST_AUTO_TEST_CASE(no_memory_on_one_side) {
    start();
    b.room = false;
    a.check->run({1, NodeIndex(1), false});
    run();
    BOOST_REQUIRE(a.results.size() == 1u);
    BOOST_TEST(a.results[0].text == "no room");
}

BOOST_AUTO_TEST_CASE(nobody_waits_for_ever) {
    start();
    b.cut = true;
    a.check->run({1, NodeIndex(1), false});
    run(17s);
    BOOST_TEST(a.results.empty());
    run(2s);
    BOOST_REQUIRE(a.results.size() == 1u);
    BOOST_TEST(!a.results[0].ok);
}

BOOST_AUTO_TEST_CASE(a_mover_that_comes_late_is_waited_for) {
    b.start_mover();
    a.check->run({1, NodeIndex(1), false});
    run(2s);
    BOOST_TEST(a.results.empty());
    a.start_mover();
    run(1s);
    BOOST_REQUIRE(a.results.size() == 1u);
    BOOST_TEST(a.results[0].ok);
}

BOOST_AUTO_TEST_SUITE_END()
