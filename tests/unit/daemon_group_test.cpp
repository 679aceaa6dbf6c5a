// SPDX-License-Identifier: Apache-2.0
// Daemons of several nodes in one process: time, network, Slurm and keeper are in memory.
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <deque>

#include "common/manual_loop.h"
#include "daemon/daemon.h"
#include "daemon/memory_slurm.h"
#include "transport/memory_network.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t alice = 1000, bob = 1001;

class TestPort final : public LocalPort {
  public:
    void send(ConnectionId to, local::MessageT message, std::vector<SharedFd>) override {
        sent[to].push_back(std::move(message));
    }
    void close(ConnectionId) override {}
    /// The oldest message of this type to `to`; what came before it is dropped.
    template <typename T>
    std::optional<T> take(ConnectionId to) {
        auto &queue = sent[to];
        while (!queue.empty()) {
            local::BodyUnion body = std::move(queue.front().body);
            queue.pop_front();
            if (body.type == local::BodyTraits<typename T::TableType>::enum_value)
                return std::move(*static_cast<T *>(body.value));
        }
        return std::nullopt;
    }
    std::map<ConnectionId, std::deque<local::MessageT>> sent;
};

/// What all nodes share.
struct World {
    ManualLoop loop;
    transport::MemoryHub hub{loop, {}};
    MemorySlurm slurm{loop};
    Settings settings;
    ckpt::Prefaulter prefaulter{0};
    ConnectionId next_connection = 1;

    World() {
        SlurmJob job;
        job.running = true;
        job.uid = alice;
        job.user = "alice";
        job.batch_host = "n1";
        job.nodes = {"n1", "n2"};
        slurm.jobs[JobId(7)] = job;
        slurm.steps[{JobId(7), StepId(0)}] = job.nodes;
        for (const char *node : {"n1", "n2", "login"}) slurm.addresses[node] = std::string("10.0.0.") + node;
    }
};

struct Node {
    Node(World &w, const std::string &n) : world(w), name(n) { boot({}); }
    void boot(std::vector<KeptRecord> kept) {
        peers = world.hub.join(name);
        port = std::make_unique<TestPort>();
        daemon = std::make_unique<Daemon>(world.loop, Daemon::Options{name, false, 0}, world.settings, keeper,
                                          world.prefaulter, budget, world.slurm, *peers,
                                          [this] { return next_port++; });
        daemon->start(std::move(kept), *port);
    }
    /// The daemon is killed and started again.
    void restart() {
        daemon.reset();
        peers.reset();
        boot(keeper.copy());
    }
    Client client(local::Role role, std::uint32_t uid) {
        return {world.next_connection++, uid, uid, 1, role};
    }
    template <typename BodyT>
    void say(const Client &from, BodyT body, std::uint32_t id = 1) {
        daemon->on_message(from, proto::make_local(id, std::move(body)));
    }
    Client register_step(std::uint32_t index, std::uint32_t uid = alice) {
        auto module = client(local::Role::Spank, 0);
        local::RegisterStepT request;
        request.step = std::make_unique<proto::StepRegistrationT>();
        auto &s = *request.step;
        s.cluster = "lab";
        s.job_id = 7;
        s.uid = uid;
        s.node_names = {"n1", "n2"};
        s.node_index = index;
        s.tasks_per_node = {1, 1};
        s.argv = {"train"};
        s.options = std::make_unique<proto::ElasticOptionsT>();
        s.options->min_nodes = s.options->max_nodes = 2;
        say(module, std::move(request));
        return module;
    }
    Client start_agent(std::uint32_t uid = alice, GenerationId running = {}) {
        auto agent = client(local::Role::Agent, uid);
        local::AgentHelloT hello;
        hello.job_id = 7;
        hello.workers = 2;
        hello.resumed_generation = to_proto_ptr(running);
        say(agent, std::move(hello));
        return agent;
    }
    Client start_worker(const local::WorldPublishedT &w, std::uint16_t local_rank) {
        auto worker = client(local::Role::Worker, alice);
        local::WorkerHelloT hello;
        hello.job_id = 7;
        hello.generation = std::make_unique<proto::Generation>(*w.generation);
        hello.local_rank = local_rank;
        hello.rank = w.first_rank + local_rank;
        say(worker, std::move(hello));
        BOOST_TEST(port->take<local::WorkerWelcomeT>(worker.id).has_value());
        return worker;
    }
    void save(const Client &worker, std::uint64_t step) {
        local::BeginSaveT begin;
        begin.train_step = step;
        begin.bytes = 4096;
        say(worker, std::move(begin));
        auto granted = port->take<local::SlotGrantedT>(worker.id);
        BOOST_REQUIRE(granted.has_value());
        local::SealT seal;
        seal.train_step = step;
        seal.slot = granted->slot;
        say(worker, std::move(seal));
        world.loop.advance();
        BOOST_TEST(port->take<local::DoneT>(worker.id).has_value());
    }
    void exited(const Client &agent, const local::WorldPublishedT &w, std::uint16_t local_rank, int status) {
        local::WorkerExitedT exited;
        exited.generation = std::make_unique<proto::Generation>(*w.generation);
        exited.local_rank = local_rank;
        exited.wait_status = status;
        say(agent, std::move(exited), 0);
    }

    World &world;
    std::string name;
    MemoryKeeper keeper{world.loop};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    std::uint16_t next_port = 30000;
    std::unique_ptr<transport::PeerNetwork> peers;
    std::unique_ptr<TestPort> port;
    std::unique_ptr<Daemon> daemon;
};

/// Two nodes with one agent of two workers each.
struct TwoNodes : World {
    Node n1{*this, "n1"}, n2{*this, "n2"};
    Client a1, a2;
    local::WorldPublishedT w1, w2;

    TwoNodes() {
        auto m1 = n1.register_step(0), m2 = n2.register_step(1);
        loop.advance(100ms);
        BOOST_REQUIRE(n1.port->take<local::DoneT>(m1.id) && n2.port->take<local::DoneT>(m2.id));
        a1 = n1.start_agent();
        a2 = n2.start_agent();
        await_worlds();
    }
    void await_worlds() {
        loop.advance(5s);
        auto p1 = n1.port->take<local::WorldPublishedT>(a1.id);
        auto p2 = n2.port->take<local::WorldPublishedT>(a2.id);
        BOOST_REQUIRE(p1.has_value());
        BOOST_REQUIRE(p2.has_value());
        w1 = std::move(*p1);
        w2 = std::move(*p2);
    }
    void save_everywhere(std::uint64_t step) {
        for (std::uint16_t rank : {0, 1}) {
            for (auto [node, w] : {std::pair(&n1, &w1), std::pair(&n2, &w2)}) {
                auto worker = node->start_worker(*w, rank);
                node->save(worker, step);
                node->daemon->on_closed(worker);
            }
        }
        loop.advance(1s);
    }
};

/// `relay`: the daemon asks the job's other nodes too.
local::StatusReplyT status_at(Node &node, std::uint32_t uid, bool relay = true, std::uint32_t job = 7) {
    auto person = node.client(local::Role::Cli, uid);
    local::StatusRequestT request;
    request.job_id = job;
    request.relay = relay;
    node.say(person, std::move(request));
    node.world.loop.advance(10s);
    auto reply = node.port->take<local::StatusReplyT>(person.id);
    BOOST_REQUIRE(reply.has_value());
    return std::move(*reply);
}

}  // namespace

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
        node->restart();
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

BOOST_AUTO_TEST_CASE(slurm_decides_who_may_register) {
    World world;
    Node n1(world, "n1");
    auto module = n1.register_step(0, bob);
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
    BOOST_TEST(t.n1.budget.held_bytes(alice) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
