// SPDX-License-Identifier: Apache-2.0
// The module in slurmstepd.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "spank_plugin/module.h"
#include "tests/spank/fake_daemon.h"
#include "tests/spank/host.h"
#include "tests/unit/dying_daemon.h"

using namespace dlrover;
using namespace dlrover::proto;
using namespace std::chrono_literals;

namespace {

constexpr const char *an_agent = "/bin/true";  // any ELF program

struct Step : Host {
    Step() {
        host = this;
        numbers = {{S_JOB_UID, 1000},
                   {S_JOB_GID, 100},
                   {S_JOB_ID, 42},
                   {S_JOB_STEPID, 3},
                   {S_JOB_NNODES, 2},
                   {S_JOB_NODEID, 1},
                   {S_JOB_LOCAL_TASK_COUNT, 2},
                   {S_JOB_TOTAL_TASK_COUNT, 4},
                   {S_JOB_ARRAY_ID, 0},
                   {S_JOB_ARRAY_TASK_ID, 0xfffffffe},
                   {S_SLURM_RESTART_COUNT, 1}};
        argv = {"python", "train.py"};
        env = {{"SLURM_CLUSTER_NAME", "c"},
               {"SLURM_STEP_NODELIST", "n[1-2]"},
               {"SLURM_JOB_NODELIST", "n[1-3]"},
               {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
               {"HOME", "/root"}};
        request("1:2");
    }
    ~Step() { host = nullptr; }

    void request(std::string_view elastic) {
        spank::StepRequest r;
        BOOST_TEST_REQUIRE(spank::parse_option(spank::OptionId::elastic, elastic, r.options).ok());
        r.options.optional = optional;
        r.cwd = "/home/a";
        env[spank::request_variable] = spank::encode_request(r);
    }

    bool optional = false;
};

std::vector<std::string> words(const std::string &socket, const std::string &agent = an_agent) {
    return {"agent=" + agent, "socket=" + socket, "timeout_ms=300"};
}

int run_all(LoadedModule &module) {
    int worst = 0;
    for (const char *name : {"init_post_opt", "user_init", "task_init_privileged", "task_init",
                             "task_post_fork", "task_exit", "exit"})
        worst |= module.hook(name);
    return worst;
}

/// What execve would get.
std::string program(const Step &step) {
    return step.live.empty() ? step.argv.at(0) : step.live.at(0);
}

bool starts_agent(const Step &step) {
    return program(step).starts_with("/proc/self/fd/");
}

std::chrono::milliseconds time_of(auto work) {
    auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(module_in_slurmstepd)

BOOST_AUTO_TEST_CASE(a_group_is_registered_and_ended) {
    FakeDaemon daemon(FakeDaemon::agree);
    Step step;
    {
        LoadedModule module(".libs/dlrover.so", words(daemon.path()));
        BOOST_TEST(run_all(module) == 0);
    }
    auto messages = daemon.received();
    BOOST_TEST_REQUIRE(messages.size() == 4u);
    BOOST_TEST((messages[0].body.AsHello()->role == local::Role::Spank));
    auto *registration = messages[1].body.AsRegisterStep();
    BOOST_TEST_REQUIRE(registration);
    BOOST_TEST((registration->step->job_id == 42 && registration->step->step_id == 3 &&
                registration->step->uid == 1000));
    BOOST_TEST((registration->step->restart_count == 1 && registration->step->node_index == 1));
    BOOST_TEST((registration->step->options->min_nodes == 1 && registration->step->options->max_nodes == 2));
    BOOST_TEST(registration->step->argv == (std::vector<std::string>{"python", "train.py"}));
    BOOST_TEST((registration->step->stepd_pid == static_cast<std::uint32_t>(::getpid())));
    auto *end = messages[3].body.AsEndStep();
    BOOST_TEST_REQUIRE(end);
    BOOST_TEST((end->job_id == 42 && end->step_id == 3));
}

BOOST_AUTO_TEST_CASE(a_groups_tasks_start_with_the_agent) {
    FakeDaemon daemon(FakeDaemon::agree);
    Step step;
    step.task = 1;
    LoadedModule module(".libs/dlrover.so", words(daemon.path()));
    module.hook("init_post_opt");
    module.hook("task_init");
    BOOST_TEST(starts_agent(step));
    BOOST_TEST(step.env["DLROVER_AGENT_ARGV0"] == "python");
    BOOST_TEST(step.env["DLROVER_JOB_ID"] == "42");
    BOOST_TEST(step.env["DLROVER_STEP_ID"] == "3");
    BOOST_TEST(step.env["DLROVER_SOCKET"] == daemon.path());
    BOOST_TEST(step.env["DLROVER_LOCAL_TASK"] == "1");
    BOOST_TEST(step.env["DLROVER_TASKS_HERE"] == "2");
    BOOST_TEST(step.env["DLROVER_OPTIONAL"] == "0");
    BOOST_TEST(step.env["DLROVER_REDUNDANCY"] == "single");
    BOOST_TEST(!step.env.contains("DLROVER_REGISTER_ERROR"));
    BOOST_TEST(!step.env.contains("DLROVER_REGISTER_LATE"));
    BOOST_TEST(!step.env.contains(spank::request_variable));
    module.hook("exit");
}

BOOST_AUTO_TEST_CASE(a_broadcast_programs_name_is_completed) {
    Step step;
    step.argv = {"/tmp/", "x"};
    LoadedModule module(".libs/dlrover.so", words("/nonexistent/s"));
    BOOST_TEST(run_all(module) == 0);
    BOOST_TEST(starts_agent(step));
    BOOST_TEST(step.env["DLROVER_AGENT_ARGV0"] == "/tmp/slurm_bcast_42.3_n2");
}

BOOST_AUTO_TEST_CASE(dlrover_run_keeps_its_command) {
    FakeDaemon daemon(FakeDaemon::agree);
    Step step;
    step.argv = {"/usr/bin/dlrover-run", "--nnodes", "1:2", "train.py"};
    LoadedModule module(".libs/dlrover.so", words(daemon.path()));
    module.hook("init_post_opt");
    module.hook("task_init");
    BOOST_TEST(!starts_agent(step));
    BOOST_TEST(step.env["DLROVER_JOB_ID"] == "42");
    module.hook("exit");
}

BOOST_AUTO_TEST_CASE(other_steps_are_untouched) {
    for (auto change : std::vector<std::function<void(Step &)>>{
             [](Step &s) { s.env.erase(spank::request_variable); },
             [](Step &s) { s.numbers[S_JOB_STEPID] = 0xfffffffb; },
             [](Step &s) { s.numbers[S_JOB_STEPID] = 0xfffffffc; },
             [](Step &s) { s.numbers[S_JOB_STEPID] = 0xfffffffa; },
             [](Step &s) { s.numbers.erase(S_JOB_STEPID); },
             [](Step &s) { s.numbers[S_JOB_NNODES] = 3; },  // does not fit 1:2
             [](Step &s) { s.env[spank::request_variable] = "rubbish"; },
             [](Step &s) { s.env[spank::request_variable] = std::string(1 << 20, 'x'); },
         }) {
        FakeDaemon daemon(FakeDaemon::agree);
        Step step;
        change(step);
        auto before = step.env;
        before.erase(spank::request_variable);
        {
            LoadedModule module(".libs/dlrover.so", words(daemon.path()));
            BOOST_TEST(run_all(module) == 0);
        }
        step.env.erase(spank::request_variable);
        BOOST_TEST((step.env == before));
        BOOST_TEST(!starts_agent(step));
        BOOST_TEST(daemon.received().empty());
    }
}

BOOST_AUTO_TEST_CASE(no_daemon_says_which_node_and_what_to_do) {
    Step step;
    LoadedModule module(".libs/dlrover.so", words("/nonexistent/s"));
    auto took = time_of([&] { BOOST_TEST(run_all(module) == 0); });
    BOOST_TEST((took < 2s));
    std::string error = step.env["DLROVER_REGISTER_ERROR"];
    BOOST_TEST(error.starts_with("node n2: "));
    BOOST_TEST(error.find("start dlroverd") != std::string::npos);
    BOOST_TEST(error.find("--dlrover-optional") != std::string::npos);
    BOOST_TEST(step.logged("step 42.3"));
    BOOST_TEST(starts_agent(step));
}

BOOST_AUTO_TEST_CASE(a_daemon_that_is_being_restarted_is_waited_for) {
    char name[] = "/tmp/dlrover-late-XXXXXX";
    std::string dir = ::mkdtemp(name);
    test::DyingDaemon dying(dir + "/s");
    std::unique_ptr<FakeDaemon> daemon;
    bool tried = false;
    std::jthread late([&] {
        tried = dying.await_caller();
        daemon = std::make_unique<FakeDaemon>(FakeDaemon::agree, dir + "/s");
    });
    Step step;
    auto args = words(dir + "/s");
    args.back() = "timeout_ms=2000";
    LoadedModule module(".libs/dlrover.so", args);
    BOOST_TEST(run_all(module) == 0);
    late.join();
    BOOST_TEST(tried);
    BOOST_TEST(!step.env.contains("DLROVER_REGISTER_ERROR"));
    BOOST_TEST(starts_agent(step));
    auto messages = daemon->received();
    bool registered = messages.size() > 1 && messages[1].body.type == local::Body::RegisterStep;
    BOOST_TEST(registered);
    daemon.reset();
    std::filesystem::remove_all(dir);
}

BOOST_AUTO_TEST_CASE(a_missing_daemon_costs_less_than_two_seconds) {
    Step step;
    auto args = words("/nonexistent/s");
    args.back() = "timeout_ms=2000";
    LoadedModule module(".libs/dlrover.so", args);
    auto took = time_of([&] { BOOST_TEST(run_all(module) == 0); });
    BOOST_TEST((took >= 500ms && took < 2s));
    BOOST_TEST(step.env["DLROVER_REGISTER_ERROR"].find("no daemon") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_silent_daemon_costs_no_more_than_the_timeout) {
    FakeDaemon daemon([](const auto &) { return std::vector<FakeDaemon::Message>{}; });
    Step step;
    LoadedModule module(".libs/dlrover.so", words(daemon.path()));
    auto took = time_of([&] { BOOST_TEST(run_all(module) == 0); });
    BOOST_TEST((took >= 300ms && took < 1s));
    // It finds the request later; the agents wait for that.
    BOOST_TEST(!step.env.contains("DLROVER_REGISTER_ERROR"));
    BOOST_TEST(step.env["DLROVER_REGISTER_LATE"] == "1");
    BOOST_TEST(step.logged("did not answer in time"));
    std::vector<local::Body> bodies;
    for (const auto &message : daemon.received()) bodies.push_back(message.body.type);
    BOOST_TEST((std::count(bodies.begin(), bodies.end(), local::Body::RegisterStep) == 1));
    BOOST_TEST((std::count(bodies.begin(), bodies.end(), local::Body::EndStep) == 1));
}

BOOST_AUTO_TEST_CASE(a_refusal_is_handed_on_word_for_word) {
    FakeDaemon daemon([](const FakeDaemon::Message &m) {
        local::FailureT failure;
        failure.code = local::Refusal::NoMemory;
        failure.text = "this node has no memory left for checkpoints";
        std::vector<FakeDaemon::Message> replies;
        replies.push_back(make_local(m.id, std::move(failure)));
        return replies;
    });
    Step step;
    LoadedModule module(".libs/dlrover.so", words(daemon.path()));
    run_all(module);
    BOOST_TEST(step.env["DLROVER_REGISTER_ERROR"] == "node n2: this node has no memory left for checkpoints");
    for (const auto &message : daemon.received()) BOOST_TEST((message.body.type != local::Body::EndStep));
}

BOOST_AUTO_TEST_CASE(an_environment_that_lies_is_an_error_of_the_step) {
    FakeDaemon daemon(FakeDaemon::agree);
    Step step;
    step.env["SLURM_STEP_NODELIST"] = "n[1-99999999]";
    LoadedModule module(".libs/dlrover.so", words(daemon.path()));
    BOOST_TEST(run_all(module) == 0);
    BOOST_TEST(step.env["DLROVER_REGISTER_ERROR"].find("SLURM_STEP_NODELIST") != std::string::npos);
    BOOST_TEST(daemon.received().empty());
}

BOOST_AUTO_TEST_CASE(without_an_agent_the_task_fails_by_its_path_or_runs_unprotected) {
    for (bool optional : {false, true}) {
        FakeDaemon daemon(FakeDaemon::agree);
        Step step;
        step.optional = optional;
        step.request("1:2");
        LoadedModule module(".libs/dlrover.so", words(daemon.path(), "/nonexistent/dlrover-agent"));
        BOOST_TEST(run_all(module) == 0);
        BOOST_TEST(program(step) == (optional ? "python" : "/nonexistent/dlrover-agent"));
        BOOST_TEST(step.logged("is not installed on this node"));
        BOOST_TEST(step.env["DLROVER_OPTIONAL"] == (optional ? "1" : "0"));
    }
}

BOOST_AUTO_TEST_CASE(an_agent_that_is_a_script_goes_by_its_path) {
    FakeDaemon daemon(FakeDaemon::agree);
    std::string script = daemon.path() + ".sh";
    dlrover::UniqueFd file(::open(script.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0755));
    BOOST_TEST_REQUIRE(::write(file.get(), "#!/bin/sh\n", 10) == 10);
    Step step;
    LoadedModule module(".libs/dlrover.so", words(daemon.path(), script));
    BOOST_TEST(run_all(module) == 0);
    BOOST_TEST(program(step) == script);
}

BOOST_AUTO_TEST_CASE(a_host_that_knows_nothing_does_no_harm) {
    Step step;
    step.numbers.clear();
    step.numbers[S_JOB_STEPID] = 0;
    step.numbers[S_JOB_NNODES] = 2;
    step.argv.clear();
    for (const char *name :
         {"SLURM_CLUSTER_NAME", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_TASKS_PER_NODE"})
        step.env.erase(name);
    LoadedModule module(".libs/dlrover.so", words("/nonexistent/s"));
    BOOST_TEST(run_all(module) == 0);
    BOOST_TEST(step.env["DLROVER_REGISTER_ERROR"].find("SLURM_STEP_NODELIST") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(hooks_outside_a_modules_life_do_nothing) {
    Step step;
    LoadedModule module(".libs/dlrover.so", words("/nonexistent/s"));
    module.hook("exit");
    BOOST_TEST(run_all(module) == 0);
    BOOST_TEST(module.give("dlrover-elastic", "rubbish", true) == 0);
}

BOOST_AUTO_TEST_CASE(options_are_registered_and_never_fail_remotely) {
    Step step;
    LoadedModule module;
    BOOST_TEST(step.options.size() == spank::option_count);
    for (const auto &[name, option] : step.options) {
        BOOST_TEST(module.give(name.c_str(), "rubbish", true) == 0, name);
        BOOST_TEST(module.give(name.c_str(), nullptr, true) == 0, name);
    }
    module.hook("exit");
}

BOOST_AUTO_TEST_CASE(slurmd_and_job_scripts_are_untouched) {
    for (spank_context_t context : {S_CTX_SLURMD, S_CTX_JOB_SCRIPT, S_CTX_ERROR}) {
        Step step;
        step.context = context;
        auto before = step.env;
        LoadedModule module;
        for (const char *name : {"job_prolog", "job_epilog", "slurmd_exit", "init_post_opt", "exit"})
            BOOST_TEST(module.hook(name) == 0);
        BOOST_TEST((step.env == before && step.options.empty()));
    }
}

BOOST_AUTO_TEST_CASE(every_fault_in_every_hook_stays_inside) {
    for (const char *name : {"init", "init_post_opt", "task_init", "exit"})
        for (const char *kind : {"throw", "throw-int", "error", "hang"}) {
            Step step;
            auto fault = words("/nonexistent/s");
            fault.push_back(std::string("fault=") + name + ":" + kind);
            LoadedModule module("tests/spank/.libs/dlrover_faulty.so", fault);
            BOOST_TEST(run_all(module) == 0, name << ":" << kind);
            bool reported = step.logged(std::string("dlrover: ") + name + ": ");
            BOOST_TEST((reported || std::string_view(kind) == "hang"), name << ":" << kind);
        }
}

BOOST_AUTO_TEST_SUITE_END()
