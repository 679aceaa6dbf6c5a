// SPDX-License-Identifier: Apache-2.0
// What a node does when it is full.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

/// One node that may have two groups.
struct Small : World {
    Node n1{*this, "n1"};

    Small() {
        settings.limits.groups = 2;
        for (std::uint32_t job : {8u, 9u, 10u}) add_job(JobId(job));
    }
    bool registered(std::uint32_t job) {
        auto module = n1.register_step(0, {.job = job});
        loop.advance(1s);
        return n1.port->take<local::DoneT>(module.id).has_value();
    }
    /// Slurm and the module say that the step is over.
    void end(std::uint32_t job) {
        slurm.steps.erase({JobId(job), StepId(0)});
        local::EndStepT end;
        end.job_id = job;
        n1.say(n1.client(local::Role::Spank, 0), std::move(end));
        loop.advance(1s);
    }
    bool known(std::uint32_t job) { return status_at(n1, alice, false, job).groups.size() == 1; }
};

std::optional<std::string> refusal_of_agent(Node &node, std::uint16_t task, std::uint16_t workers) {
    auto agent = node.client(local::Role::Agent, alice);
    local::AgentHelloT hello;
    hello.job_id = 7;
    hello.task = task;
    hello.workers = workers;
    node.say(agent, std::move(hello));
    if (auto failure = node.port->take<local::FailureT>(agent.id)) return failure->text;
    return std::nullopt;
}

constexpr std::uint64_t mib = 1u << 20;

/// n1 has little memory, of which a part is not for checkpoints.
struct Scarce : TwoNodes {
    std::uint64_t available = 100 * mib;  ///< apart from what segments have

    Scarce() {
        n1.budget = MemoryBudget({.user_quota_bytes = 1u << 30, .floor_bytes = 40 * mib},
                                 [this] { return available; });
    }
    /// Why not; empty: it may save so much.
    std::string refusal(const Client &worker, std::uint64_t bytes) {
        local::PrepareT prepare;
        prepare.bytes = bytes;
        n1.say(worker, std::move(prepare));
        auto answer = std::move(n1.port->sent[worker.id].back());
        const auto *failure = answer.body.AsFailure();
        BOOST_TEST((failure != nullptr || answer.body.AsPrepared() != nullptr));
        if (failure) BOOST_TEST((failure->code == local::Refusal::NoMemory));
        return failure ? failure->text : "";
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_limits)

BOOST_FIXTURE_TEST_CASE(no_checkpoint_takes_the_nodes_last_memory, Scarce) {
    auto first = n1.start_worker(w1, 0), second = n1.start_worker(w1, 1);
    std::string refused = refusal(first, 32 * mib);
    for (const char *part : {"128 MiB of memory (ranks: 2, slots: 2 of 32 MiB for this one)",
                             "need 64 MiB more", "can give 60 MiB", "memory.available_floor"})
        BOOST_TEST(refused.find(part) != std::string::npos, part << " in " << refused);
    BOOST_TEST(status_at(n1, alice, false).groups.at(0)->memory_refused == refused);
    BOOST_TEST(n1.budget.held(alice).bytes == 0u);
    BOOST_TEST(refusal(first, 20 * mib) == "");
    BOOST_TEST(refusal(second, 12 * mib).find("can give 20 MiB") != std::string::npos);
    BOOST_TEST(refusal(second, 10 * mib) == "", "down to the floor, and not below");
    BOOST_TEST(n1.budget.held(alice).bytes == 60 * mib);
    // Others take what the floor is for: what is there is used all the same, and does not grow.
    available = 80 * mib;
    BOOST_TEST(n1.try_begin_save(first, 5).has_value());
    BOOST_TEST(refusal(second, 14 * mib).find("can give 0 B") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_worker_is_read_again_when_its_records_are_stored) {
    TwoNodes t;
    auto worker = t.n1.start_worker(t.w1, 0);
    t.loop.advance();
    BOOST_TEST(t.n1.port->held.empty());
    for (std::uint64_t step : {1, 2}) {
        auto slot = t.n1.begin_save(worker, step);
        BOOST_TEST(t.n1.port->held.contains(worker.id), "the begin is on its way to the keeper");
        t.loop.advance();
        BOOST_TEST(t.n1.port->held.empty());
        local::AbortSaveT abort;
        abort.slot = slot;
        t.n1.say(worker, std::move(abort));
        BOOST_TEST(t.n1.port->held.contains(worker.id));
        t.loop.advance();
        BOOST_TEST(t.n1.port->held.empty());
    }
}

BOOST_AUTO_TEST_CASE(an_ended_group_makes_way_for_a_new_one) {
    Small s;
    BOOST_TEST(s.registered(7));
    BOOST_TEST(s.registered(8));
    s.end(7);
    BOOST_TEST(s.known(7));
    BOOST_TEST(s.registered(9));
    BOOST_TEST(!s.known(7));
    BOOST_TEST(s.known(8));
    BOOST_TEST(s.known(9));
    for (const char *left : {"group/7.0", "events/7.0", "promise/7.0", "world/7.0"})
        BOOST_TEST(s.n1.keeper.count(left) == 0u, left);
}

BOOST_AUTO_TEST_CASE(a_group_that_runs_does_not) {
    Small s;
    BOOST_TEST(s.registered(7));
    BOOST_TEST(s.registered(8));
    auto module = s.n1.register_step(0, {.job = 9});
    s.loop.advance(1s);
    auto failure = s.n1.port->take<local::FailureT>(module.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NoMemory));
    BOOST_TEST(failure->text.find("limits.groups") != std::string::npos);
    BOOST_TEST(s.known(7));
    BOOST_TEST(s.known(8));
    BOOST_TEST(s.registered(7), "a step that is known may be registered again");
}

BOOST_AUTO_TEST_CASE(a_user_does_not_take_all_groups) {
    Small s;
    s.settings.limits.groups = 8;
    s.settings.limits.groups_per_user = 1;
    Node n2(s, "n2");
    auto registers = [&](std::uint32_t job) {
        auto module = n2.register_step(1, {.job = job});
        s.loop.advance(1s);
        auto failure = n2.port->take<local::FailureT>(module.id);
        return failure ? failure->text : "";
    };
    BOOST_TEST(registers(7) == "");
    BOOST_TEST(
        registers(8) ==
        "you have 1 elastic steps on this node, more are not allowed (limits.groups_per_user): start fewer "
        "at a time");
    BOOST_TEST(registers(7) == "", "a step that is known may be registered again");
}

BOOST_AUTO_TEST_CASE(the_oldest_of_the_ended_groups_goes_first) {
    Small s;
    BOOST_TEST(s.registered(8));
    BOOST_TEST(s.registered(7));
    s.end(7);
    s.end(8);
    BOOST_TEST(s.registered(9));
    BOOST_TEST(!s.known(8));
    BOOST_TEST(s.known(7));
    BOOST_TEST(s.registered(10));
    BOOST_TEST(!s.known(7));
    BOOST_TEST(s.n1.daemon->group_count() == 2u);
}

BOOST_AUTO_TEST_CASE(a_node_has_1024_workers_of_a_group) {
    for (std::uint16_t tasks : {1, 2, 3}) {
        World world;
        Node n1(world, "n1");
        auto module = n1.register_step(0, {.tasks = tasks});
        world.loop.advance(1s);
        BOOST_REQUIRE(n1.port->take<local::DoneT>(module.id).has_value());
        auto most = static_cast<std::uint16_t>(1024 / tasks);
        for (auto workers : {std::uint16_t{0}, static_cast<std::uint16_t>(most + 1), std::uint16_t{65535}}) {
            auto refusal = refusal_of_agent(n1, 0, workers);
            BOOST_REQUIRE(refusal.has_value());
            BOOST_TEST(refusal->find("1 to 1024 workers") != std::string::npos, workers << " of " << tasks);
        }
        for (std::uint16_t task = 0; task < tasks; ++task)
            BOOST_TEST(!refusal_of_agent(n1, task, most).has_value(), "task " << task << " of " << tasks);
        BOOST_TEST(refusal_of_agent(n1, tasks, most).has_value(), "there is no such task");
    }
}

BOOST_AUTO_TEST_CASE(a_seal_that_is_not_on_record_makes_no_step_complete) {
    TwoNodes t;
    t.save_everywhere(5);
    auto worker = t.n1.start_worker(t.w1, 0);
    auto slot = t.n1.begin_save(worker, 6);
    t.n1.keeper.refused = "slot/";
    t.n1.seal(worker, 6, slot);
    t.loop.advance();
    t.n1.keeper.refused.clear();
    auto failure = t.n1.port->take<local::FailureT>(worker.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NoMemory));
    t.n1.save(t.n1.start_worker(t.w1, 1), 6);
    for (std::uint16_t rank : {0, 1}) t.n2.save(t.n2.start_worker(t.w2, rank), 6);
    t.loop.advance(1s);
    t.n2.exited(t.a2, t.w2, 1, SIGKILL);
    t.await_worlds();
    BOOST_TEST(t.w1.restore_step == 5);
}

BOOST_AUTO_TEST_SUITE_END()
