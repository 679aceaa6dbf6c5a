// SPDX-License-Identifier: Apache-2.0
// Two daemons, and movers that do what the test wants.
#pragma once

#include "tests/unit/daemon_nodes.h"

namespace dlrover::daemon::test {

/// A node's mover. What it is told to send is there at once, unless the other one `fails`, or it is `slow`.
struct Mover : Helper {
    explicit Mover(Node &n) : Helper(n, local::Role::Mover) { connect(); }
    void connect() {
        say_hello<local::MoverHelloT>();
        BOOST_REQUIRE(node.port->take<local::MoverWelcomeT>(client.id).has_value());
        local::MoverReadyT ready;
        ready.port = 4000;
        ready.ways = ways;
        ready.takes_own = !is_old;
        ready.exact = !is_old && is_exact;
        say(std::move(ready));
    }
    void die() override {
        expected.clear();
        orders.clear();
        written.clear();
        Helper::die();
    }
    void pump(Mover &other) {
        if (hung) return;
        auto queue = take_orders();
        if (!slow || send_one) std::ranges::move(std::exchange(waiting, {}), std::back_inserter(queue));
        for (auto &message : queue) {
            if (slow && message.body.AsSendObject() != nullptr && !std::exchange(send_one, false)) {
                waiting.push_back(std::move(message));
                continue;
            }
            if (auto *expect = message.body.AsExpectObject()) take_expect(*expect);
            if (auto *send = message.body.AsSendObject()) take_send(*send, other);
            if (auto *fold = message.body.AsFoldObject()) take_fold(*fold);
            if (auto *cancel = message.body.AsCancelOrder()) take_cancel(cancel->order);
        }
    }
    void take_expect(const local::ExpectObjectT &expect) {
        expected[expect.key] = expect.order;
        // What one order writes is no other's.
        for (const auto &segment : expect.segments)
            BOOST_TEST(written.emplace(segment->id, expect.order).second);
        for (const auto &segment : expect.segments) BOOST_TEST(!read.contains(segment->id));
        for (const auto &segment : expect.segments) ever_written.insert(segment->id);
        for (const auto &segment : expect.segments) parts[segment->id] = {expect.rank};
        orders.insert(expect.order);
        ranks.push_back(expect.rank);
        auto &lent = lent_for[expect.rank].emplace_back();
        for (const auto &own : expect.own) {
            lent.insert(own->rank);
            for (const auto &segment : own->segments) read[segment->id] = expect.order;
        }
        local::ExpectingObjectT answer;
        answer.order = expect.order;
        answer.ok = true;
        say(std::move(answer));
    }
    void take_send(const local::SendObjectT &send, Mover &other) {
        bool reached = other.expected.contains(send.key) && !other.hung;
        sent_by_ucx += send.way == 2;
        bool broken = send.way == 2 && ucx_fails;
        bool arrived = reached && !other.fails && !damaged && !broken;
        if (reached) other.arrive(other.expected.at(send.key), arrived);
        if (reached) other.expected.erase(send.key);
        local::ObjectSentT answer;
        answer.order = send.order;
        answer.ok = arrived;
        answer.text = arrived ? "" : broken ? "no memory can be locked" : "the block's checksum is wrong";
        answer.damaged = !arrived && damaged;
        if (answer.damaged) BOOST_TEST((send.checkpoint != nullptr), "or it can not be looked at");
        say(std::move(answer));
    }
    /// What is added twice is gone again; the last part must find the others.
    void take_fold(const local::FoldObjectT &fold) {
        auto &sum = parts[fold.into.at(0)->id];
        if (fold.sum_bytes == 0) sum.clear();
        for (auto part : parts[fold.from.at(0)->id])
            if (!sum.insert(part).second) sum.erase(part);
        if (fold.last && !fold.checkpoint) BOOST_TEST(sum.size() == fold.data);
        ++folds;
        local::ObjectFoldedT answer;
        answer.order = fold.order;
        answer.ok = !(fold.checkpoint && spoilt);
        answer.text = answer.ok ? "" : "the parts did not give the object: its table has another checksum";
        if (!lost_folds) say(std::move(answer));
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
            say(std::move(answer));
        }
        std::erase_if(waiting, [&](auto &message) { return message.body.AsSendObject()->order == order; });
    }
    void arrive(std::uint64_t order, bool ok) {
        orders.erase(order);
        std::erase_if(written, [&](const auto &entry) { return entry.second == order; });
        std::erase_if(read, [&](const auto &entry) { return entry.second == order; });
        local::ObjectArrivedT answer;
        answer.order = order;
        answer.ok = ok;
        answer.text = ok ? "" : "the block's checksum is wrong";
        answer.spared_bytes = ok ? spared : 0;
        say(std::move(answer));
    }

    std::uint64_t spared = 0;
    bool slow = false, fails = false, hung = false;
    bool is_old = false;  ///< of a version that takes nothing of the node's own
    bool is_exact = true;
    std::uint16_t ways = 1;  ///< as docs/protocol-mover.md has them; 3: also UCX
    bool ucx_fails = false;  ///< at its side, where it sends
    int sent_by_ucx = 0;
    bool damaged = false;     ///< is what it sends, in its node's own memory
    bool send_one = false;    ///< though it is slow
    bool spoilt = false;      ///< what is made of parts
    bool lost_folds = false;  ///< are not answered
    int cancelled = 0, folds = 0;
    std::map<std::uint64_t, std::set<std::uint32_t>> parts;       ///< in each segment: whose objects
    std::map<std::vector<std::uint8_t>, std::uint64_t> expected;  ///< orders by key
    std::set<std::uint64_t> orders;
    std::set<std::uint64_t> ever_written;
    std::map<std::uint64_t, std::uint64_t> written;  ///< segments by id, and the orders that they are of
    std::vector<local::MessageT> waiting;
    std::vector<std::uint32_t> ranks;  ///< that were expected
    /// Each time that a rank's object was expected: whose could be used for it.
    std::map<std::uint32_t, std::vector<std::set<std::uint32_t>>> lent_for;
    std::map<std::uint64_t, std::uint64_t> read;  ///< segments by id, and the orders that they are lent for
};

struct Copying : TwoNodes {
    std::unique_ptr<Mover> m1, m2;

    explicit Copying(std::uint32_t min_nodes = 2, const std::string &redundancy = "partner:1")
        : TwoNodes({.min_nodes = min_nodes, .redundancy = redundancy}) {
        m1 = std::make_unique<Mover>(n1);
        m2 = std::make_unique<Mover>(n2);
        await_worlds();
    }
    void pump() override {
        m1->pump(*m2);
        m2->pump(*m1);
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
    static bool warned(Node &node, const std::string &text) { return count_events(node, text) > 0; }
};

inline const std::set<std::uint32_t> all_ranks{0, 1, 2, 3};

/// Step 5 is safe; then n2 has lost its own, and a world begins that goes on from it.
struct Fetching : Copying {
    Client worker;

    explicit Fetching(const std::string &redundancy = "partner:1") : Copying(2, redundancy) {
        BOOST_TEST(try_save_everywhere(5));
        run(2s);
        lose_checkpoints(n2, a2, *m2, w2);
    }
    /// The daemon comes back, and none of the node's checkpoints.
    void lose_checkpoints(Node &node, Client &agent, Mover &mover, const local::WorldPublishedT &w) {
        for (const char *kind : {"slot", "segment"}) node.keeper.drop(record_name(kind, "7.0") + "/*");
        node.restart();
        loop.advance(100ms);
        agent = node.start_agent(alice, from_proto(w.generation));
        mover.expected.clear();
        loop.advance(3s);
        mover.connect();
        run(100ms);
    }
    void begin_world() {
        n2.exited(a2, w2, 1, 3 << 8);
        await_worlds();
        BOOST_TEST(w2.restore_step == 5);
        worker = n2.start_worker(w2, 0);
    }
    std::variant<local::RestorePlanT, local::FailureT> restore() {
        n2.say(worker, local::RestoreT{});
        BOOST_REQUIRE(!n2.port->sent[worker.id].empty());
        auto body = std::move(n2.port->sent[worker.id].back().body);
        n2.port->sent[worker.id].clear();
        if (auto *failure = body.AsFailure()) return std::move(*failure);
        BOOST_REQUIRE(body.AsRestorePlan() != nullptr);
        return std::move(*body.AsRestorePlan());
    }
    std::unique_ptr<local::ComingT> coming() {
        auto answer = restore();
        auto *plan = std::get_if<local::RestorePlanT>(&answer);
        return plan == nullptr ? nullptr : std::move(plan->coming);
    }
    bool fails_with(const std::string &text) {
        auto answer = restore();
        auto *failure = std::get_if<local::FailureT>(&answer);
        return failure != nullptr && failure->code == local::Refusal::Internal &&
               failure->text.find(text) != std::string::npos;
    }
};

}  // namespace dlrover::daemon::test
