// SPDX-License-Identifier: Apache-2.0
// Daemons of several nodes in one process: time, network, Slurm and keeper are in memory.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "ckpt/block_kernel.h"
#include "common/manual_loop.h"
#include "daemon/daemon.h"
#include "daemon/memory_slurm.h"
#include "daemon/records.h"
#include "tests/unit/full_keeper.h"
#include "transport/memory_network.h"

namespace dlrover::daemon::test {

using namespace std::chrono_literals;

inline constexpr std::uint32_t alice = 1000, bob = 1001;

class TestPort final : public LocalPort {
  public:
    void send(ConnectionId to, local::MessageT message, std::vector<SharedFd>) override {
        history.emplace_back(to, message.body.type);
        sent[to].push_back(std::move(message));
    }
    void close(ConnectionId connection) override { closed.insert(connection); }
    void hold(ConnectionId connection) override { held.insert(connection); }
    void release(ConnectionId connection) override { held.erase(connection); }
    std::shared_ptr<LocalProcess> process(ConnectionId connection) override {
        return std::make_shared<Process>(*this, connection);
    }
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
    std::vector<std::pair<ConnectionId, local::Body>> history;  ///< all of them, in turn
    std::set<ConnectionId> held, closed, killed;
    bool may_kill = true, suspended = false;

  private:
    struct Process final : LocalProcess {
        Process(TestPort &p, ConnectionId c) : port(p), connection(c) {}
        bool kill() override {
            if (port.may_kill) port.killed.insert(connection);
            return port.may_kill;
        }
        bool is_suspended() const override { return port.suspended; }
        TestPort &port;
        ConnectionId connection;
    };
};

/// What all nodes share.
struct World {
    ManualLoop loop;
    transport::MemoryHub hub{loop, {}};
    MemorySlurm slurm{loop};
    Settings settings;
    ckpt::Prefaulter prefaulter{0};
    ConnectionId next_connection = 1;
    std::map<std::pair<std::string, std::string>, std::string> dialed;  ///< who calls whom: where
    bool unruly = false;  ///< words about objects on their way come late, twice and out of order

    World() {
        add_job(JobId(7));
        for (const char *node : {"n1", "n2", "login"}) slurm.addresses[node] = std::string("10.0.0.") + node;
    }
    /// alice's, with one step on n1 and n2.
    void add_job(JobId id) {
        SlurmJob job;
        job.running = true;
        job.uid = alice;
        job.user = "alice";
        job.batch_host = "n1";
        job.nodes = {"n1", "n2"};
        slurm.jobs[id] = job;
        slurm.steps[{id, StepId(0)}] = job.nodes;
    }
};

/// A node's links, which are as unruly as the world.
class TestNetwork final : public transport::PeerNetwork {
  public:
    TestNetwork(World &world, const std::string &node)
        : world_(world), name_(node), inner_(world.hub.join(node)) {}
    void set_callbacks(Callbacks callbacks) override { inner_->set_callbacks(std::move(callbacks)); }
    void connect_to(const std::string &node, const std::string &address) override {
        world_.dialed[{name_, node}] = address;
        inner_->connect_to(node, address);
    }
    void release(const std::string &node) override { inner_->release(node); }
    bool up(const std::string &node) const override { return inner_->up(node); }
    bool takes(const std::string &node, transport::PeerEnvelope::Kind kind) const override {
        return inner_->takes(node, kind);
    }
    void send(const std::string &node, transport::PeerEnvelope envelope) override {
        if (!world_.unruly || envelope.kind != transport::PeerEnvelope::Kind::move)
            return inner_->send(node, std::move(envelope));
        for (int i = 0; i < 2; ++i)
            late_.push_back(world_.loop.after(std::chrono::milliseconds(random_() % 3000),
                                              [this, node, envelope] { inner_->send(node, envelope); }));
    }

  private:
    World &world_;
    std::string name_;
    std::unique_ptr<transport::PeerNetwork> inner_;
    std::minstd_rand random_;
    std::vector<EventLoop::Handle> late_;
};

struct StepOf {
    std::uint32_t uid = alice, job = 7, number = 0;
    std::uint16_t tasks = 1;  ///< on each node
    std::uint32_t min_nodes = 2;
    std::string ckpt_dir = {};
    std::uint64_t ckpt_every_steps = 0;
    std::string redundancy = "single";
    std::string program = "train";
    proto::PmixMode pmix = proto::PmixMode::No;
    std::uint64_t memory_spec_bytes = 0;  ///< what Slurm leaves to the daemons
    bool requeue_without_host = false;
};

struct Node {
    static constexpr std::uint64_t object_bytes = 2048;  ///< of every save
    std::uint32_t step_number = 0;                       ///< registered last

    Node(World &w, const std::string &n) : world(w), name(n) { boot({}); }
    void boot(std::vector<KeptRecord> kept) {
        peers = std::make_unique<TestNetwork>(world, name);
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
    std::string group_record_name() const {
        return record_name("group", group_key(JobId(7), StepId(step_number)));
    }
    records::GroupRecordT group_record() const {
        for (auto &kept : keeper.copy())
            if (kept.name == group_record_name())
                if (auto record = decode_record(kept.value); record.ok())
                    return *record->body.AsGroupRecord();
        BOOST_FAIL("no group is on record");
        return {};
    }
    template <typename Edit>
    void edit_group_record(Edit edit) {
        auto record = group_record();
        edit(record);
        keeper.put(group_record_name(), encode_record(std::move(record)), -1, {});
        world.loop.advance();
    }
    Client client(local::Role role, std::uint32_t uid) {
        ConnectionId id = world.next_connection++;
        return {id, uid, uid, static_cast<std::int32_t>(1000 + id), role};
    }
    template <typename BodyT>
    void say(const Client &from, BodyT body, std::uint32_t id = 1) {
        daemon->on_message(from, proto::make_local(id, std::move(body)));
    }
    Client register_step(std::uint32_t index, StepOf step = {}) {
        auto module = client(local::Role::Spank, 0);
        local::RegisterStepT request;
        request.step = std::make_unique<proto::StepRegistrationT>();
        auto &s = *request.step;
        s.cluster = "lab";
        s.job_id = step.job;
        s.step_id = step_number = step.number;
        world.slurm.steps[{JobId(step.job), StepId(step.number)}] =
            world.slurm.steps[{JobId(step.job), StepId(0)}];
        s.uid = step.uid;
        s.node_names = {"n1", "n2"};
        s.node_index = index;
        s.tasks_per_node = {step.tasks, step.tasks};
        s.argv = {step.program};
        s.options = std::make_unique<proto::ElasticOptionsT>();
        s.options->min_nodes = step.min_nodes;
        s.options->requeue_without_host = step.requeue_without_host;
        s.options->max_nodes = 2;
        s.options->ckpt_dir = step.ckpt_dir;
        s.options->ckpt_every_steps = step.ckpt_every_steps;
        s.options->ckpt_every_us = 0;
        s.options->redundancy = step.redundancy;
        s.options->pmix = step.pmix;
        request.launch = std::make_unique<proto::LaunchSpecT>();
        request.launch->argv = s.argv;
        request.launch->environment = {"PATH=/bin", "SLURM_JOB_ID=7"};
        say(module, std::move(request));
        return module;
    }
    Client start_agent(std::uint32_t uid = alice, GenerationId running = {}, bool staying = false) {
        auto agent = client(local::Role::Agent, uid);
        local::AgentHelloT hello;
        hello.job_id = 7;
        hello.step_id = step_number;
        hello.workers = 2;
        hello.resumed_generation = to_proto_ptr(running);
        hello.staying = staying;
        hello.looks = true;
        say(agent, std::move(hello));
        return agent;
    }
    Client start_worker(const local::WorldPublishedT &w, std::uint16_t local_rank, bool stays = false) {
        auto worker = client(local::Role::Worker, alice);
        local::WorkerHelloT hello;
        hello.job_id = 7;
        hello.step_id = step_number;
        hello.generation = std::make_unique<proto::Generation>(*w.generation);
        hello.local_rank = local_rank;
        hello.rank = w.first_rank + local_rank;
        hello.stays = stays;
        say(worker, std::move(hello));
        BOOST_TEST(port->take<local::WorkerWelcomeT>(worker.id).has_value());
        return worker;
    }
    /// None: no slot is free.
    std::optional<std::uint16_t> try_begin_save(const Client &worker, std::uint64_t step) {
        local::BeginSaveT begin;
        begin.train_step = step;
        begin.bytes = 4096;
        say(worker, std::move(begin));
        auto granted = port->take<local::SlotGrantedT>(worker.id);
        return granted ? std::optional(granted->slot) : std::nullopt;
    }
    std::uint16_t begin_save(const Client &worker, std::uint64_t step) {
        auto slot = try_begin_save(worker, step);
        BOOST_REQUIRE(slot.has_value());
        return *slot;
    }
    void seal(const Client &worker, std::uint64_t step, std::uint16_t slot, bool to_storage = false) {
        local::SealT seal;
        seal.to_storage = to_storage;
        seal.train_step = step;
        seal.slot = slot;
        seal.data_bytes = seal.table_offset = object_bytes - 128;
        seal.table_bytes = 128;
        seal.table_xxh3 = ckpt::block_kernel().hash(std::array<std::uint8_t, 128>{}.data(), 128);
        say(worker, std::move(seal));
    }
    /// A bit of the table of what that rank has saved here as this step.
    void damage_table(std::uint32_t rank, std::uint64_t step) {
        auto records = keeper.copy();
        std::set<std::uint16_t> slots;
        for (auto &record : records) {
            auto held = decode_record(record.value);
            auto path = record.name.substr(0, record.name.rfind('/'));
            const auto *slot = held.ok() ? held->body.AsSlotRecord() : nullptr;
            if (slot != nullptr && slot->train_step == step && path.ends_with("/" + std::to_string(rank)))
                slots.insert(static_cast<std::uint16_t>(std::stoul(record.name.substr(path.size() + 1))));
        }
        BOOST_REQUIRE(!slots.empty());
        for (auto &record : records) {
            auto held = decode_record(record.value);
            const auto *segment = held.ok() ? held->body.AsSegmentRecord() : nullptr;
            if (segment == nullptr || segment->rank != rank || !slots.contains(segment->slot)) continue;
            BOOST_REQUIRE(::pwrite(record.fd.get(), "\1", 1, object_bytes - 1) == 1);
        }
    }
    /// Whether there was a slot.
    bool try_save(const Client &worker, std::uint64_t step, bool to_storage = false) {
        auto slot = try_begin_save(worker, step);
        if (!slot) return false;
        seal(worker, step, *slot, to_storage);
        world.loop.advance();
        BOOST_TEST(port->take<local::DoneT>(worker.id).has_value());
        return true;
    }
    void save(const Client &worker, std::uint64_t step, bool to_storage = false) {
        BOOST_REQUIRE(try_save(worker, step, to_storage));
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
    FullKeeper keeper{world.loop};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    std::uint16_t next_port = 30000;
    std::unique_ptr<transport::PeerNetwork> peers;
    std::unique_ptr<TestPort> port;
    std::unique_ptr<Daemon> daemon;
};

/// A process beside a node's agents that works for its daemon (a writer, a mover), as the test plays it.
class Helper {
  public:
    Helper(Node &n, local::Role role) : node(n), role_(role) {}
    virtual ~Helper() = default;
    virtual void die() { node.daemon->on_closed(client); }

    Node &node;
    Client client;

  protected:
    /// Also for its successor.
    template <typename HelloT>
    void say_hello() {
        client = node.client(role_, alice);
        HelloT hello;
        hello.job_id = 7;
        node.say(client, std::move(hello));
    }
    template <typename BodyT>
    void say(BodyT body) {
        node.say(client, std::move(body), 0);
    }
    /// What it has been told since it was asked last.
    std::deque<local::MessageT> take_orders() { return std::exchange(node.port->sent[client.id], {}); }

  private:
    local::Role role_;
};

/// Two nodes with one agent of two workers each.
struct TwoNodes : World {
    Node n1{*this, "n1"}, n2{*this, "n2"};
    Client a1, a2;
    local::WorldPublishedT w1, w2;

    TwoNodes() : TwoNodes(StepOf{}) { await_worlds(); }
    /// Agents are there, no world yet.
    explicit TwoNodes(const StepOf &step) {
        for (Node *node : {&n1, &n2}) {
            if (step.memory_spec_bytes == 0) break;
            slurm.memory_spec_bytes[node->name] = step.memory_spec_bytes;
            node->restart();
        }
        auto m1 = n1.register_step(0, step), m2 = n2.register_step(1, step);
        loop.advance(100ms);
        BOOST_REQUIRE(n1.port->take<local::DoneT>(m1.id) && n2.port->take<local::DoneT>(m2.id));
        a1 = n1.start_agent();
        a2 = n2.start_agent();
    }
    virtual ~TwoNodes() = default;
    /// What helpers have to do is done.
    virtual void pump() {}
    void run(std::chrono::milliseconds time) {
        for (auto left = time; left > 0ms; left -= 20ms) {
            loop.advance(20ms);
            pump();
        }
    }
    void await_worlds() {
        run(6s);
        auto p1 = n1.port->take<local::WorldPublishedT>(a1.id);
        auto p2 = n2.port->take<local::WorldPublishedT>(a2.id);
        BOOST_REQUIRE(p1.has_value());
        BOOST_REQUIRE(p2.has_value());
        w1 = std::move(*p1);
        w2 = std::move(*p2);
    }
    /// Whether every rank found a slot. `asks`: the last rank wants the step on storage.
    bool try_save_everywhere(std::uint64_t step, bool asks = false) {
        bool all = true;
        for (std::uint16_t rank : {0, 1})
            for (auto [node, w] : {std::pair(&n1, &w1), std::pair(&n2, &w2)}) {
                auto worker = node->start_worker(*w, rank);
                all = node->try_save(worker, step, asks && rank == 1 && node == &n2) && all;
                node->daemon->on_closed(worker);
            }
        return all;
    }
    void save_everywhere(std::uint64_t step, bool asks = false) {
        BOOST_REQUIRE(try_save_everywhere(step, asks));
        run(1s);
    }
};

/// How many lines of a node's time line have this in them.
inline std::size_t count_events(Node &node, const std::string &text) {
    auto person = node.client(local::Role::Cli, alice);
    local::EventsRequestT request;
    request.job_id = 7;
    request.relay = false;
    node.say(person, std::move(request));
    auto reply = node.port->take<local::EventsReplyT>(person.id);
    BOOST_REQUIRE(reply.has_value());
    return static_cast<std::size_t>(std::ranges::count_if(
        reply->groups.at(0)->events, [&](const auto &e) { return e->text.find(text) != std::string::npos; }));
}

/// `relay`: the daemon asks the job's other nodes too.
inline local::StatusReplyT status_at(Node &node, std::uint32_t uid, bool relay = true,
                                     std::uint32_t job = 7) {
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

}  // namespace dlrover::daemon::test
