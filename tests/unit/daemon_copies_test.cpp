// SPDX-License-Identifier: Apache-2.0
// Copies on other nodes: two daemons, and movers that do what the test wants.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/daemon_movers.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

/// Step 5 of two nodes is safe; then the agent of n2 is gone, and n1 alone goes on from it.
struct Resizing : Copying {
    Resizing() : Copying(1) {
        save_everywhere(5);
        run(2s);
        n2.daemon->on_closed(a2);
        run(100s);
        w1 = published(n1, a1);
    }
    static local::WorldPublishedT published(Node &node, const Client &agent) {
        auto world = node.port->take<local::WorldPublishedT>(agent.id);
        BOOST_REQUIRE(world.has_value());
        return std::move(*world);
    }
    /// The answer, once nothing is coming any more.
    template <typename BodyT>
    std::variant<local::RestorePlanT, local::FailureT> ask(Node &node, const Client &worker, BodyT body) {
        for (int i = 0; i < 200; ++i) {
            node.port->sent[worker.id].clear();
            node.say(worker, BodyT(body));
            BOOST_REQUIRE(!node.port->sent[worker.id].empty());
            auto answer = std::move(node.port->sent[worker.id].back().body);
            if (auto *failure = answer.AsFailure()) return std::move(*failure);
            BOOST_REQUIRE(answer.AsRestorePlan() != nullptr);
            if (!answer.AsRestorePlan()->coming) return std::move(*answer.AsRestorePlan());
            ++waited;
            run(200ms);
        }
        BOOST_FAIL("it does not come");
        return local::FailureT();
    }
    local::RestorePlanT plan(Node &node, const Client &worker) {
        auto answer = ask(node, worker, local::RestoreT());
        if (auto *failure = std::get_if<local::FailureT>(&answer)) BOOST_FAIL(failure->text);
        return std::move(std::get<local::RestorePlanT>(answer));
    }
    std::variant<local::RestorePlanT, local::FailureT> object(Node &node, const Client &worker,
                                                              std::uint32_t rank) {
        local::RestoreKeptT kept;
        kept.rank = rank;
        return ask(node, worker, std::move(kept));
    }
    bool has_object(Node &node, const Client &worker, std::uint32_t rank) {
        auto answer = object(node, worker, rank);
        auto *plan = std::get_if<local::RestorePlanT>(&answer);
        return plan != nullptr && plan->segments.size() == 1 && plan->segments[0]->fd &&
               plan->table_bytes == 128;
    }
    void say_damaged(Node &node, const Client &worker, std::uint32_t rank) {
        local::RestoreDoneT done;
        done.text = "the checksum of chunk \"x\" is wrong";
        done.damaged = rank;
        node.say(worker, std::move(done), 0);
    }
    void say_restored(Node &node, const Client &worker) {
        local::RestoreDoneT done;
        done.ok = true;
        node.say(worker, std::move(done), 0);
    }
    /// n1 alone saves step 6, then n2 comes back without memory, and both go on.
    void grow(bool slow = false) {
        for (std::uint16_t rank : {0, 1}) n1.save(n1.start_worker(w1, rank), 6);
        run(2s);
        m1->die();  // or what is lost would be copied again
        lose_checkpoints();
        m1->connect();
        m1->slow = slow;
        n1.exited(a1, w1, 1, 3 << 8);
        await_worlds();
        BOOST_TEST(w2.world_size == 4u);
        BOOST_TEST(w2.restore_step == 6);
    }
    /// What that node holds of rank 1's is damaged; the other one holds it as well.
    void give_way(Node &node, Client &agent, local::WorldPublishedT &w) {
        grow();
        run(5s);
        BOOST_TEST(held(n2, 6) == (std::set<std::uint32_t>{0, 1}));
        m1->slow = m2->slow = true;  // what is dropped stays away
        auto worker = node.start_worker(w, 0);
        BOOST_TEST((plan(node, worker).spread != nullptr));
        say_damaged(node, worker, 1);  // which it has not read
        run(1s);
        BOOST_TEST(held(node, 6).contains(1));
        BOOST_TEST((plan(node, worker).spread != nullptr));
        BOOST_TEST(has_object(node, worker, 1));
        say_damaged(node, worker, 1);
        run(1s);
        BOOST_TEST(!held(node, 6).contains(1));
        BOOST_TEST(warned(node, "What rank 1 has saved of step 6 is damaged in the memory of " + node.name));
        node.exited(agent, w, 1, 3 << 8);
        await_worlds();
        m1->slow = m2->slow = false;
        BOOST_TEST(w1.restore_step == 6);
        worker = node.start_worker(w, 0);
        BOOST_TEST((plan(node, worker).spread != nullptr));
        BOOST_TEST(has_object(node, worker, 1), "from the other node");
    }
    void lose_checkpoints() {
        for (const char *kind : {"slot", "segment"}) n2.keeper.drop(record_name(kind, "7.0") + "/*");
        n2.restart();
        loop.advance(100ms);
        a2 = n2.start_agent(alice);
        m2->expected.clear();
        loop.advance(3s);
        m2->connect();
        run(5s);
        n2.port->sent[a2.id].clear();  // it waits in this world
    }
    int waited = 0;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_copies, Copying)

BOOST_AUTO_TEST_CASE(every_node_has_every_object_of_the_complete_step) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
    // What is safe frees what is older: saves go on for ever.
    for (std::uint64_t step = 6; step < 16; ++step) {
        BOOST_TEST(try_save_everywhere(step), step);
        run(2s);
        BOOST_TEST(held(n1, step) == all_ranks);
        BOOST_TEST(held(n2, step) == all_ranks);
    }
}

BOOST_AUTO_TEST_CASE(what_a_nodes_own_ranks_saved_may_be_the_same) {
    m2->spared = 100;
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(held(n2, 5) == all_ranks);
    // Of that step, while it comes; what came before it is there, too.
    BOOST_REQUIRE(m2->lent_for[0].size() == 1u);
    BOOST_TEST((m2->lent_for[0][0] == std::set<std::uint32_t>{2, 3}));
    BOOST_REQUIRE(m1->lent_for[2].size() == 1u);
    BOOST_TEST(m1->lent_for[2][0].contains(0));
    BOOST_TEST(m1->read.empty());
    auto copies = std::move(status_at(n2, alice, false).groups.at(0)->copies);
    BOOST_REQUIRE(copies != nullptr);
    BOOST_TEST(copies->spared_bytes == 200u);
    BOOST_TEST(copies->arrived_bytes > 200u);
}

BOOST_AUTO_TEST_CASE(what_did_not_come_right_comes_whole) {
    m1->fails = true;
    BOOST_TEST(try_save_everywhere(5));
    run(1s);
    m1->fails = false;
    run(20s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_REQUIRE(m1->lent_for[2].size() >= 2u);
    BOOST_TEST(!m1->lent_for[2].front().empty());
    BOOST_TEST(m1->lent_for[2].back().empty());
    BOOST_TEST(try_save_everywhere(6));
    run(2s);
    BOOST_TEST(held(n1, 6) == all_ranks);
    BOOST_TEST(m1->lent_for[2].back().empty());
}

/// Its mover would take the sender for a stranger.
BOOST_AUTO_TEST_CASE(an_offer_that_comes_twice_is_not_accepted_before_the_mover_expects_it) {
    unruly = true;
    m1->hung = true;
    BOOST_TEST(try_save_everywhere(5));
    run(8s);
    m1->hung = unruly = false;
    run(5s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(try_save_everywhere(6));
    run(2s);
    for (std::uint32_t rank : {2u, 3u}) {
        BOOST_TEST(m1->lent_for[rank].size() == 2u, "none had to be sent again");
        BOOST_TEST(!m1->lent_for[rank].back().empty());
    }
}

BOOST_AUTO_TEST_CASE(a_mover_of_an_earlier_version_is_lent_nothing) {
    m1->die();
    m1->is_old = true;
    m1->connect();
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_REQUIRE(!m1->lent_for[2].empty());
    BOOST_TEST(m1->lent_for[2].back().empty());
}

BOOST_AUTO_TEST_CASE(a_damaged_object_gives_way_to_its_copy) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    n1.exited(a1, w1, 1, 3 << 8);
    await_worlds();
    BOOST_TEST(w1.restore_step == 5);
    std::uint32_t mine = w1.first_rank, other = w2.first_rank;
    auto worker = n1.start_worker(w1, 0);
    n1.say(worker, local::RestoreT{});
    auto says = [&](std::int64_t rank) {
        local::RestoreDoneT done;
        done.text = "the checksum of chunk \"x\" is wrong";
        done.damaged = rank;
        n1.say(worker, std::move(done), 0);
    };
    says(other);  // which this one has not read
    run(1s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    n1.say(worker, local::RestoreT{});
    auto other_reader = n1.start_worker(w1, 1);  // of its own object
    n1.say(other_reader, local::RestoreT{});
    says(mine);
    run(1s);
    BOOST_TEST(!held(n1, 5).contains(mine));
    BOOST_TEST(warned(n1, "damaged in the memory of n1"));
    n1.exited(a1, w1, 1, 3 << 8);
    await_worlds();
    run(5s);
    BOOST_TEST(w1.restore_step == 5);
    BOOST_TEST(held(n1, 5) == all_ranks, "from n2");
    worker = n1.start_worker(w1, 0);
    n1.port->sent[worker.id].clear();
    n1.say(worker, local::RestoreT{});
    BOOST_REQUIRE(!n1.port->sent[worker.id].empty());
    BOOST_TEST(n1.port->sent[worker.id].back().body.AsRestorePlan() != nullptr);
}

BOOST_AUTO_TEST_CASE(no_copy_is_made_of_damaged_bytes) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    m1->damaged = true;
    BOOST_TEST(try_save_everywhere(6));
    run(3s);
    // n1 has owned to both; the step before stays.
    std::set<std::uint32_t> of_n1{w1.first_rank, w1.first_rank + 1};
    for (std::uint32_t rank : of_n1) {
        BOOST_TEST(!held(n1, 6).contains(rank));
        BOOST_TEST(!held(n2, 6).contains(rank));
    }
    BOOST_TEST(warned(n1, "of step 6 is damaged in the memory of n1"));
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
    run(20s);
    BOOST_TEST(!warned(n1, "not copied"), "nobody waits for them");
    n1.exited(a1, w1, 1, 3 << 8);
    await_worlds();
    BOOST_TEST(w1.restore_step == 5);
    m1->damaged = false;
    BOOST_TEST(try_save_everywhere(7));
    run(3s);
    BOOST_TEST(held(n1, 7) == all_ranks);
    BOOST_TEST(held(n2, 7) == all_ranks);
}

/// n2 has lost n1's objects and kept its own.
BOOST_AUTO_TEST_CASE(a_copy_that_is_gone_is_made_again_and_its_step_not_safe_until_then) {
    auto safe_step = [&](Node &node) {
        auto status = status_at(node, alice, false);
        BOOST_REQUIRE(status.groups.size() == 1u);
        return status.groups[0]->copies->safe_step;
    };
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(safe_step(n1) == 5);
    BOOST_TEST(safe_step(n2) == 5);
    for (std::uint32_t rank : {w1.first_rank, w1.first_rank + 1})
        n2.keeper.drop(record_name("slot", "7.0") + "/" + std::to_string(rank) + "/*");
    n2.restart();
    loop.advance(100ms);
    a2 = n2.start_agent(alice, from_proto(w2.generation));
    m2->expected.clear();
    loop.advance(1s);
    m2->connect();
    run(200ms);
    BOOST_TEST(!held(n2, 5).contains(w1.first_rank));
    BOOST_TEST(safe_step(n1) == -1);
    BOOST_TEST(safe_step(n2) == -1);
    run(10s);
    BOOST_TEST(held(n2, 5) == all_ranks);
    BOOST_TEST(safe_step(n1) == 5);
    BOOST_TEST(safe_step(n2) == 5);
}

BOOST_AUTO_TEST_CASE(what_is_not_safe_yet_frees_nothing) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    m1->slow = true;
    BOOST_TEST(try_save_everywhere(6));
    run(2s);
    BOOST_TEST(try_save_everywhere(7));
    run(2s);
    // 5 is safe, 6 is on its way, 7 is the newest complete one.
    BOOST_TEST(!try_save_everywhere(8));
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
}

BOOST_AUTO_TEST_CASE(a_copy_that_fails_is_tried_again) {
    m2->fails = true;
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(!held(n2, 5).contains(w1.first_rank));
    BOOST_TEST(m2->ranks.size() > 2u);
    m2->fails = false;
    run(6s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
    BOOST_TEST(!warned(n1, "not copied"));
}

BOOST_AUTO_TEST_CASE(what_does_not_come_by_ucx_comes_by_tcp) {
    for (Mover *mover : {m1.get(), m2.get()}) {
        mover->die();
        mover->ways = 3;
        mover->connect();
    }
    run(1s);
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    BOOST_TEST(held(n2, 5) == all_ranks);
    BOOST_TEST(m1->sent_by_ucx > 0);
    m1->ucx_fails = true;
    m1->sent_by_ucx = 0;
    for (std::uint64_t step : {6, 7, 8}) {
        BOOST_TEST(try_save_everywhere(step));
        run(8s);
        BOOST_TEST(held(n2, step) == all_ranks, step);
        BOOST_TEST(held(n1, step) == all_ranks, step);
    }
    BOOST_TEST(m1->sent_by_ucx <= 4, "to the other node's two ranks, each of them tried again at most");
    const char *told =
        "By UCX two objects in a row did not come to or from n2 (no memory can be locked): they go "
        "by TCP for 10 min.";
    BOOST_TEST(count_events(n1, told) == 1u);
    m1->ucx_fails = false;
    m1->sent_by_ucx = 0;
    run(10min);
    BOOST_TEST(try_save_everywhere(9));
    run(2s);
    BOOST_TEST(held(n2, 9) == all_ranks);
    BOOST_TEST(m1->sent_by_ucx > 0, "it is tried again");
}

BOOST_AUTO_TEST_CASE(without_a_mover_training_goes_on_unprotected_and_says_so) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    m2->die();
    for (std::uint64_t step : {6, 7}) {
        BOOST_TEST(try_save_everywhere(step));
        run(2s);
    }
    BOOST_TEST(!try_save_everywhere(8));
    run(30s);
    BOOST_TEST(warned(n1, "Checkpoints are not copied to other nodes: dlrover-mover does not run there."));
    BOOST_TEST(
        (warned(n1, "have no copies on other nodes now") || warned(n2, "have no copies on other nodes now")));
    for (std::uint64_t step : {9, 10, 11, 12}) {
        BOOST_TEST(try_save_everywhere(step), step);
        run(2s);
    }
    // And back.
    m2->connect();
    run(10s);
    BOOST_TEST(try_save_everywhere(13));
    run(10s);
    BOOST_TEST(held(n1, 13) == all_ranks);
    BOOST_TEST(held(n2, 13) == all_ranks);
}

BOOST_AUTO_TEST_CASE(a_new_world_stops_what_is_on_its_way) {
    m1->slow = true;
    BOOST_TEST(try_save_everywhere(5));
    run(1s);
    n2.exited(a2, w2, 1, 3 << 8);
    await_worlds();
    BOOST_TEST(w1.restore_step == 5);
    BOOST_TEST(m2->cancelled > 0);
    m1->slow = false;
    run(6s);
    BOOST_TEST(held(n2, 5) == all_ranks);
}

BOOST_AUTO_TEST_CASE(what_a_mover_that_hangs_was_given_is_nobody_elses_until_it_is_gone) {
    BOOST_TEST(try_save_everywhere(5));
    run(2s);
    // It has begun, and writes on whenever it is let.
    m1->slow = true;
    BOOST_TEST(try_save_everywhere(6));
    run(1s);
    auto held_by_it = m2->written;
    BOOST_TEST(held_by_it.size() == 1u);
    m2->hung = true;
    m1->slow = false;
    BOOST_TEST(!n2.port->killed.contains(m2->client.id));
    run(90s);
    BOOST_TEST(n2.port->killed.contains(m2->client.id));
    BOOST_TEST(warned(n2, "was ended"));
    auto hung = std::exchange(m2, std::make_unique<Mover>(n2));
    run(10s);
    for (const auto &[segment, order] : held_by_it) BOOST_TEST(!m2->ever_written.contains(segment));
    hung->die();
    run(10s);
    BOOST_TEST(try_save_everywhere(7));
    run(20s);
    BOOST_TEST(held(n2, 7) == all_ranks);
    bool again = false;
    for (const auto &[segment, order] : held_by_it) again = again || m2->ever_written.contains(segment);
    BOOST_TEST(again, "it is free again");
}

BOOST_AUTO_TEST_CASE(words_that_come_late_twice_and_out_of_order_do_no_harm) {
    unruly = true;
    BOOST_TEST(try_save_everywhere(5));
    run(60s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    BOOST_TEST(held(n2, 5) == all_ranks);
    for (std::uint64_t step = 6; step < 20; ++step) {
        BOOST_TEST(try_save_everywhere(step), step);
        // Also while copies fail, and while worlds come and go.
        m2->fails = step % 4 == 1;
        run(2s);
        if (step % 5 == 0) {
            n2.exited(a2, w2, 1, 3 << 8);
            await_worlds();
        }
        m2->fails = false;
        run(118s);
        BOOST_TEST(held(n1, step) == all_ranks, step);
        BOOST_TEST(held(n2, step) == all_ranks, step);
    }
    // What was late has come; nothing is stuck.
    unruly = false;
    run(15s);
    BOOST_TEST(m1->orders.empty());
    BOOST_TEST(m2->orders.empty());
}

BOOST_AUTO_TEST_CASE(copies_outlive_the_daemon) {
    BOOST_TEST(try_save_everywhere(5));
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
    BOOST_TEST(try_save_everywhere(6));
    run(3s);
    BOOST_TEST(held(n1, 6) == all_ranks);
    BOOST_TEST(held(n2, 6) == all_ranks);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(daemon_guests)

BOOST_AUTO_TEST_CASE(memory_for_the_copies_of_a_node_that_is_lost_is_given_back) {
    Copying t(1);
    for (std::uint64_t step : {5, 6, 7}) {
        BOOST_TEST(t.try_save_everywhere(step));
        t.run(2s);
    }
    auto memory = [&] { return status_at(t.n1, alice, false).groups.at(0)->arena_bytes; };
    auto with_guests = memory();
    // Three slots of each own rank, two of each of the other node's.
    const std::uint64_t slot_bytes = 2u << 20;
    BOOST_TEST(with_guests == (2 * 3 + 2 * 2) * slot_bytes);
    t.n2.daemon.reset();
    t.n2.peers.reset();
    t.slurm.jobs[JobId(7)].nodes = {"n1"};
    std::optional<local::WorldPublishedT> world;
    for (int i = 0; i < 100 && !world; ++i) {
        t.loop.advance(1s);
        world = t.n1.port->take<local::WorldPublishedT>(t.a1.id);
    }
    BOOST_REQUIRE(world.has_value());
    // What is older than the safe step goes at once, that one when there is a newer one.
    t.loop.advance();
    BOOST_TEST(memory() == (2 * 3 + 2) * slot_bytes);
    for (std::uint16_t rank : {0, 1}) t.n1.save(t.n1.start_worker(*world, rank), 8);
    t.loop.advance(1s);
    BOOST_TEST(memory() == 2 * 3 * slot_bytes);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(daemon_fetching, Fetching)

BOOST_AUTO_TEST_CASE(a_worker_hears_how_much_of_what_it_goes_on_from_is_here) {
    m1->slow = true;
    begin_world();
    auto first = coming();
    BOOST_REQUIRE(first != nullptr);
    BOOST_TEST(first->objects == 2u);
    BOOST_TEST(first->objects_here == 0u);
    BOOST_TEST(first->bytes == 2 * Node::object_bytes);
    BOOST_TEST(first->bytes_here == 0u);
    // Longer than any call of the library waits for an answer.
    run(20s);
    BOOST_TEST(coming() != nullptr);
    m1->send_one = true;
    run(1s);
    auto half = coming();
    BOOST_REQUIRE(half != nullptr);
    BOOST_TEST(half->objects_here == 1u);
    BOOST_TEST(half->bytes == 2 * Node::object_bytes);
    BOOST_TEST(half->bytes_here == Node::object_bytes);
    m1->slow = false;
    run(1s);
    auto answer = restore();
    auto *plan = std::get_if<local::RestorePlanT>(&answer);
    BOOST_REQUIRE(plan != nullptr);
    BOOST_TEST(plan->coming == nullptr);
    BOOST_TEST(plan->train_step == 5);
    BOOST_TEST(!warned(n2, "could not be fetched"));
}

BOOST_AUTO_TEST_CASE(what_never_comes_whole_is_given_up_after_some_tries) {
    m2->fails = true;
    m2->ranks.clear();
    begin_world();
    run(10s);
    BOOST_TEST(fails_with("could not be fetched from node n1: the block's checksum is wrong"));
    auto tries = std::ranges::count(m2->ranks, w2.first_rank);
    BOOST_TEST(tries >= 4);
    BOOST_TEST(tries <= 5);
    BOOST_TEST(warned(n2, "could not be fetched from node n1: the block's checksum is wrong."));
}

BOOST_AUTO_TEST_CASE(what_fails_for_a_while_is_fetched_all_the_same) {
    m2->fails = true;
    n2.exited(a2, w2, 1, 3 << 8);
    for (int i = 0; i < 500 && m2->ranks.size() < 8; ++i) run(20ms);
    m2->fails = false;
    await_worlds();
    worker = n2.start_worker(w2, 0);
    run(5s);
    BOOST_TEST(coming() == nullptr);
    BOOST_TEST(!fails_with(""));
}

BOOST_AUTO_TEST_CASE(what_its_source_has_lost_is_given_up) {
    m1->slow = true;
    begin_world();
    BOOST_TEST(coming() != nullptr);
    lose_checkpoints(n1, a1, *m1, w1);
    run(16s);
    BOOST_TEST(fails_with("could not be fetched from node n1: it does not hold that object any more"));
}

BOOST_AUTO_TEST_CASE(what_is_damaged_where_it_would_come_from_is_given_up) {
    m1->damaged = true;
    begin_world();
    run(16s);
    BOOST_TEST(fails_with("could not be fetched from node n1: it does not hold that object any more"));
    BOOST_TEST(warned(n1, "of step 5 is damaged in the memory of n1"));
    BOOST_TEST(!held(n1, 5).contains(w2.first_rank));
}

BOOST_AUTO_TEST_CASE(what_is_fetched_comes_whatever_happens_to_the_words) {
    unruly = true;
    begin_world();
    run(60s);
    BOOST_TEST(coming() == nullptr);
    BOOST_TEST(!fails_with(""));
    BOOST_TEST(!warned(n2, "could not be fetched"));
}

BOOST_AUTO_TEST_CASE(a_source_without_a_mover_is_waited_for_and_named) {
    m1->die();
    begin_world();
    run(20s);
    BOOST_TEST(coming() != nullptr);
    run(20s);
    BOOST_TEST(fails_with("could not be fetched from node n1: dlrover-mover does not run there"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(daemon_resizing, Resizing)

BOOST_AUTO_TEST_CASE(fewer_nodes_go_on_from_memory) {
    BOOST_TEST(w1.world_size == 2u);
    BOOST_TEST(w1.restore_step == 5);
    auto worker = n1.start_worker(w1, 0);
    auto all = plan(n1, worker);
    BOOST_REQUIRE(all.spread != nullptr);
    BOOST_TEST(all.spread->checkpoint->world_size == 4u);
    BOOST_TEST(all.segments.size() == 1u);
    std::set<std::uint64_t> places;
    for (const auto &table : all.spread->tables) {
        BOOST_TEST(table->here);
        BOOST_TEST(table->bytes == 128u);
        BOOST_TEST(table->data_bytes == Node::object_bytes - 128);
        places.insert(table->offset);
    }
    BOOST_TEST(places.size() == 4u);
    for (std::uint32_t rank : {0u, 1u, 2u, 3u}) BOOST_TEST(has_object(n1, worker, rank), rank);
    auto more = object(n1, worker, 4);
    BOOST_TEST(std::holds_alternative<local::FailureT>(more));
    say_restored(n1, worker);
    BOOST_TEST(warned(n1, "State restored from memory, saved by 4 ranks."));
    BOOST_TEST(warned(n2, "from step 5 in memory, saved by 4 ranks"));
    // What was not asked for since the restore is over is nobody's.
    auto late = object(n1, worker, 0);
    BOOST_TEST(std::holds_alternative<local::FailureT>(late));
}

BOOST_AUTO_TEST_CASE(what_another_size_saved_stays_until_a_newer_step_is_safe) {
    BOOST_TEST(held(n1, 5) == all_ranks);
    m1->slow = true;  // no copies
    for (std::uint16_t rank : {0, 1}) n1.save(n1.start_worker(w1, rank), 6);
    run(2s);
    BOOST_TEST(held(n1, 5) == all_ranks);
    m1->slow = false;
    run(10s);
    BOOST_TEST(held(n1, 6) == (std::set<std::uint32_t>{0, 1}));
    BOOST_TEST(held(n2, 6) == (std::set<std::uint32_t>{0, 1}));
    // Who still has a rank of that number writes there next.
    BOOST_TEST(held(n1, 5) == (std::set<std::uint32_t>{0, 1}));
    BOOST_TEST(held(n2, 5) == (std::set<std::uint32_t>{0, 1}));
}

BOOST_AUTO_TEST_CASE(a_node_gets_the_tables_of_all_and_the_objects_that_it_asks_for) {
    grow(true);  // no copies besides
    auto worker = n2.start_worker(w2, 0);
    auto all = plan(n2, worker);
    BOOST_REQUIRE(all.spread != nullptr);
    BOOST_TEST(all.spread->tables.size() == 2u);
    BOOST_TEST(waited > 0);
    BOOST_TEST(!all.spread->tables[1]->here);
    BOOST_TEST(held(n2, 6).empty());
    m1->slow = false;
    BOOST_TEST(has_object(n2, worker, 1));
    BOOST_TEST(has_object(n2, worker, 1));  // again
}

BOOST_AUTO_TEST_CASE(a_step_of_another_size_gets_its_copies) {
    grow();
    run(5s);
    BOOST_TEST(held(n1, 6) == (std::set<std::uint32_t>{0, 1}));
    BOOST_TEST(held(n2, 6) == (std::set<std::uint32_t>{0, 1}));
}

BOOST_AUTO_TEST_CASE(a_damaged_copy_of_another_size_gives_way_to_the_object) {
    give_way(n2, a2, w2);
}

BOOST_AUTO_TEST_CASE(a_damaged_object_of_another_size_gives_way_to_its_copy) {
    give_way(n1, a1, w1);
}

BOOST_AUTO_TEST_CASE(a_damaged_table_of_another_size_is_found_where_it_is) {
    grow(true);  // no copies
    n1.damage_table(1, 6);
    auto worker = n2.start_worker(w2, 0);
    auto answer = ask(n2, worker, local::RestoreT());
    auto *failure = std::get_if<local::FailureT>(&answer);
    BOOST_REQUIRE(failure != nullptr);
    BOOST_TEST(failure->text.find("the table of rank 1 of step 6 could not be fetched from node n1: it is "
                                  "damaged in that node's memory") != std::string::npos,
               failure->text);
    run(1s);
    BOOST_TEST(warned(n1, "What rank 1 has saved of step 6 is damaged in the memory of n1"));
    BOOST_TEST(!held(n1, 6).contains(1));
}

BOOST_AUTO_TEST_CASE(without_room_for_an_object_the_restore_says_so) {
    grow(true);
    auto worker = n2.start_worker(w2, 0);
    BOOST_TEST((plan(n2, worker).spread != nullptr));
    n2.budget.add(alice, {.bytes = std::uint64_t{1} << 30});
    m1->slow = false;
    auto answer = object(n2, worker, 1);
    auto *failure = std::get_if<local::FailureT>(&answer);
    BOOST_REQUIRE(failure != nullptr);
    BOOST_TEST(failure->text.find("step 6 of rank 1 could not be fetched from node n1") == 0u, failure->text);
    BOOST_TEST(warned(n2, "State could not be fetched"));
    n2.budget.remove(alice, {.bytes = std::uint64_t{1} << 30});
}

BOOST_AUTO_TEST_CASE(a_daemon_that_is_started_again_gathers_the_tables_anew) {
    grow();
    auto worker = n2.start_worker(w2, 0);
    BOOST_TEST((plan(n2, worker).spread != nullptr));
    n2.restart();
    loop.advance(100ms);
    a2 = n2.start_agent(alice, from_proto(*w2.generation));
    loop.advance(3s);
    m2->expected.clear();
    m2->connect();
    run(1s);
    worker = n2.start_worker(w2, 0);
    auto early = object(n2, worker, 1);
    BOOST_TEST(std::holds_alternative<local::FailureT>(early));
    BOOST_TEST((plan(n2, worker).spread != nullptr));
    BOOST_TEST(has_object(n2, worker, 1));
}

BOOST_AUTO_TEST_CASE(a_group_may_end_while_a_rank_reads) {
    auto worker = n1.start_worker(w1, 0);
    BOOST_TEST((plan(n1, worker).spread != nullptr));
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    n1.say(a1, std::move(signal), 0);
    run(1s);
    BOOST_TEST(n1.port->take<local::GroupEndedT>(a1.id).has_value());
    n1.daemon->on_closed(worker);
    BOOST_TEST((n1.budget.held(alice).bytes > 0), "kept for the job's next run");
}

BOOST_AUTO_TEST_CASE(words_may_come_late_twice_and_out_of_order) {
    unruly = true;
    grow();
    auto worker = n2.start_worker(w2, 0);
    BOOST_TEST((plan(n2, worker).spread != nullptr));
    for (std::uint32_t rank : {1u, 0u}) BOOST_TEST(has_object(n2, worker, rank), rank);
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

/// The copies of one node, without others: it runs rank 0, and answers for rank 1, of a world whose two ranks
/// have saved on node 2.
struct OneNodesCopies {
    ManualLoop loop;
    FullKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{0};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    Arena arena{{loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false}};
    std::vector<std::string> ended;  ///< fetches
    GroupCopies copies{{loop, arena}, hooks()};
    const CheckpointId saved{GenerationId{Term(1), 1}, TrainStep(5)};

    OneNodesCopies() {
        GroupCopies::Part part;
        part.ranks = {Rank(0)};
        part.answers = {Rank(1)};
        part.homes = {NodeIndex(2), NodeIndex(2)};
        part.restore = saved;
        copies.on_world(std::move(part));
    }
    GroupCopies::Hooks hooks() {
        GroupCopies::Hooks hooks;
        hooks.send = [](NodeIndex, const MoveWord &) {};
        hooks.address_of = hooks.name_of = [](NodeIndex node) { return "n" + std::to_string(node.value()); };
        hooks.changed = [] {};
        hooks.protection = [](bool, const std::string &) {};
        hooks.damaged = [](Rank, const CheckpointId &, SlotIndex) {};
        hooks.fetched = [this](const Status &status) { ended.push_back(status.message()); };
        return hooks;
    }
    /// As often as it is asked for.
    void miss(Rank rank) {
        for (int i = 0; i < 20; ++i) {
            MoveWord word;
            word.kind = MoveWord::Kind::Missing;
            word.rank = rank;
            word.id = saved;
            copies.on_word(NodeIndex(2), word);
            loop.advance(1s);
        }
    }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(what_would_only_get_copies_is_given_up_alone, OneNodesCopies) {
    copies.protect(saved);
    copies.want(Rank(0));
    miss(Rank(1));
    BOOST_TEST(ended.size() == 1u);
    BOOST_TEST(copies.trouble_of_fetch() == "");
    BOOST_REQUIRE(copies.fetching().has_value());
    BOOST_TEST(copies.fetching()->objects == 1u);
    miss(Rank(0));
    BOOST_TEST(ended.size() == 2u);
    BOOST_TEST((copies.trouble_of_fetch().find("step 5 of rank 0 could not be fetched") == 0u));
    BOOST_TEST(!copies.fetching().has_value());
}

BOOST_FIXTURE_TEST_CASE(a_rank_may_go_on_from_what_gets_its_copies, OneNodesCopies) {
    copies.protect(saved);
    copies.want(Rank(1));
    miss(Rank(1));
    BOOST_TEST((copies.trouble_of_fetch().find("step 5 of rank 1 could not be fetched") == 0u));
}
