// SPDX-License-Identifier: Apache-2.0
// What a world goes on from is verified while its programs start.
#include <boost/test/unit_test.hpp>

#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

struct VerifyingNodes : TwoNodes {
    std::vector<local::VerifyObjectT> orders;  ///< that n1's agent has
    Client worker;

    explicit VerifyingNodes(bool verifies = true) : TwoNodes(StepOf{}) {
        // Two slots a rank: none to spare for who does not give it back.
        n1.budget = MemoryBudget({.user_quota_bytes = 8u << 20}, [] { return 1u << 30; });
        a1 = connect_again(verifies);  // before the first world
        await_worlds();
    }
    Client connect_again(bool verifies) {
        n1.daemon->on_closed(a1);
        auto agent = n1.client(local::Role::Agent, alice);
        local::AgentHelloT hello;
        hello.job_id = 7;
        hello.workers = 2;
        if (w1.generation) hello.resumed_generation = std::make_unique<proto::Generation>(*w1.generation);
        hello.verifies = verifies;
        n1.say(agent, std::move(hello));
        return agent;
    }
    void take_orders() {
        orders.clear();
        while (auto order = n1.port->take<local::VerifyObjectT>(a1.id)) orders.push_back(std::move(*order));
    }
    /// All of n1's processes are gone, or nobody says so; the next world begins.
    void next_world(bool ended = true) {
        n2.exited(a2, w2, 1, 3 << 8);
        loop.advance(100ms);
        local::WorkersStoppedT stopped;
        stopped.generation = std::make_unique<proto::Generation>(*w1.generation);
        n2.say(a2, local::WorkersStoppedT(stopped), 0);
        if (ended) n1.say(a1, local::WorkersStoppedT(stopped), 0);
        await_worlds();
        take_orders();
    }
    void save_and_fail() {
        save_everywhere(5);
        next_world();
    }
    void answer(const local::VerifyObjectT &order, bool ok, bool damaged = false) {
        local::ObjectVerifiedT verified;
        verified.order = order.order;
        verified.ok = ok;
        verified.damaged = damaged;
        verified.text = ok ? "" : "chunk \"w\" does not match its checksum";
        n1.say(a1, std::move(verified), 0);
        loop.advance(20ms);
    }
    /// None: it was refused.
    std::optional<local::RestorePlanT> open(std::uint16_t local_rank = 0) {
        worker = n1.start_worker(w1, local_rank);
        n1.say(worker, local::RestoreT{});
        return n1.port->take<local::RestorePlanT>(worker.id);
    }
    bool opens_verified(std::uint16_t local_rank = 0) {
        auto plan = open(local_rank);
        BOOST_REQUIRE(plan.has_value());
        BOOST_TEST(plan->train_step == 5);
        return plan->verified;
    }
    bool was_cancelled(std::uint64_t order) {
        while (auto cancel = n1.port->take<local::CancelOrderT>(a1.id))
            if (cancel->order == order) return true;
        return false;
    }
};

struct FormerAgent : VerifyingNodes {
    FormerAgent() : VerifyingNodes(false) {}
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_verify, VerifyingNodes)

BOOST_AUTO_TEST_CASE(a_worker_hears_that_its_object_was_verified) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    BOOST_TEST(orders[0].checkpoint->train_step == 5u);
    BOOST_TEST(orders[0].rank == w1.first_rank);
    BOOST_TEST(!orders[0].segments.empty());
    answer(orders[0], true);
    BOOST_TEST(opens_verified(0));
    BOOST_TEST(!opens_verified(1), "its own is not done yet");
    BOOST_TEST(was_cancelled(orders[1].order), "it looks itself");
    answer(orders[1], true);
    BOOST_TEST(!opens_verified(1), "too late");
}

BOOST_AUTO_TEST_CASE(nothing_is_verified_while_somebody_may_write) {
    save_everywhere(5);
    next_world(false);
    BOOST_TEST(orders.empty());
    BOOST_TEST(!opens_verified());
}

BOOST_FIXTURE_TEST_CASE(an_agent_of_before_is_not_asked, FormerAgent) {
    save_and_fail();
    BOOST_TEST(orders.empty());
    BOOST_TEST(!opens_verified());
}

BOOST_AUTO_TEST_CASE(damage_is_dropped_before_anybody_reads_it) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(orders[0], false, true);
    BOOST_TEST(count_events(n1, "is damaged in the memory of n1") == 1u);
    BOOST_TEST(!open(0).has_value());
    answer(orders[0], false, true);
    BOOST_TEST(count_events(n1, "is damaged in the memory of n1") == 1u, "an answer counts once");
    answer(orders[1], true);
    BOOST_TEST(opens_verified(1));
}

BOOST_AUTO_TEST_CASE(what_nobody_could_look_at_is_neither_damaged_nor_verified) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(orders[0], false);
    BOOST_TEST(!opens_verified());
    BOOST_TEST(count_events(n1, "is damaged") == 0u);
}

BOOST_AUTO_TEST_CASE(words_of_others_verify_nothing) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    std::swap(a1, a2);
    answer(orders[0], true);
    std::swap(a1, a2);
    auto never = std::move(orders[1]);
    never.order += 100;
    answer(never, true);
    BOOST_TEST(!opens_verified(0));
    BOOST_TEST(!opens_verified(1));
}

BOOST_AUTO_TEST_CASE(it_counts_for_one_world) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    auto before = std::move(orders);
    answer(before[0], true);
    BOOST_TEST(opens_verified(0));
    n1.say(worker, local::RestoreDoneT{}, 0);
    n1.say(worker, local::RestoreT{});
    auto again = n1.port->take<local::RestorePlanT>(worker.id);
    BOOST_REQUIRE(again.has_value());
    BOOST_TEST(again->verified, "nobody has written since");
    n1.daemon->on_closed(worker);
    next_world();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(before[1], true);
    BOOST_TEST(!opens_verified(1));
}

BOOST_AUTO_TEST_CASE(a_daemon_that_comes_back_knows_of_nothing_verified) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(orders[0], true);
    n1.restart();
    a1 = connect_again(true);
    loop.advance(1s);
    take_orders();
    BOOST_TEST(orders.empty(), "programs run");
    BOOST_TEST(!opens_verified());
}

BOOST_AUTO_TEST_CASE(the_status_says_who_has_compared_how_much) {
    auto verified = [this](bool all_nodes = false) {
        return std::move(status_at(n1, alice, all_nodes).groups.at(0)->verified);
    };
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    BOOST_TEST(verified() == nullptr);
    answer(orders[0], true);
    BOOST_TEST(opens_verified(0));
    BOOST_TEST(!opens_verified(1));
    BOOST_REQUIRE(verified() != nullptr);
    BOOST_TEST(verified()->agent_objects == 1u);
    BOOST_TEST(verified()->agent_bytes == Node::object_bytes);
    BOOST_TEST(verified()->rank_objects == 1u);
    BOOST_TEST(verified()->rank_bytes == Node::object_bytes);
    BOOST_TEST(verified()->damaged == 0u);
    next_world();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(orders[0], false, true);
    answer(orders[1], true);
    BOOST_TEST(verified()->agent_objects == 2u);
    BOOST_TEST(verified()->damaged == 1u);
    auto other = n2.start_worker(w2, 0);
    n2.say(other, local::RestoreT{});
    BOOST_TEST(verified(true)->rank_bytes == 2 * Node::object_bytes);
    BOOST_TEST(verified(true)->nodes == 2u);
}

BOOST_AUTO_TEST_CASE(what_an_agent_that_died_had_begun_the_workers_look_at) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(orders[0], true);
    n1.daemon->on_closed(a1);
    BOOST_TEST(opens_verified(0), "it was compared before");
    n1.daemon->on_closed(worker);
    BOOST_TEST(!opens_verified(1));
    n1.daemon->on_closed(worker);
}

BOOST_AUTO_TEST_CASE(the_next_agent_begins_anew) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);
    auto begun = std::move(orders);
    a1 = connect_again(true);
    next_world();  // what an agent ran has gone with it
    BOOST_REQUIRE(orders.size() == 2u);
    answer(begun[0], true);
    answer(orders[1], true);
    BOOST_TEST(!opens_verified(0), "who had that order is dead");
    BOOST_TEST(opens_verified(1));
}

BOOST_AUTO_TEST_CASE(an_order_keeps_no_slot_longer_than_its_world) {
    save_and_fail();
    BOOST_REQUIRE(orders.size() == 2u);  // and nobody answers
    next_world();
    BOOST_REQUIRE(orders.size() == 2u);
    answer(orders[0], true);
    answer(orders[1], true);
    for (std::uint64_t step = 10; step < 16; ++step) save_everywhere(step);
}

BOOST_AUTO_TEST_SUITE_END()
