// SPDX-License-Identifier: Apache-2.0
// A group on two nodes.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(daemon_group)

BOOST_AUTO_TEST_CASE(both_nodes_get_the_same_world) {
    TwoNodes t;
    BOOST_TEST((from_proto(t.w1.generation) == from_proto(t.w2.generation)));
    BOOST_TEST(t.w1.world_size == 4u);
    BOOST_TEST(t.w1.first_rank + t.w2.first_rank == 2u);
    BOOST_TEST(t.w1.local_world_size == 2u);
    BOOST_TEST(t.w1.master_port == t.w2.master_port);
    BOOST_TEST(t.w1.master_addr == t.w2.master_addr);
    BOOST_TEST(t.w1.master_addr == (t.w1.first_rank == 0 ? "10.0.0.n1" : "10.0.0.n2"));
}

BOOST_AUTO_TEST_CASE(a_failure_on_one_node_restarts_both_from_the_complete_step) {
    TwoNodes t;
    t.save_everywhere(5);
    t.n1.save(t.n1.start_worker(t.w1, 0), 6);
    t.n2.exited(t.a2, t.w2, 1, 3 << 8);
    auto old = *t.w1.generation;
    t.await_worlds();
    BOOST_TEST(t.w1.generation->number() > old.number());
    BOOST_TEST(t.w1.restore_step == 5);
    BOOST_TEST(t.w2.restore_step == 5);
    auto worker = t.n2.start_worker(t.w2, 0);
    t.n2.say(worker, local::RestoreT{});
    auto plan = t.n2.port->take<local::RestorePlanT>(worker.id);
    BOOST_REQUIRE(plan.has_value());
    BOOST_TEST(plan->train_step == 5);
}

namespace {

using SharedList = std::vector<local::SharedWithT>;

local::SharedWithT with(std::uint32_t rank, std::uint64_t kept_by, std::uint64_t kept_for) {
    local::SharedWithT entry;
    entry.rank = rank;
    entry.kept_by = kept_by;
    entry.kept_for = kept_for;
    return entry;
}

/// Whether the node took the seal.
bool seal_shared(Node &node, const Client &worker, std::uint64_t step, const SharedList &list) {
    local::SealT seal;
    seal.train_step = step;
    seal.slot = node.begin_save(worker, step);
    for (const auto &entry : list) seal.shared.push_back(std::make_unique<local::SharedWithT>(entry));
    node.say(worker, std::move(seal));
    node.world.loop.advance();
    auto &answers = node.port->sent[worker.id];
    BOOST_REQUIRE(!answers.empty());
    bool taken = answers.back().body.type == local::Body::Done;
    if (!taken) BOOST_TEST((answers.back().body.AsFailure()->code == local::Refusal::BadMessage));
    answers.clear();
    return taken;
}

struct SharingNodes : TwoNodes {
    Client first = n1.start_worker(w1, 0), second = n1.start_worker(w1, 1);
    std::uint32_t a = w1.first_rank, b = w1.first_rank + 1, elsewhere = w2.first_rank;

    /// Rank b keeps for a, and a for b; the other node's ranks save without.
    void save_shared(std::uint64_t step) {
        BOOST_TEST(seal_shared(n1, first, step, {with(b, 11, 22)}));
        BOOST_TEST(seal_shared(n1, second, step, {with(a, 22, 11)}));
        for (std::uint16_t rank : {0, 1}) n2.save(n2.start_worker(w2, rank), step);
        loop.advance(1s);
    }
    /// The other node's worker fails: all begin anew.
    void fail() {
        n2.exited(a2, w2, 1, 3 << 8);
        await_worlds();
        n1.daemon->on_closed(first);
        n1.daemon->on_closed(second);
        first = n1.start_worker(w1, 0);
        second = n1.start_worker(w1, 1);
    }
    std::optional<local::RestorePlanT> restore(const Client &worker) {
        n1.say(worker, local::RestoreT{});
        return n1.port->take<local::RestorePlanT>(worker.id);
    }
    std::optional<local::RestorePlanT> restore_kept(const Client &worker, std::uint32_t rank) {
        local::RestoreKeptT ask;
        ask.rank = rank;
        n1.say(worker, ask);
        return n1.port->take<local::RestorePlanT>(worker.id);
    }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_save_shares_with_other_ranks_of_its_node_only, SharingNodes) {
    for (const SharedList &list :
         {SharedList{with(a, 1, 0)}, SharedList{with(elsewhere, 1, 0)}, SharedList{with(99, 0, 1)},
          SharedList{with(b, 1, 0), with(b, 1, 0)}, SharedList{with(UINT32_MAX, 1, 0)}})
        for (std::uint64_t step = 5; step < 10; ++step) BOOST_TEST(!seal_shared(n1, first, step, list));
    BOOST_TEST(seal_shared(n1, first, 10, {with(b, 1, 0)}), "no slot was lost");
}

BOOST_FIXTURE_TEST_CASE(ranks_that_do_not_say_the_same_of_what_they_share_are_refused, SharingNodes) {
    BOOST_TEST(seal_shared(n1, first, 5, {with(b, 11, 22)}));
    for (const SharedList &list :
         {SharedList{}, SharedList{with(a, 11, 22)}, SharedList{with(a, 22, 0)}, SharedList{with(a, 0, 11)}})
        for (int again = 0; again < 4; ++again) BOOST_TEST(!seal_shared(n1, second, 5, list));
    BOOST_TEST(seal_shared(n1, second, 5, {with(a, 22, 11)}));
    BOOST_TEST(!seal_shared(n1, first, 5, {}), "saved again, otherwise");
    BOOST_TEST(seal_shared(n1, first, 6, {}), "another step is another matter");
}

BOOST_FIXTURE_TEST_CASE(a_rank_gets_the_objects_of_its_keepers_and_no_others, SharingNodes) {
    save_shared(5);
    fail();
    BOOST_TEST(w1.restore_step == 5);
    BOOST_TEST(!restore_kept(first, b).has_value(), "before the plan");
    auto plan = restore(first);
    BOOST_REQUIRE(plan.has_value());
    BOOST_TEST((plan->keepers == std::vector<std::uint32_t>{b}));
    for (std::uint32_t rank : {a, elsewhere, 99u}) BOOST_TEST(!restore_kept(first, rank).has_value());
    for (int again = 0; again < 3; ++again) {
        auto kept = restore_kept(first, b);
        BOOST_REQUIRE(kept.has_value());
        BOOST_TEST(kept->train_step == 5);
        BOOST_TEST(kept->keepers.empty());
        BOOST_REQUIRE(!kept->segments.empty());
        for (const auto &segment : kept->segments) BOOST_TEST(segment->fd, "every time");
    }
    n1.say(first, local::RestoreDoneT{}, 0);
    BOOST_TEST(!restore_kept(first, b).has_value(), "after the end");
}

BOOST_FIXTURE_TEST_CASE(a_daemon_that_comes_back_knows_the_keepers, SharingNodes) {
    save_shared(5);
    GenerationId running{Term(w1.generation->term()), w1.generation->number()};
    n1.restart();
    loop.advance(100ms);
    a1 = n1.start_agent(alice, running);
    loop.advance(10s);
    first = n1.start_worker(w1, 0);
    second = n1.start_worker(w1, 1);
    fail();
    auto plan = restore(first);
    BOOST_REQUIRE(plan.has_value());
    BOOST_TEST(plan->train_step == 5);
    BOOST_TEST(restore_kept(first, b).has_value());
}

/// The only checkpoint turns out to be damaged when it is restored.
struct DamagedShare : SharingNodes {
    void find_damage_of_5() {
        save_shared(5);
        fail();
        BOOST_REQUIRE(restore(first).has_value());
        BOOST_REQUIRE(restore_kept(first, b).has_value());
        local::RestoreDoneT done;
        done.text = "the checksum of chunk \"x\" is wrong";
        done.damaged = b;
        n1.say(first, local::RestoreDoneT(done), 0);
        loop.advance(1s);
    }
};

BOOST_FIXTURE_TEST_CASE(a_group_whose_only_checkpoint_is_damaged_ends, DamagedShare) {
    find_damage_of_5();
    BOOST_TEST(count_events(n1, "What rank " + std::to_string(b) + " has saved of step 5 is damaged") == 1u);
    n1.exited(a1, w1, 1, 3 << 8);
    run(6s);
    for (auto [node, agent] : {std::pair(&n1, &a1), std::pair(&n2, &a2)}) {
        auto ended = node->port->take<local::GroupEndedT>(agent->id);
        BOOST_REQUIRE(ended.has_value());
        BOOST_TEST(ended->exit_code == 1);
    }
    std::string text = "what rank " + std::to_string(b) +
                       " has saved of step 5 is damaged in the memory of n1, and "
                       "no other whole checkpoint is left in memory: ";
    BOOST_TEST(count_events(n1, text) + count_events(n2, text) == 1u, "whichever leads");
}

/// Else all would begin anew.
BOOST_FIXTURE_TEST_CASE(a_daemon_that_comes_back_knows_what_was_damaged, DamagedShare) {
    find_damage_of_5();
    n1.restart();
    loop.advance(100ms);
    a1 = n1.start_agent(alice, from_proto(w1.generation));
    loop.advance(3s);
    n1.exited(a1, w1, 1, 3 << 8);
    run(6s);
    for (auto [node, agent] : {std::pair(&n1, &a1), std::pair(&n2, &a2)}) {
        auto ended = node->port->take<local::GroupEndedT>(agent->id);
        BOOST_REQUIRE(ended.has_value());
        BOOST_TEST(ended->exit_code == 1);
    }
    std::string text =
        "what rank " + std::to_string(b) + " has saved of step 5 is damaged in the memory of n1";
    BOOST_TEST(count_events(n1, text) + count_events(n2, text) == 1u, "whichever leads");
}

/// While rank a reads what b keeps, b's slot is not written.
BOOST_FIXTURE_TEST_CASE(a_keepers_slot_stays_while_it_is_read, SharingNodes) {
    save_shared(5);
    fail();
    BOOST_REQUIRE(restore(first).has_value());
    auto kept = restore_kept(first, b);
    BOOST_REQUIRE(kept.has_value());
    std::set<std::uint16_t> written;
    auto save_everywhere_else = [&](std::uint64_t step) {
        auto slot = n1.begin_save(second, step);
        written.insert(slot);
        n1.seal(second, step, slot);
        n1.save(first, step);
        for (std::uint16_t rank : {0, 1}) n2.save(n2.start_worker(w2, rank), step);
        loop.advance(1s);
    };
    for (std::uint64_t step = 6; step < 12; ++step) save_everywhere_else(step);
    BOOST_TEST(!written.contains(kept->slot));
    n1.say(first, local::RestoreDoneT{}, 0);
    for (std::uint64_t step = 12; step < 18; ++step) save_everywhere_else(step);
    BOOST_TEST(written.contains(kept->slot));
}

BOOST_AUTO_TEST_CASE(objects_of_two_generations_never_make_one_step) {
    TwoNodes t;
    t.save_everywhere(5);
    t.n1.save(t.n1.start_worker(t.w1, 0), 6);
    t.n2.exited(t.a2, t.w2, 1, 3 << 8);
    t.await_worlds();
    // Everybody but the rank that had sealed step 6 in the old generation seals it in the new one.
    t.n1.save(t.n1.start_worker(t.w1, 1), 6);
    for (std::uint16_t rank : {0, 1}) t.n2.save(t.n2.start_worker(t.w2, rank), 6);
    t.loop.advance(2s);
    t.n2.exited(t.a2, t.w2, 1, 4 << 8);
    t.await_worlds();
    BOOST_TEST(t.w1.restore_step == 5);
}

BOOST_AUTO_TEST_CASE(a_killed_daemon_takes_up_where_it_was) {
    TwoNodes t;
    t.save_everywhere(5);
    GenerationId running{Term(t.w1.generation->term()), t.w1.generation->number()};
    for (Node *node : {&t.n1, &t.n2}) {
        auto held = node->budget.held(alice);
        node->restart();
        BOOST_TEST((node->budget.held(alice) == held));
        t.loop.advance(100ms);
        (node == &t.n1 ? t.a1 : t.a2) = node->start_agent(alice, running);
        t.loop.advance(10s);
    }
    BOOST_TEST(!t.n1.port->take<local::StopWorkersT>(t.a1.id).has_value());
    t.n1.exited(t.a1, t.w1, 0, SIGKILL);
    t.await_worlds();
    BOOST_TEST(t.w1.restore_step == 5);
    BOOST_TEST(
        (t.w1.generation->number() > running.number || t.w1.generation->term() > running.term.value()));
}

BOOST_AUTO_TEST_CASE(an_exit_told_before_all_agents_are_back_counts) {
    TwoNodes t;
    GenerationId running{Term(t.w1.generation->term()), t.w1.generation->number()};
    t.n1.restart();
    t.loop.advance(10ms);
    t.a1 = t.n1.start_agent(alice, running);
    t.n1.exited(t.a1, t.w1, 0, SIGKILL);
    t.await_worlds();
    BOOST_TEST(
        (t.w1.generation->number() > running.number || t.w1.generation->term() > running.term.value()));
}

BOOST_AUTO_TEST_CASE(all_finished_is_the_end_also_for_a_node_that_was_away) {
    TwoNodes t;
    GenerationId running{Term(t.w2.generation->term()), t.w2.generation->number()};
    for (std::uint16_t rank : {0, 1}) {
        t.n1.exited(t.a1, t.w1, rank, 0);
        t.n2.exited(t.a2, t.w2, rank, 0);
    }
    t.n2.daemon.reset();
    t.n2.peers.reset();
    t.loop.advance(300ms);
    t.n2.boot(t.n2.keeper.copy());
    t.a2 = t.n2.start_agent(alice, running);
    for (std::uint16_t rank : {0, 1}) t.n2.exited(t.a2, t.w2, rank, 0);
    t.loop.advance(20s);
    auto e1 = t.n1.port->take<local::GroupEndedT>(t.a1.id);
    auto e2 = t.n2.port->take<local::GroupEndedT>(t.a2.id);
    BOOST_REQUIRE(e1.has_value());
    BOOST_REQUIRE(e2.has_value());
    BOOST_TEST(e1->exit_code == 0);
    BOOST_TEST(e2->exit_code == 0);
}

namespace {

struct Finished : TwoNodes {
    SlurmJob &job = slurm.jobs.at(JobId(7));
    explicit Finished(const StepOf &step = {}) : TwoNodes(step) {
        await_worlds();
        for (std::uint16_t rank : {0, 1}) {
            n1.exited(a1, w1, rank, 0);
            n2.exited(a2, w2, rank, 0);
        }
        loop.advance(1s);
        for (auto [node, agent] : {std::pair(&n1, &a1), std::pair(&n2, &a2)}) {
            BOOST_TEST(node->port->take<local::GroupEndedT>(agent->id).has_value());
            node->daemon->on_closed(*agent);
        }
    }
    void lose_batch_host() {
        n1.daemon.reset();
        n1.peers.reset();
        job.nodes = {"n2"};
    }
};

local::OutcomeReplyT outcome_at(Node &node, std::uint32_t uid = alice, std::uint32_t run = 0,
                                bool relay = true) {
    auto person = node.client(local::Role::Cli, uid);
    local::OutcomeRequestT request;
    request.job_id = 7;
    request.restart_count = run;
    request.relay = relay;
    node.say(person, std::move(request));
    node.world.loop.advance(5s);
    auto reply = node.port->take<local::OutcomeReplyT>(person.id);
    BOOST_REQUIRE(reply.has_value());
    return std::move(*reply);
}

local::RollbackReplyT roll_back_at(Node &node, const proto::Generation &generation, std::uint64_t step,
                                   std::uint32_t uid = alice) {
    auto person = node.client(local::Role::Cli, uid);
    local::RollbackRequestT request;
    request.job_id = 7;
    request.generation = std::make_unique<proto::Generation>(generation);
    request.train_step = step;
    node.say(person, std::move(request));
    node.world.loop.advance(5s);
    auto reply = node.port->take<local::RollbackReplyT>(person.id);
    BOOST_REQUIRE(reply.has_value());
    return std::move(*reply);
}

local::ScaleReplyT scale_at(Node &node, std::uint32_t nodes, std::uint32_t uid = alice) {
    auto person = node.client(local::Role::Cli, uid);
    local::ScaleRequestT request;
    request.job_id = 7;
    request.nodes = nodes;
    node.say(person, std::move(request));
    node.world.loop.advance(5s);
    auto reply = node.port->take<local::ScaleReplyT>(person.id);
    BOOST_REQUIRE(reply.has_value());
    return std::move(*reply);
}

/// n2 goes on without n1, the batch host, which Slurm does not give up, and ends well.
struct WithoutHost : TwoNodes {
    WithoutHost() : TwoNodes(StepOf{.min_nodes = 1}) {
        await_worlds();
        n1.daemon.reset();
        n1.peers.reset();
        loop.advance(20s);
        auto world = n2.port->take<local::WorldPublishedT>(a2.id);
        BOOST_REQUIRE(world.has_value());
        for (std::uint16_t rank : {0, 1}) n2.exited(a2, *world, rank, 0);
        loop.advance(1s);
        BOOST_TEST(n2.port->take<local::GroupEndedT>(a2.id).has_value());
        n2.daemon->on_closed(a2);
    }
    /// Besides, a node is asked for in place of n1.
    std::vector<std::string> completed() const {
        std::vector<std::string> lines;
        for (const auto &change : slurm.changes)
            if (change.starts_with("complete ")) lines.push_back(change);
        return lines;
    }
};

using boost::test_tools::per_element;
using Lines = std::vector<std::string>;

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_job_whose_batch_host_is_lost_at_the_groups_end_is_ended, Finished) {
    loop.advance(1min);
    BOOST_TEST(slurm.changes.empty(), "its script may go on");
    lose_batch_host();
    slurm.steps[{JobId(7), StepId(1)}] = {"n2"};
    loop.advance(1min);
    BOOST_TEST(slurm.changes.empty(), "another step of it goes on");
    slurm.steps.erase({JobId(7), StepId(1)});  // the group's own stays with Slurm, where its end got lost
    slurm.away = true;
    loop.advance(3min);
    slurm.away = false;
    loop.advance(10min);
    BOOST_TEST(slurm.changes == std::vector<std::string>{"complete 7 0"}, boost::test_tools::per_element());
}

/// Its script was not at its end.
BOOST_AUTO_TEST_CASE(a_job_that_is_to_run_again_without_its_batch_host_does_after_the_groups_end_too) {
    Finished f(StepOf{.requeue_without_host = true});
    f.lose_batch_host();
    f.slurm.steps.clear();
    f.loop.advance(2min);
    BOOST_TEST(f.slurm.changes == Lines{"again 7 0"}, per_element());
}

BOOST_FIXTURE_TEST_CASE(a_job_that_goes_on_after_the_group_is_looked_at_after_growing_pauses, Finished) {
    loop.advance(2min);
    BOOST_TEST(slurm.looks_at_end == 3u);
    loop.advance(1h);
    BOOST_TEST(slurm.looks_at_end < 14u);
    BOOST_TEST(slurm.looks_at_end > 4u);
}

/// It hears of the end, and not who was lost: itself. srun there would end with its killed tasks' code.
BOOST_FIXTURE_TEST_CASE(a_batch_host_that_comes_back_says_that_nodes_were_lost, WithoutHost) {
    n1.restart();
    loop.advance(5s);
    auto outcome = outcome_at(n1);
    BOOST_TEST((outcome.outcome == local::Outcome::Over));
    BOOST_TEST(outcome.exit_code == 0);
    BOOST_TEST(outcome.lost == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_batch_host_that_the_group_has_lost_may_come_back_for_a_while, WithoutHost) {
    loop.advance(50s);
    BOOST_TEST(completed() == Lines{}, per_element());
    loop.advance(30s);
    BOOST_TEST(completed() == Lines{"complete 7 0"}, per_element());
    auto looks = slurm.looks_at_end;
    loop.advance(30min);
    BOOST_TEST(slurm.looks_at_end == looks);
}

BOOST_FIXTURE_TEST_CASE(a_daemon_says_how_a_group_has_fared, WithoutHost) {
    auto outcome = outcome_at(n2);
    BOOST_TEST((outcome.outcome == local::Outcome::Over));
    BOOST_TEST(outcome.exit_code == 0);
    BOOST_TEST(outcome.lost == 1u);
    BOOST_TEST((outcome_at(n2, bob).outcome == local::Outcome::Unknown));
    BOOST_TEST((outcome_at(n2, alice, 1).outcome == local::Outcome::Unknown));
}

BOOST_AUTO_TEST_CASE(a_person_goes_back) {
    using State = local::RollbackState;
    TwoNodes t;
    t.save_everywhere(10);
    t.save_everywhere(20);
    t.loop.advance(1s);
    proto::Generation before = *t.w1.generation, later(before.term(), before.number() + 1);
    BOOST_TEST((roll_back_at(t.n1, before, 20, bob).state == State::Unknown));
    auto refused = roll_back_at(t.n1, later, 20);
    BOOST_TEST((refused.state == State::Refused));
    BOOST_TEST(refused.text == "its ranks have begun anew since you asked: look at dlrover status");
    refused = roll_back_at(t.n1, before, 10);
    BOOST_TEST((refused.state == State::Refused));
    BOOST_TEST(refused.text.starts_with("it has no folder"), refused.text);
    refused = roll_back_at(t.n1, before, ~std::uint64_t{0});
    BOOST_TEST(refused.text == "there is no such training step");
    BOOST_TEST(!t.n1.port->take<local::StopWorkersT>(t.a1.id).has_value());
    BOOST_TEST((roll_back_at(t.n1, before, 20).state == State::Begun));
    BOOST_TEST(t.n1.port->take<local::StopWorkersT>(t.a1.id).has_value());
    BOOST_TEST(t.n2.port->take<local::StopWorkersT>(t.a2.id).has_value());
    auto again = roll_back_at(t.n1, before, 20);
    BOOST_TEST((again.state == State::Refused), again.text);
}

BOOST_AUTO_TEST_CASE(another_number_of_nodes_is_refused_that_can_not_be) {
    using State = local::ScaleState;
    TwoNodes t(StepOf{.min_nodes = 1});
    BOOST_TEST((scale_at(t.n1, 1).state == State::NotNow));
    t.await_worlds();
    BOOST_TEST((scale_at(t.n1, 1, bob).state == State::Unknown));
    auto refused = scale_at(t.n1, 3);
    BOOST_TEST((refused.state == State::OutOfLimits));
    BOOST_TEST(refused.text == "it can have 1 to 2 nodes (--dlrover-elastic=1:2), not 3");
    BOOST_TEST((scale_at(t.n2, 0).state == State::OutOfLimits));
    refused = scale_at(t.n2, 1);
    BOOST_TEST((refused.state == State::Unable));
    BOOST_TEST(refused.text.starts_with("it has no copies in memory"), refused.text);
    Node login{t, "login"};
    BOOST_TEST((scale_at(login, 3).state == State::OutOfLimits), "it asks the job's nodes");
}

/// A login node knows no group: it asks the job's nodes.
BOOST_AUTO_TEST_CASE(a_person_goes_back_from_elsewhere) {
    TwoNodes t;
    t.save_everywhere(20);
    t.loop.advance(1s);
    Node login{t, "login"};
    BOOST_TEST((roll_back_at(login, *t.w1.generation, 20, bob).state == local::RollbackState::Unknown));
    BOOST_TEST((roll_back_at(login, *t.w1.generation, 20).state == local::RollbackState::Begun));
    BOOST_TEST(t.n1.port->take<local::StopWorkersT>(t.a1.id).has_value());
}

BOOST_FIXTURE_TEST_CASE(a_batch_host_that_slurm_has_given_up_is_not_waited_for, WithoutHost) {
    slurm.jobs[JobId(7)].nodes = {"n2"};
    slurm.steps.clear();
    loop.advance(5s);
    BOOST_TEST(completed() == Lines{"complete 7 0"}, per_element());
}

BOOST_FIXTURE_TEST_CASE(the_end_of_a_job_is_seen_to_by_a_daemon_that_is_started_again, WithoutHost) {
    n2.restart();
    loop.advance(80s);
    BOOST_TEST(completed() == Lines{"complete 7 0"}, per_element());
}

BOOST_FIXTURE_TEST_CASE(another_run_of_the_job_is_left_alone, Finished) {
    slurm.steps.clear();
    job.restart_count = 1;
    lose_batch_host();
    loop.advance(1min);
    BOOST_TEST(slurm.changes.empty());
}

/// Not even those who have not heard yet that it left the job.
BOOST_AUTO_TEST_CASE(a_node_that_slurm_took_out_of_the_job_ends_for_itself_alone) {
    TwoNodes t(StepOf{.min_nodes = 1});
    t.await_worlds();
    t.hub.cut("n1", "n2");
    t.slurm.jobs.at(JobId(7)).nodes = {"n1"};
    t.loop.advance(1min);
    auto end = t.n2.port->take<local::GroupEndedT>(t.a2.id);
    BOOST_REQUIRE(end.has_value());
    BOOST_TEST(end->exit_code == 0, "the job has not failed");
    t.hub.heal("n1", "n2");
    transport::PeerEnvelope question;
    question.job_id = 7;
    question.payload = encode_message(elastic::VoteRequest{Term(5), {}, {}});
    for (int i = 0; i < 5; ++i) {
        t.n1.peers->send("n2", question);
        t.loop.advance(1s);
    }
    BOOST_TEST(!t.n1.port->take<local::GroupEndedT>(t.a1.id).has_value());
    // What came of the group only the others can say.
    BOOST_TEST((outcome_at(t.n2, alice, 0, false).outcome == local::Outcome::Unknown));
    auto outcome = outcome_at(t.n2);
    BOOST_TEST((outcome.outcome == local::Outcome::Running));
    BOOST_TEST(outcome.lost == 1u);
}

BOOST_AUTO_TEST_CASE(a_group_whose_job_is_to_run_again_is_not_over) {
    TwoNodes t(StepOf{.min_nodes = 1});
    t.await_worlds();
    BOOST_TEST((outcome_at(t.n1).outcome == local::Outcome::Running));
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    t.n1.say(t.a1, std::move(signal), 0);
    t.loop.advance(5s);
    BOOST_REQUIRE(t.n1.port->take<local::GroupEndedT>(t.a1.id).has_value());
    auto outcome = outcome_at(t.n1);
    BOOST_TEST((outcome.outcome == local::Outcome::Running));
    BOOST_TEST(outcome.lost == 0u);
}

BOOST_AUTO_TEST_CASE(slurm_decides_who_may_register) {
    World world;
    Node n1(world, "n1");
    auto module = n1.register_step(0, {.uid = bob});
    world.loop.advance(1s);
    auto failure = n1.port->take<local::FailureT>(module.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NotPermitted));
    world.slurm.away = true;
    module = n1.register_step(0);
    world.loop.advance(1s);
    failure = n1.port->take<local::FailureT>(module.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NotReady));
    BOOST_TEST(n1.daemon->group_count() == 0u);
}

BOOST_AUTO_TEST_CASE(only_the_owner_takes_part_and_looks) {
    TwoNodes t;
    auto stranger = t.n1.start_agent(bob);
    auto failure = t.n1.port->take<local::FailureT>(stranger.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NoSuchGroup));
    BOOST_TEST(status_at(t.n1, bob).groups.empty());
    BOOST_TEST(status_at(t.n1, alice).groups.size() == 1u);
    BOOST_TEST(status_at(t.n1, 0).groups.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_login_host_asks_the_nodes) {
    TwoNodes t;
    Node login(t, "login");
    BOOST_TEST(status_at(login, bob).groups.empty());
    auto reply = status_at(login, alice);
    BOOST_REQUIRE(reply.groups.size() == 1u);
    BOOST_TEST(status_at(login, alice, true, 0).groups.size() == 1u, "all his jobs");
    BOOST_TEST(status_at(login, 0, true, 0).groups.size() == 1u, "all jobs");
    BOOST_TEST(status_at(login, bob, true, 0).groups.empty());
    // The leader knows most.
    std::string leader = reply.groups[0]->leader;
    BOOST_TEST(reply.groups[0]->node == leader);
    t.hub.cut("login", leader);
    reply = status_at(login, alice);
    BOOST_REQUIRE(reply.groups.size() == 1u);
    BOOST_TEST(reply.groups[0]->node == (leader == "n1" ? "n2" : "n1"));
}

BOOST_AUTO_TEST_CASE(an_agent_fills_the_jobs_memory) {
    TwoNodes t;
    auto worker = t.n1.start_worker(t.w1, 0);
    local::PrepareT prepare;
    prepare.bytes = 4096;
    t.n1.say(worker, prepare);
    for (int slot = 0; slot < 3; ++slot)
        BOOST_TEST(t.n1.port->take<local::FillSegmentT>(t.a1.id).has_value());
    BOOST_TEST((status_at(t.n1, alice, false).groups.at(0)->arena_charge == "job"));
    // It has gone before it said anything: the next one is told again; so is one that meets a new daemon.
    t.n1.daemon->on_closed(t.a1);
    auto again = t.n1.start_agent(alice, from_proto(t.w1.generation));
    for (int slot = 0; slot < 3; ++slot)
        BOOST_TEST(t.n1.port->take<local::FillSegmentT>(again.id).has_value());
    t.n1.restart();
    auto third = t.n1.start_agent(alice, from_proto(t.w1.generation));
    for (int slot = 0; slot < 3; ++slot)
        BOOST_TEST(t.n1.port->take<local::FillSegmentT>(third.id).has_value());
}

BOOST_AUTO_TEST_CASE(the_daemon_takes_memory_where_slurm_leaves_it_some) {
    TwoNodes t;
    t.slurm.memory_spec_bytes["n1"] = 8u << 20;
    t.add_job(JobId(8));
    Node fresh(t, "n1");
    auto module = fresh.register_step(0, {.job = 8});
    t.loop.advance(100ms);
    BOOST_REQUIRE(fresh.port->take<local::DoneT>(module.id));
    auto status = status_at(fresh, alice, false, 8);
    BOOST_TEST((status.groups.at(0)->arena_charge == "node"));
    BOOST_TEST(!fresh.budget.check(alice, {.bytes = 9u << 20, .node_bytes = 9u << 20}).ok());
}

/// Its segments' ids can be guessed.
BOOST_AUTO_TEST_CASE(an_agent_fills_only_what_it_was_asked_to) {
    auto take_time = [](TwoNodes &t) {
        t.await_worlds();
        auto worker = t.n1.start_worker(t.w1, 0);
        local::PrepareT prepare;
        prepare.bytes = 4096;
        t.n1.say(worker, prepare);
        for (const auto &record : t.n1.keeper.copy()) {
            if (!record.name.starts_with("segment/7.0/")) continue;
            local::SegmentFilledT filled;
            filled.id = std::stoull(record.name.substr(record.name.rfind('/') + 1));
            filled.busy_us = 50;
            t.n1.say(t.a1, std::move(filled), 0);
        }
        return status_at(t.n1, alice, false).groups.at(0)->prefault_us;
    };
    TwoNodes of_the_node(StepOf{.memory_spec_bytes = 64u << 20}), of_the_job(StepOf{});
    BOOST_TEST(take_time(of_the_node) == 0u);
    BOOST_TEST((status_at(of_the_node.n1, alice, false).groups.at(0)->arena_charge == "node"));
    BOOST_TEST(take_time(of_the_job) == 150u);
}

BOOST_AUTO_TEST_CASE(memory_that_is_refused_is_told) {
    TwoNodes t;
    auto worker = t.n1.start_worker(t.w1, 0);
    local::PrepareT prepare;
    prepare.bytes = 1u << 30;  // the quota
    t.n1.say(worker, prepare);
    auto failure = t.n1.port->take<local::FailureT>(worker.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NoMemory));
    auto group = std::move(status_at(t.n1, alice, false).groups.at(0));
    BOOST_TEST(group->memory_refused == failure->text);
    BOOST_TEST(group->memory_need_bytes == std::uint64_t{4} << 30, "two ranks, two slots");
    prepare.bytes = 400u << 20;
    t.n1.say(worker, prepare);
    auto prepared = t.n1.port->take<local::PreparedT>(worker.id);
    BOOST_REQUIRE(prepared.has_value());
    BOOST_TEST(prepared->slots.size() == 2u);
    for (const auto &slot : prepared->slots)
        BOOST_TEST(slot->segments.at(0)->fd, "to be mapped before it is granted");
    group = std::move(status_at(t.n1, alice, false).groups.at(0));
    BOOST_TEST(group->memory_refused.empty());
    BOOST_TEST(group->memory_slots == 2u);
}

BOOST_AUTO_TEST_CASE(a_step_that_slurm_forgot_is_ended_and_forgotten) {
    TwoNodes t;
    t.save_everywhere(5);
    auto module = t.n1.client(local::Role::Spank, 0);
    t.slurm.steps.clear();
    local::EndStepT end;
    end.job_id = 7;
    t.n1.say(module, std::move(end));
    t.n1.daemon->on_closed(t.a1);
    t.loop.advance(1s);
    BOOST_TEST((status_at(t.n1, alice, false).groups.at(0)->state == local::GroupState::Failed));
    t.loop.advance(30min);
    BOOST_TEST(t.n1.daemon->group_count() == 0u);
    BOOST_TEST(t.n1.keeper.copy().empty());
    BOOST_TEST((t.n1.budget.held(alice) == MemoryBudget::Holding{}));
}

BOOST_AUTO_TEST_SUITE_END()
