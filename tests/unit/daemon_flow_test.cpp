// SPDX-License-Identifier: Apache-2.0
// The life of a group, against real processes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "daemon_process.h"
#include "proto/progress.h"

using namespace dlrover;
using namespace dlrover::test;
using proto::LocalClient;

namespace {

constexpr int exit_status_3 = 3 << 8;

Status register_step(DaemonProcess &daemon, proto::StepRegistrationT step) {
    auto module = daemon.connect(local::Role::Spank);
    local::RegisterStepT request;
    request.step = std::make_unique<proto::StepRegistrationT>(std::move(step));
    return module.call(std::move(request), patience).take_status();
}

std::unique_ptr<local::GroupStatusT> status_of(DaemonProcess &daemon) {
    auto client = daemon.connect(local::Role::Cli);
    auto answer = client.call(local::StatusRequestT{}, patience);
    BOOST_REQUIRE(answer.ok());
    auto &groups = answer->message.body.AsStatusReply()->groups;
    BOOST_REQUIRE(groups.size() == 1);
    return std::move(groups[0]);
}

/// Two tasks with one worker each.
struct TwoTasks {
    explicit TwoTasks(std::uint32_t max_restarts = 3) {
        Status status = register_step(daemon, make_step(2, max_restarts));
        BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
        for (std::uint16_t task : {0, 1}) agents.emplace_back(daemon, task);
    }
    local::WorldPublishedT await_world() {
        local::WorldPublishedT world;
        for (auto &agent : agents) {
            world = *agent.await(local::Body::WorldPublished).body.AsWorldPublished();
            agent.started(world, 1000u + agent.task);
        }
        return world;
    }
    /// Rank 1 dies; every agent ends its workers.
    void fail(const local::WorldPublishedT &world) {
        agents[1].exited(world, exit_status_3);
        for (auto &agent : agents) {
            agent.await(local::Body::StopWorkers);
            if (agent.task == 0) agent.exited(world, SIGTERM, true);
            agent.stopped(generation_of(world));
        }
    }
    void reconnect(const local::WorldPublishedT &world) {
        agents.clear();
        for (std::uint16_t task : {0, 1}) agents.emplace_back(daemon, task, generation_of(world));
    }
    DaemonProcess daemon;
    std::vector<Agent> agents;
};

Result<std::vector<std::string>> try_leave(const DaemonProcess &daemon, const local::WorldPublishedT &world,
                                           std::uint16_t local_rank) {
    auto client = proto::LocalClient::connect(daemon.socket(), local::Role::Worker, patience);
    if (!client) return client.take_status();
    local::LeaveGenerationT leave;
    leave.job_id = 7;
    leave.generation = std::make_unique<proto::Generation>(*world.generation);
    leave.local_rank = local_rank;
    auto answer = client->call(std::move(leave), patience);
    if (!answer) return answer.take_status();
    return answer->message.body.AsNextWorld()->variables;
}

/// What the process of that rank is told; it comes when the next world is there.
Result<std::vector<std::string>> leave(const DaemonProcess &daemon, const local::WorldPublishedT &world,
                                       std::uint16_t local_rank) {
    auto answer = try_leave(daemon, world, local_rank);
    // The end of its other connection may be read later.
    for (int i = 0; i < 500 && answer.status().code() == Code::unavailable; ++i) {
        ::usleep(10000);
        answer = try_leave(daemon, world, local_rank);
    }
    return answer;
}

/// The next world of workers that stay; the daemon, and then the leader, may say before that they are to
/// leave.
local::WorldPublishedT world_behind_stops(Agent &agent) {
    for (;;) {
        auto message = agent.client.receive(patience);
        BOOST_REQUIRE_MESSAGE(message.ok(), message.status().message());
        auto &body = message->message.body;
        if (auto *world = body.AsWorldPublished()) return *world;
        if (auto *stop = body.AsStopWorkers()) BOOST_TEST(stop->stays);
    }
}

/// The real program, as the agent's guard starts it.
pid_t start_mover(const DaemonProcess &daemon, const proto::StepRegistrationT &step) {
    pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::setenv("DLROVER_JOB_ID", std::to_string(step.job_id).c_str(), 1);
    ::setenv("DLROVER_STEP_ID", std::to_string(step.step_id).c_str(), 1);
    ::setenv("DLROVER_SOCKET", daemon.socket().c_str(), 1);
    ::execl(TEST_MOVER, TEST_MOVER, nullptr);
    ::_exit(127);
}

/// False: not in a minute.
bool await_mover(DaemonProcess &daemon, bool ready) {
    for (int i = 0; i < 3000 && status_of(daemon)->mover->ready != ready; ++i) ::usleep(20000);
    return status_of(daemon)->mover->ready == ready;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_flow)

BOOST_AUTO_TEST_CASE(a_mover_listens_and_one_that_dies_is_followed_by_another) {
    DaemonProcess daemon;
    auto step = make_step(1);
    step.options->redundancy = "partner:1";
    BOOST_REQUIRE(register_step(daemon, step).ok());
    BOOST_REQUIRE(status_of(daemon)->mover);
    BOOST_TEST(!status_of(daemon)->mover->ready);
    for (int i = 0; i < 2; ++i) {
        pid_t mover = start_mover(daemon, step);
        BOOST_TEST(await_mover(daemon, true));
        auto status = status_of(daemon);
        BOOST_TEST(status->mover->port != 0);
        BOOST_TEST((status->mover->ways & 1) == 1);
        ::kill(mover, SIGKILL);
        BOOST_TEST(::waitpid(mover, nullptr, 0) == mover);
        BOOST_TEST(await_mover(daemon, false));
    }
}

BOOST_AUTO_TEST_CASE(a_mover_that_hangs_is_killed_when_another_comes) {
    DaemonProcess daemon;
    auto step = make_step(1);
    step.options->redundancy = "partner:1";
    BOOST_REQUIRE(register_step(daemon, step).ok());
    pid_t hung = start_mover(daemon, step);
    BOOST_REQUIRE(await_mover(daemon, true));
    auto port = status_of(daemon)->mover->port;
    ::kill(hung, SIGSTOP);
    pid_t next = start_mover(daemon, step);
    int status = 0;
    BOOST_TEST(::waitpid(hung, &status, 0) == hung);
    BOOST_TEST(WIFSIGNALED(status));
    BOOST_TEST(WTERMSIG(status) == SIGKILL);
    for (int i = 0; i < 3000; ++i, ::usleep(20000))
        if (auto now = status_of(daemon); now->mover->ready && now->mover->port != port) break;
    BOOST_TEST(status_of(daemon)->mover->ready);
    BOOST_TEST(status_of(daemon)->mover->port != port);
    BOOST_TEST(::waitpid(next, nullptr, WNOHANG) == 0);
    ::kill(next, SIGKILL);
    ::waitpid(next, nullptr, 0);
}

BOOST_AUTO_TEST_CASE(a_failed_worker_means_a_new_world_that_goes_on_from_memory) {
    TwoTasks run;
    auto world = run.await_world();
    BOOST_TEST(world.world_size == 2u);
    BOOST_TEST(world.master_port != 0);
    BOOST_TEST(world.restore_step == -1);
    {
        Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
        BOOST_TEST(w0.restore().first == -1);
        w0.save(5, 'a');
        w1.save(5, 'b');
        w0.save(6, 'c');  // incomplete: never to be restored
    }
    run.fail(world);
    auto next = run.await_world();
    BOOST_TEST((generation_of(next) > generation_of(world)));
    BOOST_TEST(next.restore_step == 5);
    BOOST_TEST(next.restart_count == 1u);
    BOOST_TEST(next.master_port != world.master_port);
    Worker w0(run.daemon, next, 0), w1(run.daemon, next, 1);
    BOOST_TEST((w0.restore() == std::pair<std::int64_t, char>(5, 'a')));
    BOOST_TEST((w1.restore() == std::pair<std::int64_t, char>(5, 'b')));
    for (auto &agent : run.agents) agent.exited(next, 0);
    for (auto &agent : run.agents) {
        auto end = *agent.await(local::Body::GroupEnded).body.AsGroupEnded();
        BOOST_TEST(end.exit_code == 0);
        BOOST_TEST(end.print == (agent.task == 0));
        if (end.print) BOOST_TEST(end.summary.find("1 restart") != std::string::npos);
    }
    BOOST_TEST((status_of(run.daemon)->state == local::GroupState::Finished));
    BOOST_TEST(status_of(run.daemon)->arena_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(the_daemon_killed_in_the_middle_of_a_save) {
    TwoTasks run;
    auto world = run.await_world();
    Worker::Grant grant;
    {
        Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
        w0.save(5, 'a');
        w1.save(5, 'b');
        w1.save(6, 'd');
        grant = w0.begin(6, 1 << 20);
        w0.write(grant, 'c');
        run.daemon.kill_daemon();
    }
    run.reconnect(world);
    Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
    Status sealed = w0.seal(grant, 6, 8192);
    BOOST_TEST(sealed.ok(), sealed.message());
    w0.save(7, 'e');
    run.daemon.kill_daemon();
    run.reconnect(world);
    run.fail(world);
    auto next = run.await_world();
    BOOST_TEST(next.restore_step == 6);
    Worker r0(run.daemon, next, 0), r1(run.daemon, next, 1);
    BOOST_TEST((r0.restore() == std::pair<std::int64_t, char>(6, 'c')));
    BOOST_TEST((r1.restore() == std::pair<std::int64_t, char>(6, 'd')));
}

BOOST_AUTO_TEST_CASE(an_upgrade_keeps_checkpoints_and_pages) {
    TwoTasks run;
    auto world = run.await_world();
    {
        Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
        void *at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, w0.page.get(), 0);
        BOOST_REQUIRE(at != MAP_FAILED);
        auto *page = static_cast<proto::ProgressPage *>(at);
        page->magic = proto::progress_magic;
        page->step_plus_one = 18;
        w0.save(5, 'a');
        w1.save(5, 'b');
        run.daemon.upgrade();
        ::munmap(at, 4096);
    }
    run.reconnect(world);
    Worker w0(run.daemon, world, 0);
    auto status = status_of(run.daemon);
    BOOST_TEST((status->state == local::GroupState::Running));
    BOOST_REQUIRE(status->ranks.size() == 2);
    for (int i = 0; i < 400 && status->ranks[0]->train_step < 0; ++i) {
        ::usleep(10000);
        status = status_of(run.daemon);
    }
    BOOST_TEST(status->ranks[0]->train_step == 17);
    BOOST_REQUIRE(status->checkpoints.size() == 1);
    BOOST_TEST(status->checkpoints[0]->complete);
}

/// One line of a process's /proc/PID/status, without its name.
std::string status_line(pid_t pid, std::string_view name) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(name)) return line.substr(name.size());
    return {};
}

bool await(const std::function<bool()> &condition) {
    for (int i = 0; i < 2000; ++i) {
        if (condition()) return true;
        ::usleep(10000);
    }
    return false;
}

/// A reload, and the node's shutdown while the former daemon, which hangs, is still being ended.
BOOST_AUTO_TEST_CASE(a_stop_during_an_upgrade_is_heeded) {
    DaemonProcess daemon;
    pid_t old = daemon.daemon_pid(), keeper = daemon.keeper_pid();
    BOOST_REQUIRE(::kill(old, SIGSTOP) == 0);
    // Before it has stopped it would take SIGTERM first, which has the lower number.
    BOOST_REQUIRE(await([&] { return status_line(old, "State:").find('T') != std::string::npos; }));
    BOOST_REQUIRE(::kill(keeper, SIGHUP) == 0);
    auto told = [&] {  // not heard: it is stopped
        std::string pending = status_line(old, "ShdPnd:");
        return !pending.empty() && (std::stoull(pending, nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
    };
    BOOST_REQUIRE(await(told));
    BOOST_REQUIRE(::kill(keeper, SIGTERM) == 0);
    ::usleep(300000);
    ::kill(old, SIGCONT);
    siginfo_t ended{};
    BOOST_TEST(await([&] {
        int failed = ::waitid(P_PID, static_cast<id_t>(keeper), &ended, WEXITED | WNOHANG | WNOWAIT);
        return failed == 0 && ended.si_pid == keeper;
    }));
}

BOOST_AUTO_TEST_CASE(saves_go_on_after_a_kill_with_all_slots_full) {
    TwoTasks run;
    auto world = run.await_world();
    {
        Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
        for (std::uint64_t step : {1, 2, 3}) {
            w0.save(step, 'a');
            w1.save(step, 'b');
        }
        run.daemon.kill_daemon();
    }
    run.reconnect(world);
    Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
    // No leader has spoken yet: the newest complete step comes from the record.
    w0.save(4, 'a');
    w1.save(4, 'b');
}

BOOST_AUTO_TEST_CASE(without_a_newer_complete_step_the_save_is_skipped) {
    TwoTasks run;
    auto world = run.await_world();
    Worker w0(run.daemon, world, 0);
    for (std::uint64_t step : {1, 2, 3}) w0.save(step, 'a');
    local::BeginSaveT begin;
    begin.train_step = 4;
    begin.bytes = 4096;
    auto answer = w0.client.call(std::move(begin), patience);
    BOOST_REQUIRE(answer.ok());
    BOOST_TEST((answer->message.body.type == local::Body::SaveSkipped));
}

BOOST_AUTO_TEST_CASE(old_generations_are_refused) {
    TwoTasks run;
    auto world = run.await_world();
    Worker old(run.daemon, world, 0);
    auto grant = old.begin(5, 4096);
    run.fail(world);
    run.await_world();
    BOOST_TEST((old.seal(grant, 5, 64).code() == Code::stale));
    BOOST_TEST((old.client.call(local::RestoreT{}, patience).status().code() == Code::stale));
    auto late = run.daemon.connect(local::Role::Worker);
    local::WorkerHelloT hello;
    hello.job_id = 7;
    hello.generation = std::make_unique<proto::Generation>(*world.generation);
    BOOST_TEST((late.call(std::move(hello), patience).status().code() == Code::stale));
}

BOOST_AUTO_TEST_CASE(who_stays_leaves_and_is_told_what_he_is_next) {
    TwoTasks run;
    auto world = run.await_world();
    {
        Worker stays(run.daemon, world, 0, true), other(run.daemon, world, 1);
        run.agents[1].exited(world, exit_status_3);
        BOOST_TEST(!run.agents[1].await(local::Body::StopWorkers).body.AsStopWorkers()->stays);
        BOOST_TEST(run.agents[0].await(local::Body::StopWorkers).body.AsStopWorkers()->stays);
    }
    run.agents[1].stopped(generation_of(world));
    auto told = std::async(std::launch::async, [&] { return leave(run.daemon, world, 0); });
    auto next = *run.agents[0].await(local::Body::WorldPublished).body.AsWorldPublished();
    BOOST_TEST((generation_of(next) > generation_of(world)));
    local::WorkerStartedT started;
    started.generation = std::make_unique<proto::Generation>(*next.generation);
    started.pid = 1000;
    started.stayed = true;
    started.variables = {"RANK=0", "MASTER_PORT=1"};
    BOOST_TEST(run.agents[0].client.send(std::move(started), patience).ok());
    auto answer = told.get();
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().message());
    BOOST_TEST(answer->size() == 2u);
    answer = leave(run.daemon, world, 0);  // its connection was lost before it came
    BOOST_REQUIRE(answer.ok());
    BOOST_TEST(answer->back() == "MASTER_PORT=1");
    Worker again(run.daemon, next, 0, true);
    BOOST_TEST(again.begin(1, 64).fds.size() == 1u);
}

BOOST_AUTO_TEST_CASE(who_stays_and_does_not_leave_is_ended) {
    TwoTasks run;
    auto world = run.await_world();
    Worker stays(run.daemon, world, 0, true);
    run.agents[1].exited(world, exit_status_3);
    run.agents[1].await(local::Body::StopWorkers);
    BOOST_TEST(run.agents[0].await(local::Body::StopWorkers).body.AsStopWorkers()->stays);
    auto again = *run.agents[0].await(local::Body::StopWorkers).body.AsStopWorkers();
    BOOST_TEST(!again.stays);
    BOOST_TEST(again.reason == "it did not leave its generation in time");
    run.agents[0].exited(world, SIGTERM, true);
    for (auto &agent : run.agents) agent.stopped(generation_of(world));
    run.await_world();
}

BOOST_AUTO_TEST_CASE(who_leaves_while_all_others_go_on_has_failed) {
    TwoTasks run;
    auto world = run.await_world();
    Worker(run.daemon, world, 0, true);
    auto told = std::async(std::launch::async, [&] { return leave(run.daemon, world, 0); });
    BOOST_TEST(run.agents[0].await(local::Body::StopWorkers).body.AsStopWorkers()->stays);
    run.agents[1].await(local::Body::StopWorkers);
    run.agents[1].exited(world, SIGTERM, true);
    run.agents[1].stopped(generation_of(world));
    auto next = run.await_world();
    BOOST_TEST(next.restart_count == 1u);
    for (auto &agent : run.agents) agent.exited(next, 0);
    for (auto &agent : run.agents) agent.await(local::Body::GroupEnded);
    BOOST_TEST((told.get().status().code() == Code::stale));  // no agent has said that it goes on
    BOOST_TEST((leave(run.daemon, world, 0).status().code() == Code::stale));
}

BOOST_AUTO_TEST_CASE(a_daemon_that_is_started_again_hears_once_more_who_has_left) {
    TwoTasks run;
    auto world = run.await_world();
    {
        Worker stays(run.daemon, world, 0, true);
        run.agents[1].exited(world, exit_status_3);
        for (auto &agent : run.agents) agent.await(local::Body::StopWorkers);
    }
    run.daemon.kill_daemon();
    run.agents.clear();
    run.agents.emplace_back(run.daemon, 0, generation_of(world), true);
    run.agents.emplace_back(run.daemon, 1, generation_of(world));
    run.agents[1].exited(world, exit_status_3);
    BOOST_TEST(!run.agents[1].await(local::Body::StopWorkers).body.AsStopWorkers()->stays);
    BOOST_TEST(run.agents[0].await(local::Body::StopWorkers).body.AsStopWorkers()->stays);
    run.agents[1].stopped(generation_of(world));
    auto told = std::async(std::launch::async, [&] { return leave(run.daemon, world, 0); });
    auto next = world_behind_stops(run.agents[0]);
    local::WorkerStartedT started;
    started.generation = std::make_unique<proto::Generation>(*next.generation);
    started.stayed = true;
    started.variables = {"RANK=0"};
    BOOST_TEST(run.agents[0].client.send(std::move(started), patience).ok());
    BOOST_TEST(told.get().ok());
}

BOOST_AUTO_TEST_CASE(leaving_is_refused_where_it_makes_no_sense) {
    TwoTasks run;
    auto world = run.await_world();
    auto late = world;
    auto code = [&](const local::WorldPublishedT &from, std::uint16_t local_rank) {
        return try_leave(run.daemon, from, local_rank).status().code();
    };
    BOOST_TEST((code(world, 2) == Code::invalid_argument), "no such rank here");
    late.generation = std::make_unique<proto::Generation>(world.generation->term() + 1, 0);
    BOOST_TEST((code(late, 0) == Code::unavailable), "not known here yet");
    Worker open(run.daemon, world, 0, true);
    BOOST_TEST((code(world, 0) == Code::unavailable), "it has a connection");
}

BOOST_AUTO_TEST_CASE(a_seal_must_lie_inside_its_slot) {
    TwoTasks run;
    auto world = run.await_world();
    Worker w0(run.daemon, world, 0);
    auto grant = w0.begin(5, 4096);
    BOOST_TEST((w0.seal(grant, 5, ~std::uint64_t{0} - 8).code() == Code::invalid_argument));
    grant.answer.slot = 99;
    BOOST_TEST((w0.seal(grant, 5, 64).code() == Code::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_user_gets_no_more_than_his_quota) {
    DaemonProcess daemon("[memory]\nuser_quota = \"64MiB\"\n");
    BOOST_REQUIRE(register_step(daemon, make_step(1)).ok());
    Agent agent(daemon, 0);
    auto world = *agent.await(local::Body::WorldPublished).body.AsWorldPublished();
    Worker worker(daemon, world, 0);
    local::PrepareT prepare;
    prepare.bytes = 33u << 20;  // not even twice
    auto refused = worker.client.call(std::move(prepare), patience);
    BOOST_TEST((refused.status().code() == Code::resource_exhausted));
    BOOST_TEST(refused.status().message().find("quota") != std::string::npos);
    local::BeginSaveT begin;
    begin.bytes = std::uint64_t{1} << 50;
    BOOST_TEST((worker.client.call(std::move(begin), patience).status().code() == Code::resource_exhausted));
    BOOST_TEST(status_of(daemon)->arena_bytes == 0u, "all or nothing");
    prepare.bytes = 32u << 20;
    BOOST_TEST(worker.client.call(std::move(prepare), patience).ok());
    BOOST_TEST(status_of(daemon)->arena_bytes == (64u << 20));
    BOOST_TEST(status_of(daemon)->memory_slots == 2u);
}

BOOST_AUTO_TEST_CASE(a_flood_of_saves_that_are_given_up_is_answered_and_hinders_nobody) {
    constexpr int pairs = 1000;
    TwoTasks run;
    auto world = run.await_world();
    Worker w0(run.daemon, world, 0), w1(run.daemon, world, 1);
    std::atomic<int> sent{0};
    std::thread flood([&] {
        for (int i = 0; i < pairs; ++i) {
            local::BeginSaveT begin;
            begin.train_step = 1;
            begin.bytes = 4096;
            local::AbortSaveT abort;
            if (w0.client.send(std::move(begin), patience).ok()) ++sent;
            if (w0.client.send(std::move(abort), patience).ok()) ++sent;
        }
    });
    for (std::uint64_t step : {1, 2, 3}) w1.save(step, 'b');
    flood.join();
    BOOST_TEST(sent == 2 * pairs);
    // Answers come in order: this one after those of the flood.
    BOOST_TEST(w0.client.call(local::SubscribeT{}, patience).ok());
    w0.save(3, 'a');
    run.daemon.kill_daemon();
    run.reconnect(world);
    run.fail(world);
    BOOST_TEST(run.await_world().restore_step == 3);
}

BOOST_AUTO_TEST_CASE(an_agent_that_goes_and_one_that_stays) {
    TwoTasks run;
    auto world = run.await_world();
    run.agents.pop_back();
    auto answer = run.daemon.connect(local::Role::Agent);
    local::AgentHelloT hello;
    hello.job_id = 7;
    hello.task = 0;
    BOOST_TEST((answer.call(std::move(hello), patience).status().code() == Code::invalid_argument));
}

BOOST_AUTO_TEST_CASE(no_daemon_survives_its_keeper) {
    DaemonProcess daemon;
    daemon.stop(SIGKILL);
}

/// Its stderr is a pipe that is full.
BOOST_AUTO_TEST_CASE(a_log_that_nobody_takes_holds_up_nobody) {
    int ends[2];
    BOOST_REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    UniqueFd reader(ends[0]), writer(ends[1]);
    while (::write(writer.get(), "x", 1) == 1) {
    }
    BOOST_REQUIRE(::fcntl(writer.get(), F_SETFL, 0) == 0);
    char folder[] = "/tmp/dlrover-daemon-XXXXXX";
    BOOST_REQUIRE(::mkdtemp(folder) != nullptr);
    std::string socket = std::string(folder) + "/s";
    pid_t daemon = ::fork();
    if (daemon == 0) {
        ::dup2(writer.get(), STDERR_FILENO);
        ::execl(TEST_DAEMON, TEST_DAEMON, "--standalone", "--socket", socket.c_str(), "--node-name", "n1",
                nullptr);
        ::_exit(127);
    }
    auto deadline = std::chrono::steady_clock::now() + patience;
    auto in_time = [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return std::chrono::steady_clock::now() < deadline;
    };
    while (::access(socket.c_str(), F_OK) != 0 && in_time()) {
    }
    BOOST_TEST(LocalClient::connect(socket, local::Role::Cli, patience).ok());
    ::kill(daemon, SIGTERM);
    while (::waitpid(daemon, nullptr, WNOHANG) == 0)
        if (!in_time()) BOOST_TEST(::kill(daemon, SIGKILL) != 0, "it does not end");
    std::filesystem::remove_all(folder);
}

BOOST_AUTO_TEST_CASE(a_keeper_ends_with_a_daemon_that_was_never_ready) {
    auto status_of = [](const std::string &arguments) {
        int status = std::system((TEST_KEEPER " " + arguments + " >/dev/null 2>&1").c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    };
    BOOST_TEST(status_of("--version") == 0);
    BOOST_TEST(status_of("-h") == 0);
    BOOST_TEST(status_of("--daemon " TEST_DAEMON " -- --bogus") == 2);
    BOOST_TEST(status_of("--daemon " TEST_DAEMON " -- --standalone --log-level loud") == 2);
    BOOST_TEST(status_of("--daemon " TEST_DAEMON " -- -h") == 0);
}

bool is_root(boost::unit_test::test_unit_id) {
    return ::geteuid() == 0;
}

BOOST_AUTO_TEST_CASE(another_user_has_no_part_in_it,
                     *boost::unit_test::precondition([](boost::unit_test::test_unit_id id) {
                         return boost::test_tools::assertion_result(is_root(id));
                     })) {
    TwoTasks run;
    auto world = run.await_world();
    pid_t child = ::fork();
    if (child == 0) {
        constexpr unsigned nobody = 65534;
        if (::setgid(nobody) != 0 || ::setuid(nobody) != 0) ::_exit(100);
        auto ask = [&](local::Role role, auto body) {
            auto client = LocalClient::connect(run.daemon.socket(), role, patience);
            return client.ok() ? client->call(std::move(body), patience).status().code() : Code::internal;
        };
        local::AgentHelloT agent;
        agent.job_id = 7;
        if (ask(local::Role::Agent, std::move(agent)) != Code::not_found) ::_exit(1);
        local::WorkerHelloT worker;
        worker.job_id = 7;
        worker.generation = std::make_unique<proto::Generation>(*world.generation);
        if (ask(local::Role::Worker, std::move(worker)) != Code::not_found) ::_exit(2);
        local::EndStepT end;
        end.job_id = 7;
        if (ask(local::Role::Spank, std::move(end)) != Code::permission_denied) ::_exit(3);
        local::RegisterStepT step;
        step.step = std::make_unique<proto::StepRegistrationT>(make_step(2));
        if (ask(local::Role::Spank, std::move(step)) != Code::permission_denied) ::_exit(4);
        auto client = LocalClient::connect(run.daemon.socket(), local::Role::Cli, patience);
        auto status = client->call(local::StatusRequestT{}, patience);
        if (!status.ok() || !status->message.body.AsStatusReply()->groups.empty()) ::_exit(5);
        auto events = client->call(local::EventsRequestT{}, patience);
        if (!events.ok() || !events->message.body.AsEventsReply()->groups.empty()) ::_exit(6);
        ::_exit(0);
    }
    int wait_status = 0;
    ::waitpid(child, &wait_status, 0);
    BOOST_TEST(WEXITSTATUS(wait_status) == 0);
    BOOST_TEST(WIFEXITED(wait_status));
}

BOOST_AUTO_TEST_SUITE_END()
