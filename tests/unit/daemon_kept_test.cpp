// SPDX-License-Identifier: Apache-2.0
// Two nodes whose job is requeued: what stays in memory for its next run, and for how long.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "daemon/companion.h"
#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

/// Its user, or Slurm, had the job requeued.
void wait_in_queue(SlurmJob &job) {
    job.running = job.preempted = false;
    job.waiting = true;
    job.restart_count = 1;
    job.nodes.clear();
}

struct Requeued : TwoNodes {
    /// Step 5 is complete; then the job is told to end.
    explicit Requeued(bool preempted = false, Settings::Duration keep = 30min, StepOf step = {})
        : TwoNodes(step) {
        await_worlds();
        settings.memory.keep_after_requeue = keep;
        save_everywhere(5);
        job().preempted = preempted;
        local::AgentSignalT signal;
        signal.signal = SIGTERM;
        n1.say(a1, std::move(signal), 0);
        loop.advance(1s);
        for (auto [node, agent] : {std::pair(&n1, &a1), std::pair(&n2, &a2)}) {
            BOOST_TEST(node->port->take<local::GroupEndedT>(agent->id).has_value());
            if (preempted) BOOST_TEST(job().waiting);
            node->daemon->on_closed(*agent);
        }
    }
    SlurmJob &job() { return slurm.jobs.at(JobId(7)); }
    void wait_in_queue() {
        ::wait_in_queue(job());
        loop.advance(20s);
    }
    void start_job() {
        job().running = true;
        job().waiting = false;
        job().restart_count = 1;
        job().nodes = {"n1", "n2"};
    }
    void run_again(const StepOf &step = {}) {
        start_job();
        auto m1 = n1.register_step(0, step), m2 = n2.register_step(1, step);
        loop.advance(100ms);
        BOOST_REQUIRE(n1.port->take<local::DoneT>(m1.id) && n2.port->take<local::DoneT>(m2.id));
        a1 = n1.start_agent();
        a2 = n2.start_agent();
        await_worlds();
    }
    bool keeps(Node &node) { return node.budget.held(alice).bytes > 0; }
    static bool has_slots(Node &node, const std::string &step = "7.0") {
        return std::ranges::any_of(node.keeper.copy(), [&](const KeptRecord &record) {
            return record.name.starts_with("slot/" + step + "/");
        });
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_kept)

BOOST_AUTO_TEST_CASE(the_next_run_goes_on_from_memory) {
    Requeued t;
    t.wait_in_queue();
    BOOST_TEST(t.keeps(t.n1));
    t.loop.advance(20min);
    BOOST_TEST(t.keeps(t.n1), "longer than dead_group_ttl");
    auto old = from_proto(*t.w1.generation);
    t.run_again();
    BOOST_TEST((from_proto(*t.w1.generation) > old));
    BOOST_TEST(t.w1.restore_step == 5);
    BOOST_TEST(t.w2.restore_step == 5);
    auto worker = t.n2.start_worker(t.w2, 0);
    t.n2.say(worker, local::RestoreT{});
    auto plan = t.n2.port->take<local::RestorePlanT>(worker.id);
    BOOST_REQUIRE(plan.has_value());
    BOOST_TEST(plan->train_step == 5);
    t.n2.daemon->on_closed(worker);
    // What is not needed any more is not this run's memory either.
    auto kept = t.n1.budget.held(alice).bytes;
    t.save_everywhere(6);
    t.save_everywhere(7);
    BOOST_TEST(t.n1.budget.held(alice).bytes == 2 * kept, "two ranks, steps 6 and 7");
}

/// The job's run before has lost n9. n1 does not begin, or loses power in a world; too few are left.
std::vector<std::string> left_to_check(bool has_world) {
    World w;
    w.slurm.jobs.at(JobId(7)).lost_before = {"n9"};
    Node n1(w, "n1"), n2(w, "n2");
    if (has_world) {
        auto m1 = n1.register_step(0);
        w.loop.advance(100ms);
        BOOST_REQUIRE(n1.port->take<local::DoneT>(m1.id).has_value());
        n1.start_agent();
    }
    auto m2 = n2.register_step(1);
    w.loop.advance(100ms);
    BOOST_REQUIRE(n2.port->take<local::DoneT>(m2.id).has_value());
    auto agent = n2.start_agent();
    for (int i = 0; i < 600; ++i) w.loop.advance(20ms);
    BOOST_TEST(n2.port->take<local::WorldPublishedT>(agent.id).has_value() == has_world);
    n1.daemon.reset();
    n1.peers.reset();
    for (int i = 0; i < 10000 && !w.slurm.jobs.at(JobId(7)).waiting; ++i) w.loop.advance(20ms);
    BOOST_REQUIRE(w.slurm.jobs.at(JobId(7)).waiting);
    BOOST_TEST(w.slurm.changes.back() == "requeue 7 n1");
    return w.slurm.suspects.at(JobId(7));
}

BOOST_AUTO_TEST_CASE(a_run_without_a_world_leaves_to_the_next_one_what_it_was_to_check) {
    BOOST_TEST(left_to_check(false) == std::vector<std::string>({"n1", "n9"}),
               boost::test_tools::per_element());
    BOOST_TEST(left_to_check(true) == std::vector<std::string>({"n1"}), boost::test_tools::per_element());
}

/// A user who begins many steps on a full node drops what is kept for him before what is kept for others.
BOOST_AUTO_TEST_CASE(short_steps_of_others_drop_no_checkpoints_that_are_kept) {
    Requeued t;
    t.wait_in_queue();
    t.settings.limits.groups = 3;
    for (std::uint32_t job = 20; job < 30; ++job) {
        t.add_job(JobId(job));
        auto module = t.n1.register_step(0, {.job = job});
        t.loop.advance(1s);
        BOOST_TEST(t.n1.port->take<local::DoneT>(module.id).has_value());
        t.slurm.steps.erase({JobId(job), StepId(0)});
        local::EndStepT end;
        end.job_id = job;
        t.n1.say(t.n1.client(local::Role::Spank, 0), std::move(end));
        t.loop.advance(1s);
    }
    BOOST_TEST(t.n1.daemon->group_count() == 3u);
    BOOST_TEST(t.keeps(t.n1));
    BOOST_TEST(t.has_slots(t.n1));
    t.run_again();
    BOOST_TEST(t.w1.restore_step == 5);
}

BOOST_AUTO_TEST_CASE(a_preempted_job_is_requeued_before_its_agents_are_told) {
    Requeued t(true);
    BOOST_TEST(t.slurm.changes == std::vector<std::string>{"requeue 7"}, boost::test_tools::per_element());
    BOOST_TEST(t.job().waiting);
    t.loop.advance(20min);
    BOOST_TEST(t.keeps(t.n2), "for its next run");
    t.run_again();
    BOOST_TEST(t.w1.restore_step == 5);
}

/// The daemon that has tied it to the nodes of its last run fell before it freed it.
BOOST_AUTO_TEST_CASE(a_job_that_stays_tied_is_freed) {
    Requeued t(true);
    t.job().is_tied = true;
    t.loop.advance(30s);
    BOOST_TEST(t.job().is_tied, "it may start there any moment");
    t.loop.advance(10min);
    BOOST_TEST(!t.job().is_tied);
    BOOST_TEST(t.keeps(t.n1));
}

/// It fell before Slurm was told where the next run is to start, and when.
BOOST_AUTO_TEST_CASE(a_job_that_slurm_holds_off_is_hastened_by_others) {
    Requeued t(true);
    t.job().is_held_off = true;
    t.loop.advance(5s);
    BOOST_TEST(t.job().is_held_off, "its own daemon is about to");
    t.loop.advance(2min);
    BOOST_TEST(!t.job().is_held_off);
    BOOST_TEST(std::ranges::count(t.slurm.changes, "hasten 7 n1,n2") == 1);
}

/// It fell before it heard Slurm's answer.
BOOST_AUTO_TEST_CASE(a_daemon_that_has_a_preempted_job_requeued_and_falls_sees_to_its_next_run) {
    TwoNodes t;
    t.save_everywhere(5);
    SlurmJob &job = t.slurm.jobs.at(JobId(7));
    job.preempted = t.slurm.silent = true;
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    t.n1.say(t.a1, std::move(signal), 0);
    t.loop.advance(1s);
    t.slurm.speak();        // that it is preempted
    t.loop.advance(100us);  // Slurm is asked once that is on record
    t.n1.restart();
    t.n2.restart();
    t.loop.advance(1s);
    BOOST_TEST(t.slurm.changes.front() == "requeue 7");
    job.is_held_off = true;
    t.loop.advance(2min);
    BOOST_TEST(!job.is_held_off);
    BOOST_TEST(std::ranges::count(t.slurm.changes, "hasten 7 n1,n2") >= 1);
}

/// It fell before it told of the group's end.
BOOST_AUTO_TEST_CASE(a_leader_that_has_the_job_requeued_and_falls_sees_to_its_next_run) {
    TwoNodes t;
    t.save_everywhere(5);
    SlurmJob &job = t.slurm.jobs.at(JobId(7));
    t.hub.cut("n1", "n2");
    job.nodes = {"n1"};
    for (int i = 0; i < 60000 && std::ranges::count(t.slurm.changes, "requeue 7 n2") == 0; ++i) {
        t.slurm.silent = true;
        t.loop.advance(1ms);
        t.slurm.speak();
    }
    BOOST_REQUIRE(std::ranges::count(t.slurm.changes, "requeue 7 n2") == 1);
    t.n1.restart();
    job.is_held_off = true;
    t.loop.advance(2min);
    BOOST_TEST(!job.is_held_off);
    BOOST_TEST(std::ranges::count(t.slurm.changes, "hasten 7 n1") == 1);
}

BOOST_AUTO_TEST_CASE(a_requeue_that_slurm_refuses_is_nobodys) {
    TwoNodes t;
    t.save_everywhere(5);
    SlurmJob &job = t.slurm.jobs.at(JobId(7));
    job.preempted = true;
    for (const char *node : {"n1", "n2"}) job.left.push_back(left_mark(StepId(0), 0, node));
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    t.n1.say(t.a1, std::move(signal), 0);
    t.loop.advance(1s);
    BOOST_TEST(t.slurm.changes.empty());
    t.n1.daemon->on_closed(t.a1);
    t.n2.daemon->on_closed(t.a2);
    wait_in_queue(job);
    job.is_held_off = true;
    t.loop.advance(2min);
    BOOST_TEST(job.is_held_off, "its user had it requeued");
    t.n1.restart();
    t.loop.advance(2min);
    BOOST_TEST(job.is_held_off);
}

/// An administrator may have put it off.
BOOST_AUTO_TEST_CASE(a_job_that_is_held_off_later_is_left_alone) {
    Requeued t(true);
    t.loop.advance(6min);
    t.job().is_held_off = true;
    t.loop.advance(5min);
    BOOST_TEST(t.job().is_held_off);
}

/// They were excluded from a run before; whoever has it requeued now knows nothing of that.
BOOST_AUTO_TEST_CASE(what_groups_have_excluded_is_freed_whoever_has_the_job_requeued) {
    Requeued t;
    t.wait_in_queue();
    t.job().has_excluded = t.job().is_tied = true;
    t.loop.advance(5min);
    BOOST_TEST(!t.job().has_excluded);
    BOOST_TEST(t.job().is_tied, "that is its user's choice");
}

/// A user's own choice of nodes stays.
BOOST_AUTO_TEST_CASE(a_job_that_its_user_has_requeued_is_left_alone) {
    Requeued t;
    t.wait_in_queue();
    t.job().is_tied = true;
    t.loop.advance(5min);
    BOOST_TEST(t.job().is_tied);
}

/// Slurm is away: nobody can say whether it was preempted.
BOOST_AUTO_TEST_CASE(a_job_told_to_end_that_nobody_can_ask_about_ends) {
    TwoNodes t;
    t.slurm.jobs.at(JobId(7)).preempted = true;
    t.slurm.away = true;
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    t.n1.say(t.a1, std::move(signal), 0);
    t.loop.advance(15s);
    BOOST_TEST(!t.n1.port->take<local::GroupEndedT>(t.a1.id).has_value());
    t.loop.advance(15s);
    BOOST_TEST(t.n1.port->take<local::GroupEndedT>(t.a1.id).has_value());
}

BOOST_AUTO_TEST_CASE(a_preempted_job_is_requeued_when_slurm_answers_at_last) {
    TwoNodes t;
    t.slurm.jobs.at(JobId(7)).preempted = true;
    t.slurm.away = true;
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    t.n1.say(t.a1, std::move(signal), 0);
    t.loop.advance(5s);
    BOOST_TEST(t.slurm.changes.empty());
    t.slurm.away = false;
    t.loop.advance(3s);
    BOOST_TEST(t.slurm.changes == std::vector<std::string>{"requeue 7"}, boost::test_tools::per_element());
    BOOST_TEST(t.n1.port->take<local::GroupEndedT>(t.a1.id).has_value());
}

BOOST_AUTO_TEST_CASE(daemons_that_were_started_again_know_what_they_keep) {
    Requeued t;
    t.n1.restart();
    t.wait_in_queue();
    t.n2.restart();
    t.run_again();
    BOOST_TEST(t.w1.restore_step == 5);
    t.n1.restart();
    t.save_everywhere(6);
    BOOST_TEST(t.keeps(t.n1));
}

BOOST_AUTO_TEST_CASE(a_job_that_does_not_come_back_gives_it_back) {
    Requeued cancelled;
    BOOST_TEST(cancelled.keeps(cancelled.n1));
    cancelled.job().running = false;
    cancelled.loop.advance(20s);
    BOOST_TEST(!cancelled.keeps(cancelled.n1));
    BOOST_TEST(!Requeued::has_slots(cancelled.n1));

    Requeued runs_on;  // a signal, and nothing came of it
    runs_on.loop.advance(1min);
    BOOST_TEST(runs_on.keeps(runs_on.n1));
    runs_on.loop.advance(2min);
    BOOST_TEST(!runs_on.keeps(runs_on.n1));

    Requeued later;
    later.wait_in_queue();
    later.job().waiting = false;
    later.loop.advance(80s);
    BOOST_TEST(!later.keeps(later.n1));

    Requeued elsewhere;
    elsewhere.wait_in_queue();
    elsewhere.job().waiting = false;
    elsewhere.job().running = true;
    elsewhere.job().nodes = {"n2", "n3"};
    elsewhere.loop.advance(80s);
    BOOST_TEST(!elsewhere.keeps(elsewhere.n1));
    BOOST_TEST(elsewhere.keeps(elsewhere.n2));
}

BOOST_AUTO_TEST_CASE(slurm_may_be_away_meanwhile) {
    Requeued t;
    t.slurm.away = true;
    t.loop.advance(10min);
    BOOST_TEST(t.keeps(t.n1));
}

BOOST_AUTO_TEST_CASE(it_is_kept_as_long_as_the_site_says) {
    for (Settings::Duration keep : {2min, 180min}) {
        Requeued t(false, keep);
        t.wait_in_queue();
        t.settings.memory.keep_after_requeue = 1h;  // for what is kept from then on
        t.n2.restart();
        t.loop.advance(keep - 30s);
        BOOST_TEST(t.keeps(t.n1));
        BOOST_TEST(t.keeps(t.n2));
        t.loop.advance(30s);
        BOOST_TEST(!t.keeps(t.n1));
        BOOST_TEST(!t.keeps(t.n2), "nor by a daemon that was started again");
        BOOST_TEST(!Requeued::has_slots(t.n1));
        t.run_again();
        BOOST_TEST(t.w1.restore_step == -1);
    }
}

BOOST_AUTO_TEST_CASE(a_site_may_keep_nothing) {
    Requeued t;
    t.wait_in_queue();
    t.settings.memory.keep_after_requeue = 0s;
    t.run_again();
    local::AgentSignalT signal;
    signal.signal = SIGTERM;
    t.n1.say(t.a1, std::move(signal), 0);
    t.loop.advance(1s);
    BOOST_TEST(!t.keeps(t.n1));
}

BOOST_AUTO_TEST_CASE(another_program_does_not_get_it) {
    Requeued t;
    t.wait_in_queue();
    t.run_again({.program = "other"});
    BOOST_TEST(t.w1.restore_step == -1);
    BOOST_TEST(!t.keeps(t.n1));
}

/// It does where the batch host was lost, depending on who is the last to say that the job is over.
BOOST_AUTO_TEST_CASE(slurm_may_go_on_counting_the_jobs_steps) {
    Requeued t;
    t.wait_in_queue();
    t.run_again({.number = 1});
    BOOST_TEST(t.w1.restore_step == 5);
    for (Node *node : {&t.n1, &t.n2}) {
        BOOST_TEST(Requeued::has_slots(*node, "7.1"));
        BOOST_TEST(!Requeued::has_slots(*node));
        BOOST_TEST(node->keeper.count("group/7.0") == 0u);
    }
    auto kept = t.n1.budget.held(alice).bytes;
    t.n1.restart();
    BOOST_TEST(t.n1.budget.held(alice).bytes == kept);
    t.loop.advance(100ms);
    t.a1 = t.n1.start_agent(alice, from_proto(t.w1.generation));
    auto worker = t.n1.start_worker(t.w1, 0);
    t.n1.say(worker, local::RestoreT{});
    auto plan = t.n1.port->take<local::RestorePlanT>(worker.id);
    BOOST_REQUIRE(plan.has_value());
    BOOST_TEST(plan->train_step == 5);
}

/// A script that begins anew with the same command, and came to its second step before.
BOOST_AUTO_TEST_CASE(an_earlier_step_of_the_job_does_not_get_it) {
    Requeued t(false, 30min, {.number = 1});
    t.wait_in_queue();
    t.run_again({.number = 0});
    BOOST_TEST(t.w1.restore_step == -1);
    BOOST_TEST(Requeued::has_slots(t.n1, "7.1"), "its own may come yet");
}

/// Which ranks share objects is different then.
BOOST_AUTO_TEST_CASE(other_numbers_of_ranks_on_the_nodes_do_not_get_it) {
    Requeued t;
    t.wait_in_queue();
    t.start_job();
    (void)t.n1.register_step(0, {.tasks = 2});
    t.loop.advance(100ms);
    BOOST_TEST(!t.keeps(t.n1));
    BOOST_TEST(t.keeps(t.n2));
}

BOOST_AUTO_TEST_CASE(it_goes_where_somebody_needs_the_memory) {
    Requeued t;
    t.wait_in_queue();
    constexpr std::uint64_t quota = 1u << 30;
    BOOST_TEST(!t.n1.budget.make_room(alice, {.bytes = quota + 1}).ok());
    BOOST_TEST(t.keeps(t.n1), "it would not have been enough");
    BOOST_TEST(t.n1.budget.make_room(bob, {.bytes = quota}).ok());
    BOOST_TEST(t.keeps(t.n1), "there was enough");
    BOOST_TEST(t.n1.budget.check(alice, {.bytes = quota}).ok());
    BOOST_TEST(t.keeps(t.n1), "nothing is taken yet");
    BOOST_TEST(t.n1.budget.make_room(alice, {.bytes = quota}).ok());
    BOOST_TEST(!t.keeps(t.n1));
    BOOST_TEST(!Requeued::has_slots(t.n1));
    t.run_again();
    BOOST_TEST(t.w1.restore_step == -1);
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

struct FakeKept final : MemoryBudget::Kept {
    std::uint64_t bytes = 0;
    MemoryBudget *budget = nullptr;
    MemoryBudget::Holding held(std::optional<std::uint32_t> uid) const override {
        return uid && *uid != bob ? MemoryBudget::Holding{} : MemoryBudget::Holding{.bytes = bytes};
    }
    bool release(std::optional<std::uint32_t>) override {
        if (bytes == 0) return false;
        budget->remove(bob, {.bytes = bytes});
        gone = budget->pages_leave(std::exchange(bytes, 0));
        return true;
    }
    std::function<void()> gone;
};

}  // namespace

/// What is kept goes for memory that somebody gets, and for no more than that.
BOOST_AUTO_TEST_CASE(it_stays_where_the_memory_is_refused_all_the_same) {
    constexpr std::uint64_t mib = 1u << 20;
    constexpr GenerationId generation{Term(1), 1};
    struct Job final : JobMemory {
        std::optional<Allowance> allowance(Rank) const override { return allowed; }
        void fill(Rank, const ArenaSegment &) override {}
        std::optional<Allowance> allowed;
    } job;
    ManualLoop loop;
    MemoryKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{0};
    MemoryBudget budget({1u << 30, 0}, [] { return 100 * mib; });
    FakeKept kept;
    kept.budget = &budget;
    kept.bytes = 50 * mib;
    budget.use_kept(&kept);
    budget.add(bob, {.bytes = kept.bytes});
    Arena arena({loop, keeper, prefaulter, budget, &job}, {"7.0", alice, 3, false});
    job.allowed = JobMemory::Allowance{{60 * mib, 0, "/job_7"}, 0};
    BOOST_TEST(!arena.prepare(Rank(0), 60 * mib).ok(), "the job has no room");
    BOOST_TEST(kept.bytes == 50 * mib);
    arena.expect({{Rank(0), Rank(1), Rank(2), Rank(3), Rank(4)}, {}});
    BOOST_TEST(arena.prepare(Rank(0), 10 * mib).ok(), "the others may never come");
    BOOST_TEST(kept.bytes == 50 * mib);
    job.allowed.reset();
    BOOST_TEST(arena.begin(Rank(1), 7, TrainStep(1), generation, 60 * mib).ok());
    BOOST_TEST(kept.bytes == 50 * mib, "there was enough for one slot");
    BOOST_TEST(arena.begin(Rank(1), 7, TrainStep(2), generation, 60 * mib).ok());
    BOOST_TEST(kept.bytes == 0u);
    budget.use_kept(nullptr);
}

BOOST_AUTO_TEST_CASE(pages_on_their_way_back_count_as_available) {
    std::uint64_t available = 100;
    MemoryBudget budget({1000, 10}, [&] { return available; });
    FakeKept kept;
    kept.budget = &budget;
    kept.bytes = 50;
    budget.use_kept(&kept);
    budget.add(bob, {.bytes = 50});
    BOOST_TEST(!budget.make_room(alice, {.bytes = 141}).ok());
    BOOST_TEST(kept.bytes == 50u);
    BOOST_TEST(budget.make_room(alice, {.bytes = 90}).ok());
    BOOST_TEST(kept.bytes == 50u);
    BOOST_TEST(budget.check(alice, {.bytes = 140}).ok());
    BOOST_TEST(kept.bytes == 50u);
    BOOST_TEST(budget.make_room(alice, {.bytes = 140}).ok());
    BOOST_TEST(kept.bytes == 0u);
    BOOST_TEST(budget.check(alice, {.bytes = 140}).ok());
    available = 150;
    kept.gone();
    BOOST_TEST(budget.check(alice, {.bytes = 140}).ok());
    BOOST_TEST(!budget.check(alice, {.bytes = 141}).ok());
    available = 9;
    BOOST_TEST(budget.below_floor());
}
