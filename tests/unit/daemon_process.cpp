// SPDX-License-Identifier: Apache-2.0
#include "daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/results_collector.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/units.h"

namespace dlrover::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

template <typename Condition>
bool wait_until(Condition condition) {
    auto deadline = Clock::now() + patience;
    while (!condition()) {
        if (Clock::now() > deadline) return false;
        std::this_thread::sleep_for(5ms);
    }
    return true;
}

bool current_test_has_failed() {
    using namespace boost::unit_test;
    return !results_collector.results(framework::current_test_case().p_id).passed();
}

}  // namespace

DaemonProcess::DaemonProcess(const std::string &settings) {
    char name[] = "/tmp/dlrover-daemon-XXXXXX";
    dir_ = ::mkdtemp(name);
    // Another user must reach the socket.
    std::filesystem::permissions(dir_, std::filesystem::perms(0755));
    socket_ = dir_ + "/s";
    std::string config = dir_ + "/dlrover.toml";
    std::ofstream(config) << settings;
    std::filesystem::permissions(config, std::filesystem::perms(0600));
    keeper_ = ::fork();
    if (keeper_ == 0) {
        int log = ::open((dir_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::dup2(log, STDERR_FILENO);
        ::execl(TEST_KEEPER, TEST_KEEPER, "--daemon", TEST_DAEMON, "--", "--standalone", "--socket",
                socket_.c_str(), "--node-name", "n1", "--log-level", "debug", "--config", config.c_str(),
                nullptr);
        ::_exit(127);
    }
    wait_for_other_than(0);
}

DaemonProcess::~DaemonProcess() {
    if (keeper_ > 0) stop(SIGTERM);
    // What the daemon said is all that tells why a test failed that does so one time in a hundred.
    if (current_test_has_failed())
        std::fprintf(stderr, "---- the daemon's log ----\n%s---- end ----\n", log().c_str());
    else
        BOOST_TEST_MESSAGE(log());
    std::filesystem::remove_all(dir_);
}

std::string DaemonProcess::log() const {
    std::stringstream text;
    text << std::ifstream(dir_ + "/log").rdbuf();
    return text.str();
}

pid_t DaemonProcess::daemon_pid() const {
    std::string id = std::to_string(keeper_);
    std::ifstream children("/proc/" + id + "/task/" + id + "/children");
    pid_t pid = 0;
    children >> pid;
    return pid;
}

void DaemonProcess::wait_for_other_than(pid_t old) {
    BOOST_REQUIRE(wait_until([&] {
        if (daemon_pid() == 0 || daemon_pid() == old) return false;
        return proto::LocalClient::connect(socket_, local::Role::Cli, 1000ms).ok();
    }));
}

void DaemonProcess::kill_daemon() {
    pid_t old = daemon_pid();
    BOOST_REQUIRE(::kill(old, SIGKILL) == 0);
    wait_for_other_than(old);
}

void DaemonProcess::upgrade() {
    pid_t old = daemon_pid();
    BOOST_REQUIRE(::kill(keeper_, SIGHUP) == 0);
    wait_for_other_than(old);
}

void DaemonProcess::stop(int signal) {
    pid_t daemon = daemon_pid();
    ::kill(keeper_, signal);
    ::waitpid(keeper_, nullptr, 0);
    keeper_ = 0;
    BOOST_TEST(wait_until([&] { return daemon == 0 || ::kill(daemon, 0) != 0; }));
}

proto::LocalClient DaemonProcess::connect(local::Role role) {
    auto client = proto::LocalClient::connect(socket_, role, patience);
    BOOST_REQUIRE_MESSAGE(client.ok(), client.status().message());
    return std::move(*client);
}

proto::StepRegistrationT make_step(std::uint16_t tasks, std::uint32_t max_restarts) {
    proto::StepRegistrationT step;
    step.cluster = "standalone";
    step.job_id = 7;
    step.uid = ::geteuid();
    step.node_names = {"n1"};
    step.tasks_per_node = {tasks};
    step.argv = {"train"};
    step.options = std::make_unique<proto::ElasticOptionsT>();
    step.options->min_nodes = step.options->max_nodes = 1;
    step.options->max_restarts = max_restarts;
    return step;
}

GenerationId generation_of(const local::WorldPublishedT &world) {
    return {Term(world.generation->term()), world.generation->number()};
}

// ---- agent ----

Agent::Agent(DaemonProcess &daemon, std::uint16_t number, GenerationId resumed, bool staying)
    : client(daemon.connect(local::Role::Agent)), task(number) {
    local::AgentHelloT hello;
    hello.job_id = 7;
    hello.task = number;
    hello.resumed_generation = std::make_unique<proto::Generation>(resumed.term.value(), resumed.number);
    hello.staying = staying;
    auto welcome = client.call(std::move(hello), patience);
    BOOST_REQUIRE_MESSAGE(welcome.ok(), welcome.status().message());
    BOOST_TEST(welcome->message.body.AsAgentWelcome()->first_local_rank == number);
}

local::MessageT Agent::await(local::Body type) {
    for (;;) {
        auto message = client.receive(patience);
        BOOST_REQUIRE_MESSAGE(message.ok(), message.status().message());
        if (message->message.body.type == type) return std::move(message->message);
        BOOST_REQUIRE_MESSAGE(message->message.body.type == local::Body::LeaseRenewed,
                              "unexpected " << local::EnumNameBody(message->message.body.type));
    }
}

void Agent::started(const local::WorldPublishedT &world, std::uint32_t pid) {
    local::WorkerStartedT message;
    message.generation = std::make_unique<proto::Generation>(*world.generation);
    message.local_rank = task;
    message.pid = pid;
    BOOST_TEST(client.send(std::move(message), patience).ok());
}

void Agent::exited(const local::WorldPublishedT &world, int wait_status, bool stopped_by_us) {
    local::WorkerExitedT message;
    message.generation = std::make_unique<proto::Generation>(*world.generation);
    message.local_rank = task;
    message.wait_status = wait_status;
    message.stopped_by_us = stopped_by_us;
    message.signature = 1;
    BOOST_TEST(client.send(std::move(message), patience).ok());
}

void Agent::stopped(GenerationId generation) {
    local::WorkersStoppedT message;
    message.generation = std::make_unique<proto::Generation>(generation.term.value(), generation.number);
    BOOST_TEST(client.send(std::move(message), patience).ok());
}

// ---- worker ----

Worker::Worker(DaemonProcess &daemon, const local::WorldPublishedT &world, std::uint32_t local_rank,
               bool stays)
    : client(daemon.connect(local::Role::Worker)) {
    local::WorkerHelloT hello;
    hello.job_id = 7;
    hello.generation = std::make_unique<proto::Generation>(*world.generation);
    hello.rank = world.first_rank + local_rank;
    hello.local_rank = static_cast<std::uint16_t>(local_rank);
    hello.stays = stays;
    auto answer = client.call(std::move(hello), patience);
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().message());
    BOOST_REQUIRE(answer->fds.size() == 1);
    page = std::move(answer->fds[0]);
    welcome = *answer->message.body.AsWorkerWelcome();
}

Worker::Grant Worker::begin(std::uint64_t step, std::uint64_t bytes) {
    local::BeginSaveT begin;
    begin.train_step = step;
    begin.bytes = bytes;
    auto answer = client.call(std::move(begin), patience);
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().message());
    BOOST_REQUIRE(answer->message.body.type == local::Body::SlotGranted);
    return {std::move(*answer->message.body.AsSlotGranted()), std::move(answer->fds)};
}

void Worker::write(const Grant &grant, char value) {
    BOOST_REQUIRE(!grant.fds.empty());
    std::vector<char> bytes(4096, value);
    BOOST_TEST(::pwrite(grant.fds[0].get(), bytes.data(), bytes.size(), 0) == 4096);
}

Status Worker::seal(const Grant &grant, std::uint64_t step, std::uint64_t bytes) {
    local::SealT seal;
    seal.train_step = step;
    seal.slot = grant.answer.slot;
    seal.data_bytes = seal.table_offset = bytes;
    seal.table_bytes = 64;
    seal.table_xxh3 = 42;
    seal.ledger = {1, 2, 3};
    return client.call(std::move(seal), patience).take_status();
}

void Worker::save(std::uint64_t step, char value) {
    Grant grant = begin(step, 1 << 20);
    if (!grant.fds.empty()) write(grant, value);
    BOOST_TEST(seal(grant, step, 8192).ok());
}

std::pair<std::int64_t, char> Worker::restore() {
    auto answer = client.call(local::RestoreT{}, patience);
    BOOST_REQUIRE_MESSAGE(answer.ok(), answer.status().message());
    auto *plan = answer->message.body.AsRestorePlan();
    BOOST_REQUIRE(plan);
    char first = 0;
    if (plan->train_step >= 0) {
        BOOST_REQUIRE(!answer->fds.empty());
        BOOST_TEST(::pread(answer->fds[0].get(), &first, 1, 0) == 1);
        BOOST_TEST(plan->table_xxh3 == 42u);
        BOOST_TEST(plan->ledger.size() == 3u);
    }
    local::RestoreDoneT done;
    done.ok = true;
    BOOST_TEST(client.call(std::move(done), patience).ok());
    return {plan->train_step, first};
}

}  // namespace dlrover::test
