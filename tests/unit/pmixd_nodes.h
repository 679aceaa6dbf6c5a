// SPDX-License-Identifier: Apache-2.0
// Real dlrover-pmixds of two nodes with two ranks each, under daemons that carry their parcels.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "helper_process.h"

namespace dlrover::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::seconds patience{60};

class PmixdNode : public HelperNode {
  public:
    explicit PmixdNode(std::uint32_t place, const std::string &program = TEST_PMIXD)
        : HelperNode(program, local::Role::Pmix), place_(place) {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        scratch = ::mkdtemp(name);
    }
    ~PmixdNode() override { std::filesystem::remove_all(scratch); }

    void begin() {
        start([this] {
            ::setenv("DLROVER_SCRATCH", scratch.c_str(), 1);
            ::setenv("SLURMD_NODENAME", ("n" + std::to_string(place_)).c_str(), 1);
            ::setenv("PMIX_MCA_gds", "nonsense", 1);  // the user's settings are for his programs
        });
    }
    void serve(std::uint64_t number) {
        push_world(number);
        // Where ranks have used this one the next generation is another process's.
        if (std::exchange(used, false) && ready.generation && ready.generation->number() != number) {
            greet();
            BOOST_TEST(!hello.serving);
            BOOST_TEST(!hello.used);
            push_world(number);
        }
        ready = *wait_for(local::Body::PmixReady).body.AsPmixReady();
        BOOST_REQUIRE_MESSAGE(ready.ok, ready.text);
    }
    void push_world(std::uint64_t number) {
        local::PmixWorldT world;
        world.generation = std::make_unique<proto::Generation>(1, number);
        world.name_space = "dlrover.7.0.0.g" + std::to_string(number);
        world.place = place_;
        world.node_names = {"n0", "n1"};
        world.ranks_per_node = {2, 2};
        world.wait_limit_ms = wait_limit_ms;
        push(proto::make_local(0, std::move(world)));
    }
    void stop_ranks() {
        local::PmixStopT stop;
        stop.generation = std::make_unique<proto::Generation>(*ready.generation);
        stop.reason = "rank 3 failed";
        push(proto::make_local(0, std::move(stop)));
    }
    void say_event(local::PmixEventKind kind, std::uint64_t number, std::uint64_t generation = 1) {
        local::PmixEventT event;
        event.generation = std::make_unique<proto::Generation>(1, generation);
        event.kind = kind;
        event.number = number;
        push(proto::make_local(0, std::move(event)));
    }
    /// The next time the safe step is another one.
    void answer_state(std::uint64_t number) {
        local::PmixStateT state;
        state.number = number;
        if (safe_step >= 0) {
            state.safe_step = safe_step++;
            state.durable_step = 7;
            state.goodput = std::make_unique<local::GoodputT>();
            state.goodput->wall_us = 4000000;
            state.goodput->productive_us = 3000000;
            state.goodput->steps = 10;
        }
        push(proto::make_local(0, std::move(state)));
    }
    /// More are refused, unless they are no more than room.
    void answer_scale(const local::PmixScaleRequestT &asks) {
        local::PmixScaleReplyT reply;
        reply.number = asks.number;
        reply.state = asks.more > room ? local::ScaleState::OutOfLimits : local::ScaleState::Taken;
        if (asks.more > room) reply.text = "there is no room";
        push(proto::make_local(0, std::move(reply)));
        scaled.emplace_back(asks.more, asks.fewer);
    }
    /// Step 30 alone is there.
    void answer_restart(const local::PmixRestartRequestT &asks) {
        local::PmixRestartReplyT reply;
        reply.number = asks.number;
        reply.state = asks.step == 30 ? local::RollbackState::Begun : local::RollbackState::Refused;
        push(proto::make_local(0, std::move(reply)));
        restarts.push_back(asks.step);
    }
    /// What it says to the other node goes there.
    void pump(PmixdNode &to) {
        while (auto message = take_within(0ms)) {
            if (auto *aborted = message->body.AsPmixAborted()) aborts.push_back(*aborted);
            if (auto *overdue = message->body.AsPmixOverdue(); overdue && overdue->local)
                missed.push_back(*overdue);
            else if (overdue)
                overdues.push_back(overdue->purpose);
            if (auto *asks = message->body.AsPmixStateRequest()) answer_state(asks->number);
            if (auto *scales = message->body.AsPmixScaleRequest()) answer_scale(*scales);
            if (auto *restart = message->body.AsPmixRestartRequest()) answer_restart(*restart);
            used = used || message->body.AsPmixUsed() != nullptr;
            auto *parcel = message->body.AsPmixParcel();
            if (parcel == nullptr || cut) continue;
            BOOST_TEST(parcel->place == to.place_);
            parcel->place = place_;
            to.push(std::move(*message));
            ++carried;
        }
    }
    std::uint32_t place() const { return place_; }

    std::string scratch;
    local::PmixReadyT ready;
    local::PmixHelloT hello;
    std::vector<local::PmixAbortedT> aborts;
    std::vector<std::string> overdues;
    std::vector<local::PmixOverdueT> missed;  ///< by ranks of this node
    std::uint32_t wait_limit_ms = 0;
    bool cut = false;
    bool used = false;  ///< by a rank, in this process
    std::int64_t safe_step = -1;
    std::uint32_t room = 0;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> scaled;  ///< more, fewer
    std::vector<std::int64_t> restarts;
    int carried = 0;

  private:
    void welcome() override {
        auto message = greeting(local::Body::PmixHello);
        hello = *message.body.AsPmixHello();
        answer(message.id, proto::make_local(0, local::PmixWelcomeT{}));
    }
    const std::uint32_t place_;
};

struct Ended {
    int wait_status = -1;
    std::string output;
};

struct Group {
    PmixdNode nodes[2];
    std::map<std::uint32_t, pid_t> ranks;
    std::map<std::uint32_t, UniqueFd> outputs;

    explicit Group(const std::string &program = TEST_PMIXD)
        : nodes{PmixdNode(0, program), PmixdNode(1, program)} {
        for (auto &node : nodes) node.begin();
        serve(1);
    }
    ~Group() {
        for (auto [rank, pid] : ranks) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
        }
    }
    void serve(std::uint64_t generation) {
        for (auto &node : nodes) node.serve(generation);
    }
    void pump() {
        nodes[0].pump(nodes[1]);
        nodes[1].pump(nodes[0]);
    }
    /// set_up: in the new process.
    void start(std::uint32_t rank, const std::string &what, const std::function<void()> &set_up = {}) {
        int ends[2];
        BOOST_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        UniqueFd program(::open(TEST_PMIX_CLIENT, O_PATH | O_CLOEXEC));
        pid_t pid = ::fork();
        BOOST_REQUIRE(pid >= 0);
        if (pid == 0) {
            ::dup2(ends[1], STDOUT_FILENO);
            for (const auto &variable : nodes[rank / 2].ready.variables)
                ::putenv(const_cast<char *>(variable.c_str()));
            ::setenv("PMIX_RANK", std::to_string(rank).c_str(), 1);
            if (set_up) set_up();
            std::string name = TEST_PMIX_CLIENT, argument = what;
            char *const words[] = {name.data(), argument.data(), nullptr};
            // By its descriptor: another user may not reach this folder.
            ::execveat(program.get(), "", words, environ, AT_EMPTY_PATH);
            ::_exit(127);
        }
        ::close(ends[1]);
        ranks[rank] = pid;
        outputs[rank].reset(ends[0]);
    }
    void start_all(const std::string &what) {
        for (std::uint32_t rank = 0; rank < 4; ++rank) start(rank, what);
    }
    void pass(std::chrono::milliseconds time) {
        for (auto end = Clock::now() + time; Clock::now() < end; ::usleep(1000)) pump();
    }
    Ended wait(std::uint32_t rank) {
        Ended ended;
        for (auto end = Clock::now() + patience; ::waitpid(ranks[rank], &ended.wait_status, WNOHANG) == 0;
             ::usleep(1000)) {
            BOOST_REQUIRE_MESSAGE(Clock::now() < end, "rank " << rank << " does not end");
            pump();
        }
        ranks.erase(rank);
        pump();  // what it has said at last
        char text[4096];
        ssize_t n = ::read(outputs[rank].get(), text, sizeof text);
        ended.output.assign(text, n > 0 ? static_cast<std::size_t>(n) : 0);
        return ended;
    }
    void expect_success() {
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
            auto ended = wait(rank);
            BOOST_TEST(ended.wait_status == 0, "rank " << rank << ": " << ended.output);
        }
    }
    void expect_failure(std::uint32_t rank, const std::string &text) {
        auto ended = wait(rank);
        BOOST_TEST(WEXITSTATUS(ended.wait_status) == 1);
        BOOST_TEST(ended.output.find(text) != std::string::npos, ended.output);
    }
};

}  // namespace dlrover::test
