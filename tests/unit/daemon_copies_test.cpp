// SPDX-License-Identifier: Apache-2.0
// Copies on other nodes: two daemons, and movers that do what the test wants.
#include <boost/test/unit_test.hpp>

#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

/// A node's mover. What it is told to send is there at once, unless the other one `fails`, or it is `slow`.
struct Mover {
    explicit Mover(Node &n) : node(n) { connect(); }
    void connect() {
        client = node.client(local::Role::Mover, alice);
        local::MoverHelloT hello;
        hello.job_id = 7;
        node.say(client, std::move(hello));
        BOOST_REQUIRE(node.port->take<local::MoverWelcomeT>(client.id).has_value());
        local::MoverReadyT ready;
        ready.port = 4000;
        ready.ways = 1;
        node.say(client, std::move(ready), 0);
    }
    void die() {
        expected.clear();
        node.daemon->on_closed(client);
    }
    void pump(Mover &other) {
        auto queue = std::move(node.port->sent[client.id]);
        node.port->sent[client.id].clear();
        if (!slow) std::ranges::move(std::exchange(waiting, {}), std::back_inserter(queue));
        for (auto &message : queue) {
            if (slow && message.body.AsSendObject() != nullptr) {
                waiting.push_back(std::move(message));
                continue;
            }
            if (auto *expect = message.body.AsExpectObject()) take_expect(*expect);
            if (auto *send = message.body.AsSendObject()) take_send(*send, other);
            if (auto *cancel = message.body.AsCancelOrder()) take_cancel(cancel->order);
        }
    }
    void take_expect(const local::ExpectObjectT &expect) {
        expected[expect.key] = expect.order;
        orders.insert(expect.order);
        ranks.push_back(expect.rank);
        local::ExpectingObjectT answer;
        answer.order = expect.order;
        answer.ok = true;
        node.say(client, std::move(answer), 0);
    }
    void take_send(const local::SendObjectT &send, Mover &other) {
        bool arrived = other.expected.contains(send.key) && !other.fails;
        if (other.expected.contains(send.key)) other.arrive(other.expected.at(send.key), arrived);
        other.expected.erase(send.key);
        local::ObjectSentT answer;
        answer.order = send.order;
        answer.ok = arrived;
        answer.text = arrived ? "" : "the block's checksum is wrong";
        node.say(client, std::move(answer), 0);
    }
    void take_cancel(std::uint64_t order) {
        cancelled += orders.contains(order);
        std::erase_if(expected, [&](const auto &entry) { return entry.second == order; });
        if (orders.contains(order)) arrive(order, false);
        for (auto &message : waiting) {
            auto *send = message.body.AsSendObject();
            if (send == nullptr || send->order != order) continue;
            local::ObjectSentT answer;
            answer.order = order;
            node.say(client, std::move(answer), 0);
        }
        std::erase_if(waiting, [&](auto &message) { return message.body.AsSendObject()->order == order; });
    }
    void arrive(std::uint64_t order, bool ok) {
        orders.erase(order);
        local::ObjectArrivedT answer;
        answer.order = order;
        answer.ok = ok;
        answer.text = ok ? "" : "the block's checksum is wrong";
        node.say(client, std::move(answer), 0);
    }

    Node &node;
    Client client;
    bool slow = false, fails = false;
    int cancelled = 0;
    std::map<std::vector<std::uint8_t>, std::uint64_t> expected;  ///< orders by key
    std::set<std::uint64_t> orders;
    std::vector<local::MessageT> waiting;
    std::vector<std::uint32_t> ranks;  ///< that were expected
};

struct Copying : World {
    Node n1{*this, "n1"}, n2{*this, "n2"};
    Client a1, a2;
    local::WorldPublishedT w1, w2;
    std::unique_ptr<Mover> m1, m2;

    Copying() {
        StepOf step;
        step.redundancy = "partner:1";
        n1.register_step(0, step);
        n2.register_step(1, step);
        loop.advance(100ms);
        a1 = n1.start_agent();
        a2 = n2.start_agent();
        m1 = std::make_unique<Mover>(n1);
        m2 = std::make_unique<Mover>(n2);
        await_worlds();
    }
    void run(std::chrono::milliseconds time) {
        for (auto left = time; left > 0ms; left -= 20ms) {
            loop.advance(20ms);
            m1->pump(*m2);
            m2->pump(*m1);
        }
    }
    void await_worlds() {
        run(6s);
        auto p1 = n1.port->take<local::WorldPublishedT>(a1.id);
        auto p2 = n2.port->take<local::WorldPublishedT>(a2.id);
        BOOST_REQUIRE(p1.has_value());
        BOOST_REQUIRE(p2.has_value());
        w1 = std::move(*p1);
        w2 = std::move(*p2);
    }
    /// Whether every rank found a slot.
    bool save_everywhere(std::uint64_t step) {
        bool all = true;
        for (std::uint16_t rank : {0, 1})
            for (auto [node, w] : {std::pair(&n1, &w1), std::pair(&n2, &w2)}) {
                auto worker = node->start_worker(*w, rank);
                local::BeginSaveT begin;
                begin.train_step = step;
                begin.bytes = 4096;
                node->say(worker, std::move(begin));
                auto granted = node->port->take<local::SlotGrantedT>(worker.id);
                all = all && granted.has_value();
                if (granted) node->seal(worker, step, granted->slot);
                loop.advance();
                node->daemon->on_closed(worker);
            }
        return all;
    }
    /// Sealed objects of `step` that a node has on record, by rank.
    static std::set<std::uint32_t> held(Node &node, std::uint64_t step) {
        std::set<std::uint32_t> ranks;
        for (auto &record : node.keeper.copy()) {
            auto name = parse_record_name(record.name);
            auto decoded = name ? decode_record(record.value) : Status(Code::not_found, "");
            const auto *slot = decoded.ok() ? decoded->body.AsSlotRecord() : nullptr;
            if (slot == nullptr || !slot->sealed || slot->train_step != step) continue;
            ranks.insert(static_cast<std::uint32_t>(std::stoul(name->rest)));
        }
        return ranks;
    }
    bool warned(Node &node, const std::string &text) {
        auto person = node.client(local::Role::Cli, alice);
        local::EventsRequestT request;
        request.job_id = 7;
        request.relay = false;
        node.say(person, std::move(request));
        loop.advance();
        auto reply = node.port->take<local::EventsReplyT>(person.id);
        BOOST_REQUIRE(reply.has_value());
        for (const auto &event : reply->groups.at(0)->events)
            if (event->text.find(text) != std::string::npos) return true;
        return false;
    }
};

const std::set<std::uint32_t> all_ranks{0, 1, 2, 3};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_copies, Copying)

BOOST_AUTO_TEST_CASE(every_node_has_every_object_of_the_complete_step) {
    BOOST_TEST(save_everywhere(5));
    run(2s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
    // What is safe frees what is older: saves go on for ever.
    for (std::uint64_t step = 6; step < 16; ++step) {
        BOOST_TEST(save_everywhere(step), step);
        run(2s);
        BOOST_TEST(held(n1, step) == all_ranks);
        BOOST_TEST(held(n2, step) == all_ranks);
    }
}

BOOST_AUTO_TEST_CASE(what_is_not_safe_yet_frees_nothing) {
    BOOST_TEST(save_everywhere(5));
    run(2s);
    m1->slow = true;
    BOOST_TEST(save_everywhere(6));
    run(2s);
    BOOST_TEST(save_everywhere(7));
    run(2s);
    // 5 is safe, 6 is on its way, 7 is the newest complete one.
    BOOST_TEST(!save_everywhere(8));
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
}

BOOST_AUTO_TEST_CASE(a_copy_that_fails_is_tried_again) {
    m2->fails = true;
    BOOST_TEST(save_everywhere(5));
    run(2s);
    BOOST_TEST(!held(n2, 5).contains(w1.first_rank));
    BOOST_TEST(m2->ranks.size() > 2u);
    m2->fails = false;
    run(6s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
    BOOST_TEST(!warned(n1, "not copied"));
}

BOOST_AUTO_TEST_CASE(without_a_mover_training_goes_on_unprotected_and_says_so) {
    BOOST_TEST(save_everywhere(5));
    run(2s);
    m2->die();
    for (std::uint64_t step : {6, 7}) {
        BOOST_TEST(save_everywhere(step));
        run(2s);
    }
    BOOST_TEST(!save_everywhere(8));
    run(30s);
    BOOST_TEST(warned(n1, "Checkpoints are not copied to other nodes: dlrover-mover does not run there."));
    BOOST_TEST(
        (warned(n1, "have no copies on other nodes now") || warned(n2, "have no copies on other nodes now")));
    for (std::uint64_t step : {9, 10, 11, 12}) {
        BOOST_TEST(save_everywhere(step), step);
        run(2s);
    }
    // And back.
    m2->connect();
    run(10s);
    BOOST_TEST(save_everywhere(13));
    run(10s);
    BOOST_TEST(held(n1, 13) == all_ranks);
    BOOST_TEST(held(n2, 13) == all_ranks);
}

BOOST_AUTO_TEST_CASE(a_new_world_stops_what_is_on_its_way) {
    m1->slow = true;
    BOOST_TEST(save_everywhere(5));
    run(1s);
    n2.exited(a2, w2, 1, 3 << 8);
    await_worlds();
    BOOST_TEST(w1.restore_step == 5);
    BOOST_TEST(m2->cancelled > 0);
    m1->slow = false;
    run(6s);
    BOOST_TEST(held(n2, 5) == all_ranks);
}

BOOST_AUTO_TEST_CASE(copies_outlive_the_daemon) {
    BOOST_TEST(save_everywhere(5));
    run(2s);
    n2.restart();
    n2.daemon->on_message(a2 = n2.client(local::Role::Agent, alice), [&] {
        local::AgentHelloT hello;
        hello.job_id = 7;
        hello.workers = 2;
        hello.resumed_generation = std::make_unique<proto::Generation>(*w2.generation);
        return proto::make_local(1, std::move(hello));
    }());
    m2->expected.clear();
    loop.advance(3s);
    m2->connect();
    run(3s);
    BOOST_TEST(held(n2, 5) == all_ranks);
    BOOST_TEST(save_everywhere(6));
    run(3s);
    BOOST_TEST(held(n1, 6) == all_ranks);
    BOOST_TEST(held(n2, 6) == all_ranks);
}

BOOST_AUTO_TEST_SUITE_END()
