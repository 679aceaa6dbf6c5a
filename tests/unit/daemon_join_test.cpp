// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "daemon/companion.h"
#include "daemon/registration.h"
#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;

namespace {

/// The first step of job 20, on n3.
proto::StepRegistrationT newcomer() {
    proto::StepRegistrationT step;
    step.cluster = "lab";
    step.job_id = 20;
    step.uid = alice;
    step.node_names = {"n3"};
    step.tasks_per_node = {1};
    step.argv = {"train"};
    step.options = std::make_unique<proto::ElasticOptionsT>();
    step.options->min_nodes = step.options->max_nodes = 1;
    step.options->redundancy = "single";
    return step;
}

SlurmJob running_job(std::uint32_t uid, std::vector<std::string> nodes) {
    SlurmJob job;
    job.running = true;
    job.uid = uid;
    job.nodes = std::move(nodes);
    return job;
}

proto::JoinTargetT target_of(std::uint32_t job, std::uint32_t run = 0) {
    proto::JoinTargetT target;
    target.job_id = job;
    target.restart_count = run;
    return target;
}

/// Two nodes run alice's step 7.0; n3 has her job 20.
struct ThreeNodes : TwoNodes {
    Node n3{*this, "n3"};

    ThreeNodes() : ThreeNodes(StepOf{}) {}
    explicit ThreeNodes(const StepOf &step) : TwoNodes(step) {
        await_worlds();
        slurm.addresses["n3"] = "10.0.0.n3";
        slurm.jobs[JobId(20)] = running_job(alice, {"n3"});
        slurm.steps[{JobId(20), StepId(0)}] = {"n3"};
    }
    Client join(proto::StepRegistrationT step, const proto::JoinTargetT &target) {
        auto module = n3.client(local::Role::Spank, 0);
        local::RegisterStepT request;
        request.step = std::make_unique<proto::StepRegistrationT>(std::move(step));
        request.join = std::make_unique<proto::JoinTargetT>(target);
        n3.say(module, std::move(request));
        run(100ms);
        return module;
    }
    /// "" where it is taken.
    std::string refusal(proto::StepRegistrationT step, const proto::JoinTargetT &target) {
        auto module = join(std::move(step), target);
        auto failure = n3.port->take<local::FailureT>(module.id);
        return failure ? failure->text : "";
    }
    std::string agent_refusal(std::uint32_t uid = alice) {
        auto agent = n3.client(local::Role::Agent, uid);
        local::AgentHelloT hello;
        hello.job_id = 20;
        hello.workers = 2;
        n3.say(agent, std::move(hello));
        auto failure = n3.port->take<local::FailureT>(agent.id);
        return failure ? failure->text : "";
    }
    /// As another daemon would say it to n2 and n1.
    void say_ask(proto::StepRegistrationT step) {
        join::WordT word;
        word.kind = join::Kind::Ask;
        word.companion_job = step.job_id;
        word.step = std::make_unique<proto::StepRegistrationT>(std::move(step));
        transport::PeerEnvelope envelope;
        envelope.kind = transport::PeerEnvelope::Kind::join;
        envelope.job_id = 7;
        envelope.payload = encode_join_word(word);
        for (const char *node : {"n1", "n2"}) n3.peers->connect_to(node, "");
        run(100ms);
        for (const char *node : {"n1", "n2"}) n3.peers->send(node, envelope);
        run(100ms);
    }
};

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_join)

BOOST_AUTO_TEST_CASE(only_ones_own_running_job_can_be_joined) {
    auto step = newcomer();
    SlurmJob own = running_job(alice, {"n3"}), main = running_job(alice, {"n1", "n2"});
    auto target = target_of(7);
    BOOST_TEST(check_target(step, own, target, main).ok());
    main.uid = bob;
    BOOST_TEST((check_target(step, own, target, main).code() == Code::permission_denied));
    main.uid = alice;
    main.restart_count = 1;
    BOOST_TEST((check_target(step, own, target, main).code() == Code::stale));
    target.any_run = true;
    BOOST_TEST(check_target(step, own, target, main).ok());
    main.running = false;
    BOOST_TEST((check_target(step, own, target, main).code() == Code::stale));
}

BOOST_AUTO_TEST_CASE(a_job_is_one_node_of_one_group_once) {
    auto step = newcomer();
    SlurmJob own = running_job(alice, {"n3"}), main = running_job(alice, {"n1", "n2"});
    own.mark = companion_mark(JobId(7), StepId(0), 0);
    BOOST_TEST(check_target(step, own, target_of(7), main).ok());
    own.mark = companion_mark(JobId(8), StepId(0), 0);
    BOOST_TEST(!check_target(step, own, target_of(7), main).ok());
    own.mark.clear();
    own.restart_count = 1;  // what it promised in its first run is forgotten
    BOOST_TEST(!check_target(step, own, target_of(7), main).ok());
    own.restart_count = 0;
    step.step_id = 1;
    BOOST_TEST(!check_target(step, own, target_of(7), main).ok());
    step.step_id = 0;
    own.nodes = {"n3", "n4"};  // its end would be more than that of a node
    BOOST_TEST(!check_target(step, own, target_of(7), main).ok());
    own.nodes = {"n3"};
    BOOST_TEST(check_target(step, own, target_of(7), main).ok());
    step.job_id = 7;
    BOOST_TEST(!check_target(step, own, target_of(7), main).ok(), "the step itself");
}

BOOST_AUTO_TEST_CASE(a_launch_specification_has_a_bound) {
    proto::LaunchSpecT launch;
    BOOST_TEST(!check_launch(launch).ok());
    launch.argv = {"train"};
    launch.environment = {"A=b"};
    BOOST_TEST(check_launch(launch).ok());
    launch.environment.push_back("B=" + std::string(max_launch_bytes - 13, 'x'));
    BOOST_TEST(check_launch(launch).ok());
    launch.environment.emplace_back("");
    BOOST_TEST(!check_launch(launch).ok());
    launch.environment = {std::string("A=b\0c", 5)};
    BOOST_TEST(!check_launch(launch).ok());
}

BOOST_AUTO_TEST_CASE(a_table_may_grow) {
    auto step = newcomer();
    step.node_names = {"n1", "n2", "n3", "n2"};  // n2 was lost, and has come again
    step.tasks_per_node = {1, 1, 1, 1};
    step.options->max_nodes = 2;
    step.node_index = 2;
    BOOST_TEST(!check_registration(step, "n3").ok());
    step.companion_jobs = {20, 21};
    BOOST_TEST(check_registration(step, "n3").ok());
    step.companion_jobs = {20, 21, 22, 23};
    BOOST_TEST(!check_registration(step, "n3").ok());
}

BOOST_AUTO_TEST_CASE(words_of_the_user_reach_srun_as_they_are) {
    CompanionOrder order;
    order.job = JobId(57);
    order.step = StepId(1);
    order.restart_count = 2;
    order.tasks = 8;
    order.options = {"--dlrover-ckpt-dir=/a b'$(x)"};
    order.argv = {"/bin/sh", "-c", "echo \"$0\"; '`reboot`'"};
    auto words = companion_words(order, 3);
    std::vector<std::string> expected = {"dlrover-companion",
                                         "--nodes=1",
                                         "--ntasks=8",
                                         "--cpus-per-task=3",
                                         "--dlrover-join=57.1.2",
                                         "--dlrover-ckpt-dir=/a b'$(x)",
                                         "--",
                                         "/bin/sh",
                                         "-c",
                                         "echo \"$0\"; '`reboot`'"};
    BOOST_TEST(words == expected, boost::test_tools::per_element());
    BOOST_TEST(companion_script == std::string("#!/bin/sh\nexec srun \"$@\"\n"));
}

BOOST_AUTO_TEST_CASE(what_belongs_to_the_old_job_is_left_out_of_the_environment) {
    auto lines =
        companion_environment({"PATH=/bin", "SLURM_JOB_ID=7", "SLURM_UMASK=0022", "DLROVER_ELASTIC=2:4",
                               "SLURM_SPANK__SLURM_SPANK_OPTION_dlrover_dlrover_elastic=2",
                               "CUDA_VISIBLE_DEVICES=3", "SLURM_RLIMIT_CORE=0", "no variable", "=x"});
    std::vector<std::string> expected = {"PATH=/bin", "SLURM_UMASK=0022", "SLURM_RLIMIT_CORE=0"};
    BOOST_TEST(lines == expected, boost::test_tools::per_element());
    BOOST_TEST(companion_environment({}).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_mark_stands_among_other_words) {
    BOOST_TEST(find_mark("site:x dlrover:7.0.0 more") == "dlrover:7.0.0");
    BOOST_TEST(find_mark("not-dlrover:7.0.0") == "");
    BOOST_TEST(find_mark("") == "");
}

BOOST_AUTO_TEST_CASE(join_words_are_checked) {
    join::WordT word;
    word.kind = join::Kind::Ask;
    word.companion_job = 20;
    BOOST_TEST(!decode_join_word(encode_join_word(word)).ok());  // whose step?
    word.step = std::make_unique<proto::StepRegistrationT>(newcomer());
    BOOST_TEST(decode_join_word(encode_join_word(word)).ok());
    word.kind = join::Kind::Welcome;
    BOOST_TEST(!decode_join_word(encode_join_word(word)).ok());
    word.workers = 2;
    word.lineage = "lab/1000/train";
    BOOST_TEST(decode_join_word(encode_join_word(word)).ok());
    word.text.assign(5000, 'x');
    BOOST_TEST(!decode_join_word(encode_join_word(word)).ok());
    word.text.clear();
    word.companion_job = 0;
    BOOST_TEST(!decode_join_word(encode_join_word(word)).ok());
}

BOOST_FIXTURE_TEST_CASE(the_daemon_believes_slurm_not_the_step, ThreeNodes) {
    BOOST_TEST(has(refusal(newcomer(), target_of(8)), "you have no job 8"));
    slurm.jobs[JobId(9)] = running_job(bob, {"n1"});
    BOOST_TEST(has(refusal(newcomer(), target_of(9)), "you have no job 9"));
    BOOST_TEST(has(refusal(newcomer(), target_of(7, 1)), "is in run 0"));
    auto stranger = newcomer();
    stranger.uid = bob;
    BOOST_TEST(has(refusal(std::move(stranger), target_of(7)), "belongs to another user"));
    BOOST_TEST(agent_refusal() != "");
}

BOOST_FIXTURE_TEST_CASE(an_agent_waits_for_the_leader, ThreeNodes) {
    auto module = join(newcomer(), target_of(7));
    BOOST_TEST(n3.port->take<local::DoneT>(module.id).has_value());
    slurm.jobs[JobId(7)].nodes.clear();
    BOOST_TEST(has(agent_refusal(), "has not taken this node in yet"));
    BOOST_TEST(!has(agent_refusal(bob), "job 7"));
}

BOOST_FIXTURE_TEST_CASE(a_group_looks_at_who_asks, ThreeNodes) {
    auto count = [&] {
        return static_cast<std::size_t>(std::ranges::count_if(
            slurm.changes, [](const auto &change) { return change.starts_with("mark 20"); }));
    };
    auto other = newcomer();
    other.uid = bob;
    say_ask(std::move(other));
    other = newcomer();
    other.argv = {"another"};
    say_ask(std::move(other));
    other = newcomer();
    other.tasks_per_node = {2};
    say_ask(std::move(other));
    other = newcomer();
    other.node_names = {"n1"};
    say_ask(std::move(other));
    slurm.jobs[JobId(20)].uid = bob;
    say_ask(newcomer());
    BOOST_TEST(count() == 0u);
    slurm.jobs[JobId(20)].uid = alice;
    say_ask(newcomer());
    BOOST_TEST(count() == 1u);
}

/// n1, the batch host, loses power; n2 goes on alone, and its daemon asks for a node.
BOOST_AUTO_TEST_CASE(a_companion_takes_a_lost_nodes_place) {
    StepOf step;
    step.min_nodes = 1;
    ThreeNodes f(step);
    f.n1.daemon.reset();
    f.n1.peers.reset();
    f.run(30s);
    BOOST_REQUIRE(f.slurm.orders.size() == 1u);
    auto [companion, order] = *f.slurm.orders.begin();
    BOOST_TEST(order.argv == std::vector<std::string>{"train"}, boost::test_tools::per_element());
    BOOST_TEST(order.excluded.size() == 2u);
    BOOST_TEST(count_events(f.n2, "in place of n1: job " + std::to_string(companion.value())) == 1u);

    auto &job = f.slurm.jobs[companion];
    job.waiting = false;
    job.running = true;
    job.nodes = {"n3"};
    f.slurm.steps[{companion, StepId(0)}] = {"n3"};
    auto joiner = newcomer();
    joiner.job_id = companion.value();
    auto module = f.join(std::move(joiner), target_of(7));
    BOOST_REQUIRE(f.n3.port->take<local::DoneT>(module.id).has_value());
    f.run(3s);
    auto agent = f.n3.client(local::Role::Agent, alice);
    local::AgentHelloT hello;
    hello.job_id = companion.value();
    hello.workers = 2;
    f.n3.say(agent, std::move(hello));
    auto welcome = f.n3.port->take<local::AgentWelcomeT>(agent.id);
    BOOST_REQUIRE(welcome.has_value());
    BOOST_TEST(welcome->job_id == 7u);
    f.run(5s);
    BOOST_TEST(count_events(f.n2, "n3 has joined the group") == 1u);
    BOOST_TEST(f.n2.group_record().addresses.at(2) == "10.0.0.n3");
    auto status = status_at(f.n3, alice, false);
    BOOST_REQUIRE(status.groups.size() == 1u);
    BOOST_TEST(status.groups[0]->leader == "n2");
    BOOST_TEST(status.groups[0]->nodes == std::vector<std::string>({"n1", "n2", "n3"}),
               boost::test_tools::per_element());

    f.n3.restart();
    BOOST_TEST(status_at(f.n3, alice, false).groups.at(0)->nodes.size() == 3u);
    // Without a leader it asks Slurm, and still has its job, whatever a site has written over the mark.
    f.slurm.jobs[companion].mark = "";
    f.n2.daemon.reset();
    f.n2.peers.reset();
    auto changes = f.slurm.changes.size();
    f.run(8s);
    BOOST_TEST(count_events(f.n3, "taken this node out of the job") == 0u);
    BOOST_TEST(f.slurm.changes.size() == changes);
    // No leader for a minute, and Slurm says nothing either: it ends by itself.
    f.slurm.away = true;
    auto again = f.n3.client(local::Role::Agent, alice);
    hello.job_id = companion.value();
    hello.workers = 2;
    f.n3.say(again, std::move(hello));
    f.run(70s);
    auto end = f.n3.port->take<local::GroupEndedT>(again.id);
    BOOST_REQUIRE(end.has_value());
    BOOST_TEST(end->exit_code == 0);
    BOOST_TEST(count_events(f.n3, "No leader of the group was heard") == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_users_failed_attempts_are_bounded_and_forgotten, ThreeNodes) {
    auto try_job = [&](std::uint32_t id, std::uint32_t uid) {
        slurm.jobs[JobId(id)] = running_job(uid, {"n3"});
        slurm.steps[{JobId(id), StepId(0)}] = {"n3"};
        auto step = newcomer();
        step.job_id = id;
        step.uid = uid;
        step.argv = {"another"};  // the group refuses it
        return refusal(std::move(step), target_of(uid == alice ? 7 : 8));
    };
    slurm.jobs[JobId(8)] = running_job(bob, {"n1"});
    for (std::uint32_t i = 0; i < 8; ++i) BOOST_TEST(try_job(30 + i, alice) == "");
    run(2s);
    BOOST_TEST(has(try_job(40, alice), "try again later"));
    BOOST_TEST(try_job(41, bob) == "");
    run(11min);
    BOOST_TEST(try_job(42, alice) == "");
}

BOOST_AUTO_TEST_CASE(a_companion_that_waits_is_not_needed_when_the_job_is_over) {
    StepOf step;
    step.min_nodes = 1;
    ThreeNodes f(step);
    f.n1.daemon.reset();
    f.n1.peers.reset();
    f.run(30s);
    BOOST_REQUIRE(f.slurm.orders.size() == 1u);
    JobId companion = f.slurm.orders.begin()->first;
    BOOST_TEST(f.slurm.jobs[companion].waiting);
    f.slurm.jobs[JobId(7)].running = false;
    f.slurm.steps.erase({JobId(7), StepId(0)});
    local::EndStepT end;
    end.job_id = 7;
    f.n2.say(f.n2.client(local::Role::Spank, 0), std::move(end));
    f.run(1s);
    BOOST_TEST(!f.slurm.jobs[companion].waiting);
}

namespace {

/// n1 loses power; n2 leads a job that its site lets expand, and n3 is free.
struct Expanding : ThreeNodes {
    Expanding() : ThreeNodes(small()) {
        slurm.site.database = slurm.site.job_expansion = true;
        slurm.free_nodes = {"n3"};
        slurm.jobs[JobId(7)].nodes = {"n1", "n2"};
    }
    static StepOf small() {
        StepOf step;
        step.min_nodes = 1;
        return step;
    }
    void lose_n1() {
        n1.daemon.reset();
        n1.peers.reset();
    }
    std::optional<local::StartStepT> await_start(std::chrono::milliseconds time = 20s) {
        for (auto left = time; left > 0ms; left -= 500ms) {
            run(500ms);
            if (auto start = n2.port->take<local::StartStepT>(a2.id)) return start;
        }
        return std::nullopt;
    }
    /// srun has started step 7.1 on n3, and its module speaks.
    Client start_step() {
        slurm.steps[{JobId(7), StepId(1)}] = {"n3"};
        auto step = newcomer();
        step.job_id = 7;
        step.step_id = 1;
        return join(std::move(step), target_of(7));
    }
    void say_ended(const local::StartStepT &start, const std::string &text) {
        local::StepEndedT ended;
        ended.order = start.order;
        ended.text = text;
        n2.say(a2, std::move(ended), 0);
    }
    bool in_job(const std::string &node) {
        const auto &nodes = slurm.jobs[JobId(7)].nodes;
        return std::ranges::find(nodes, node) != nodes.end();
    }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_job_is_expanded_by_a_node_in_place_of_a_lost_one, Expanding) {
    lose_n1();
    auto start = await_start();
    BOOST_REQUIRE(start.has_value());
    std::vector<std::string> words = {"srun",
                                      "--jobid=7",
                                      "--overlap",
                                      "--nodelist=n3",
                                      "--nodes=1",
                                      "--ntasks=1",
                                      "--cpus-per-task=1",
                                      "--dlrover-join=7.0.0",
                                      "--dlrover-redundancy=single",
                                      "--dlrover-pmix=no",
                                      "--",
                                      "train"};
    BOOST_TEST(start->argv == words, boost::test_tools::per_element());
    BOOST_TEST(start->environment == std::vector<std::string>{"PATH=/bin"}, boost::test_tools::per_element());
    BOOST_TEST(count_events(n2, "Slurm has expanded the job in place of n1: by n3.") == 1u);
    auto module = start_step();
    BOOST_REQUIRE(n3.port->take<local::DoneT>(module.id).has_value());
    run(3s);
    auto agent = n3.client(local::Role::Agent, alice);
    local::AgentHelloT hello;
    hello.job_id = 7;
    hello.step_id = 1;
    hello.workers = 2;
    n3.say(agent, std::move(hello));
    auto welcome = n3.port->take<local::AgentWelcomeT>(agent.id);
    BOOST_REQUIRE(welcome.has_value());
    BOOST_TEST((welcome->job_id == 7u && welcome->step_id == 0u));
    run(5s);
    BOOST_TEST(count_events(n2, "n3 has joined the group (by expansion of the job)") == 1u);
    auto status = status_at(n2, alice, false);
    BOOST_TEST(status.groups.at(0)->joined == std::vector<std::string>{"n3 (by expansion)"},
               boost::test_tools::per_element());
    BOOST_TEST(slurm.orders.empty(), "no job of its own");
    n3.restart();
    BOOST_TEST(status_at(n3, alice, false).groups.at(0)->joined.size() == 1u);
    // srun ends with the step, long after that.
    say_ended(*start, "");
    run(5s);
    BOOST_TEST(in_job("n3"));
}

BOOST_FIXTURE_TEST_CASE(a_step_that_does_not_start_leaves_no_node_in_the_job, Expanding) {
    lose_n1();
    auto start = await_start();
    BOOST_REQUIRE(start.has_value());
    BOOST_TEST(in_job("n3"));
    say_ended(*start, "can not run srun: No such file or directory");
    run(5s);
    BOOST_TEST(!in_job("n3"));
    BOOST_TEST(count_events(n2, "its step on n3 does not start: can not run srun") == 1u);
    BOOST_TEST(slurm.orders.size() == 1u, "a job of its own is asked for");
}

BOOST_FIXTURE_TEST_CASE(a_step_that_does_not_ask_in_time_leaves_no_node_in_the_job, Expanding) {
    lose_n1();
    BOOST_REQUIRE(await_start().has_value());
    run(35s);
    BOOST_TEST(!in_job("n3"));
    BOOST_TEST(count_events(n2, "it has not asked to join in time") == 1u);
    BOOST_TEST(slurm.orders.size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_refused_expansion_is_told_and_a_job_asked_for, Expanding) {
    slurm.no_merge = "the partition does not permit it";
    lose_n1();
    run(30s);
    BOOST_TEST(count_events(n2, "is not expanded, a job for another node is asked for: the partition") == 1u);
    BOOST_TEST(slurm.orders.size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(where_the_site_can_not_expand_nothing_is_said, Expanding) {
    slurm.site.contain = true;
    lose_n1();
    run(30s);
    BOOST_TEST(count_events(n2, "expanded") == 0u);
    BOOST_TEST(slurm.orders.size() == 1u);
    BOOST_TEST(slurm.free_nodes.size() == 1u);
}

/// A leader before has moved n3 into the job, and has died; and its allocation of another node waits for
/// nobody.
BOOST_FIXTURE_TEST_CASE(what_a_leader_has_left_is_cleared, Expanding) {
    slurm.jobs[JobId(7)].nodes.push_back("n3");
    slurm.jobs[JobId(7)].nodes.push_back("n8");  // the user's own business
    slurm.jobs[JobId(7)].grown = {grown_mark(StepId(0), 0, "n3"), grown_mark(StepId(1), 0, "n8")};
    slurm.free_nodes = {"n9"};
    slurm.jobs[JobId(21)] = running_job(alice, {"n5"});
    slurm.jobs[JobId(21)].mark = companion_mark(JobId(7), StepId(0), 0);
    slurm.expanding = {JobId(21)};
    // The shrink that takes n1 out names the survivors only: somebody else has done that.
    slurm.shrink_refused = true;
    slurm.jobs[JobId(7)].nodes.erase(slurm.jobs[JobId(7)].nodes.begin());
    lose_n1();
    slurm.jobs[JobId(7)].batch_host.clear();
    run(6s);
    slurm.shrink_refused = false;
    auto start = await_start(30s);
    BOOST_REQUIRE(start.has_value());
    BOOST_TEST(start->argv.at(3) == "--nodelist=n9");
    BOOST_TEST(!in_job("n3"), "its step did not ask");
    BOOST_TEST(in_job("n8"));
    BOOST_TEST(!slurm.jobs[JobId(21)].running);
}

BOOST_AUTO_TEST_CASE(a_step_of_the_groups_own_job_may_join) {
    auto step = newcomer();
    step.job_id = 7;
    step.step_id = 1;
    SlurmJob main = running_job(alice, {"n1", "n2", "n3"});
    BOOST_TEST(check_target(step, main, target_of(7), main).ok());
    step.step_id = 0;
    BOOST_TEST(!check_target(step, main, target_of(7), main).ok(), "the step itself");
    step.step_id = 1;
    step.node_names = {"n3", "n4"};
    BOOST_TEST(!check_target(step, main, target_of(7), main).ok());
}

BOOST_AUTO_TEST_CASE(marks_of_nodes_stand_beside_others_words) {
    auto comment = add_grown("site:x dlrover-node:0.0:n5 dlrover-node:0.0:n6", grown_mark(StepId(0), 1, "n7"),
                             {"n1", "n6", "n7"});
    BOOST_TEST(comment == "site:x dlrover-node:0.0:n6 dlrover-node:0.1:n7", "n5 is not in the job any more");
    BOOST_TEST(find_grown(comment).size() == 2u);
    BOOST_TEST(find_mark(comment) == "");
    BOOST_TEST(add_grown("", "dlrover-node:0.1:n7", {}) == "dlrover-node:0.1:n7");
    BOOST_TEST(has_word("a dlrover:7.0.0 dlrover-expands", expands_word));
    BOOST_TEST(!has_word("dlrover-expandsx", expands_word));
}

BOOST_AUTO_TEST_CASE(the_mark_of_excluded_nodes_is_one_word) {
    auto comment = put_excluded("site:x  dlrover-excluded:n1 more", {"n5", "n3"});
    BOOST_TEST(comment == "site:x  more dlrover-excluded:n3,n5");
    BOOST_TEST((find_excluded(comment) == std::set<std::string>{"n3", "n5"}));
    BOOST_TEST(put_excluded(comment, {}) == "site:x  more", "the rest is as its site has written it");
    std::string site = "{\n  \"a\": 1,\n  \"b\": 2\n}";
    BOOST_TEST(put_excluded(put_excluded(site, {"n1"}), {}) == site);
    BOOST_TEST(put_excluded("", {}) == "");
    BOOST_TEST(find_excluded("n1 dlrover-excluded:,, xdlrover-excluded:n2").empty());
}

BOOST_AUTO_TEST_CASE(the_mark_of_lost_nodes_is_for_one_run) {
    auto comment = put_lost("site:x dlrover-lost:1:n1 dlrover-excluded:n3", 2, {"n5", "n3"});
    BOOST_TEST(comment == "site:x dlrover-excluded:n3 dlrover-lost:2:n5,n3");
    BOOST_TEST((find_lost(comment, 2) == std::vector<std::string>{"n5", "n3"}));
    BOOST_TEST(find_lost(comment, 1).empty());
    BOOST_TEST(find_lost(comment, 3).empty());
    BOOST_TEST(find_lost("xdlrover-lost:2:n1 dlrover-lost:2:,", 2).empty());
    BOOST_TEST((find_excluded(comment) == std::set<std::string>{"n3"}));
}

BOOST_AUTO_TEST_SUITE_END()
