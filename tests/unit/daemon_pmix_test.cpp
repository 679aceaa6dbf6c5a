// SPDX-License-Identifier: Apache-2.0
// Two daemons and their dlrover-pmixds, which do what the test wants.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <ctime>

#include "tests/unit/daemon_movers.h"
#include "tests/unit/daemon_nodes.h"
#include "tests/unit/daemon_writers.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

struct Pmixd : Helper {
    explicit Pmixd(Node &n) : Helper(n, local::Role::Pmix) { connect(); }
    void connect(GenerationId serving = {}) {
        client = node.client(local::Role::Pmix, alice);
        local::PmixHelloT hello;
        hello.job_id = 7;
        hello.serving = to_proto_ptr(serving);
        hello.used = used;
        node.say(client, std::move(hello));
        BOOST_REQUIRE(node.port->take<local::PmixWelcomeT>(client.id).has_value());
    }
    void pump() {
        for (auto &message : take_orders()) {
            if (auto *w = message.body.AsPmixWorld()) take_world(*w);
            if (auto *parcel = message.body.AsPmixParcel()) parcels.push_back(*parcel);
            if (auto *stop = message.body.AsPmixStop()) {
                stopped = from_proto(stop->generation);
                reason = stop->reason;
            }
            if (auto *event = message.body.AsPmixEvent()) {
                BOOST_TEST((from_proto(event->generation) == generation()));
                events.emplace_back(event->kind, event->number);
            }
            if (auto *answer = message.body.AsPmixState()) state = *answer;
            if (auto *answer = message.body.AsPmixRestartReply()) restarted = *answer;
            if (auto *lost = message.body.AsPmixUnreachable()) unreachable.push_back(lost->place);
        }
    }
    void take_world(const local::PmixWorldT &w) {
        world = w;
        ++worlds;
        if (silent) return;
        local::PmixReadyT ready;
        ready.generation = std::make_unique<proto::Generation>(*w.generation);
        ready.ok = able;
        ready.text = able ? "" : "no memory";
        ready.variables = variables;
        say(std::move(ready));
    }
    GenerationId generation() const { return from_proto(world.generation); }
    void send(std::uint32_t place, std::size_t bytes, GenerationId id) {
        local::PmixParcelT parcel;
        parcel.generation = to_proto_ptr(id);
        parcel.place = place;
        parcel.bytes.assign(bytes, 7);
        say(std::move(parcel));
    }
    void send(std::uint32_t place, std::size_t bytes) { send(place, bytes, generation()); }
    local::PmixStateT ask(std::uint64_t number) {
        local::PmixStateRequestT request;
        request.number = number;
        say(std::move(request));
        pump();
        BOOST_REQUIRE(state.has_value());
        return std::move(*std::exchange(state, {}));
    }

    local::RollbackState restart(std::int64_t step) {
        local::PmixRestartRequestT request;
        request.number = 9;
        request.step = step;
        say(std::move(request));
        pump();
        BOOST_REQUIRE(restarted.has_value());
        BOOST_TEST(restarted->number == 9u);
        return std::exchange(restarted, {})->state;
    }

    void abort(std::uint16_t local_rank, std::int32_t status, const std::string &text) {
        local::PmixAbortedT aborted;
        aborted.generation = to_proto_ptr(generation());
        aborted.local_rank = local_rank;
        aborted.status = status;
        aborted.text = text;
        say(std::move(aborted));
    }

    /// A rank has connected.
    void use() {
        local::PmixUsedT word;
        word.generation = to_proto_ptr(generation());
        say(std::move(word));
        used = true;
    }

    bool able = true, silent = false, used = false;
    std::vector<std::string> variables{"PMIX_NAMESPACE=x"};
    local::PmixWorldT world;
    int worlds = 0;
    GenerationId stopped;
    std::string reason;
    using Kind = local::PmixEventKind;
    std::vector<std::pair<Kind, std::uint64_t>> events;
    std::optional<local::PmixStateT> state;
    std::optional<local::PmixRestartReplyT> restarted;
    std::vector<local::PmixParcelT> parcels;
    std::vector<std::uint32_t> unreachable;
};

struct Serving : TwoNodes {
    std::unique_ptr<Pmixd> p1, p2;

    explicit Serving(StepOf step = {}) : TwoNodes(with_pmix(std::move(step))) {}
    static StepOf with_pmix(StepOf step) {
        if (step.pmix == proto::PmixMode::No) step.pmix = proto::PmixMode::Yes;
        return step;
    }
    void start() {
        p1 = std::make_unique<Pmixd>(n1);
        p2 = std::make_unique<Pmixd>(n2);
        await_worlds();
    }
    void pump() override {
        for (Pmixd *pmixd : {p1.get(), p2.get()})
            if (pmixd != nullptr) pmixd->pump();
    }
    std::optional<local::WorldPublishedT> next_world(Node &node, const Client &agent) {
        return node.port->take<local::WorldPublishedT>(agent.id);
    }
    /// A lost pmixd's node is told as a rank that failed.
    bool fails(const std::string &why) { return count_events(n1, why) + count_events(n2, why) > 0; }
};

/// Where ranks may begin without a server.
const StepOf automatic{.pmix = proto::PmixMode::Auto};

/// Checkpoints are copied, and go to storage.
struct Saving : Serving {
    std::unique_ptr<Mover> m1, m2;
    std::unique_ptr<Writer> d1, d2;

    Saving() : Serving(StepOf{.ckpt_dir = "/data/run", .ckpt_every_steps = 1, .redundancy = "partner:1"}) {
        m1 = std::make_unique<Mover>(n1);
        m2 = std::make_unique<Mover>(n2);
        d1 = std::make_unique<Writer>(n1);
        d2 = std::make_unique<Writer>(n2);
        start();
    }
    void pump() override {
        Serving::pump();
        m1->pump(*m2);
        m2->pump(*m1);
        d1->pump();
        d2->pump();
    }
};

/// A worker that wants to hear what happens to its group.
struct Subscriber {
    Node &node;
    Client worker;
    std::vector<std::pair<local::PmixEventKind, std::uint64_t>> events;
    std::vector<std::string> nodes, stops;

    Subscriber(Node &n, const local::WorldPublishedT &world) : node(n), worker(n.start_worker(world, 0)) {
        node.say(worker, local::SubscribeT{});
    }
    void listen() {
        for (auto &message : std::exchange(node.port->sent[worker.id], {})) {
            if (auto *world = message.body.AsPmixWorld()) nodes = world->node_names;
            if (auto *event = message.body.AsPmixEvent()) events.emplace_back(event->kind, event->number);
            if (auto *stop = message.body.AsPmixStop()) stops.push_back(stop->reason);
        }
    }
};

}  // namespace

BOOST_AUTO_TEST_CASE(pmix_ranks_start_when_their_server_is_there) {
    Serving g;
    g.p1 = std::make_unique<Pmixd>(g.n1);
    g.run(6s);
    BOOST_TEST(g.next_world(g.n1, g.a1).has_value());
    BOOST_TEST(!g.next_world(g.n2, g.a2).has_value());
    g.p2 = std::make_unique<Pmixd>(g.n2);
    g.run(1s);
    auto world = g.next_world(g.n2, g.a2);
    BOOST_REQUIRE(world.has_value());
    BOOST_TEST(world->variables == std::vector<std::string>{"PMIX_NAMESPACE=x"});
    BOOST_TEST(g.p2->world.name_space.starts_with("dlrover.7.0.0.g"));
    BOOST_TEST(g.p2->world.place == 1u);
    BOOST_TEST(g.p2->world.ranks_per_node == (std::vector<std::uint16_t>{2, 2}));
}

BOOST_AUTO_TEST_CASE(pmix_without_a_server_is_a_failure_that_says_so) {
    Serving g;
    g.p1 = std::make_unique<Pmixd>(g.n1);
    g.run(6s);
    g.run(PmixRelay::patience + 2s);
    BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd does not run"));
}

BOOST_AUTO_TEST_CASE(pmix_server_that_can_not_serve_fails_the_world) {
    Serving g;
    g.p1 = std::make_unique<Pmixd>(g.n1);
    g.p2 = std::make_unique<Pmixd>(g.n2);
    g.p2->able = false;
    g.run(8s);
    BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd: no memory"));
    BOOST_TEST(g.p2->worlds > 1, "the next world is tried");
}

BOOST_AUTO_TEST_CASE(pmix_variables_are_pmixs) {
    for (const char *bad : {"LD_PRELOAD=/tmp/x", "PMIX_X", ""}) {
        Serving g;
        g.p1 = std::make_unique<Pmixd>(g.n1);
        g.p2 = std::make_unique<Pmixd>(g.n2);
        g.p2->variables = {bad};
        g.run(8s);
        BOOST_TEST(g.fails("variables that workers may not get"), bad);
        BOOST_TEST(!g.next_world(g.n2, g.a2).has_value());
    }
}

BOOST_AUTO_TEST_CASE(pmix_parcels_go_from_server_to_server) {
    Serving g;
    g.start();
    g.p1->send(1, 100);
    g.run(100ms);
    BOOST_REQUIRE(g.p2->parcels.size() == 1u);
    BOOST_TEST(g.p2->parcels[0].place == 0u);
    BOOST_TEST(g.p2->parcels[0].bytes.size() == 100u);
    BOOST_TEST((from_proto(g.p2->parcels[0].generation) == g.p2->generation()));
}

BOOST_AUTO_TEST_CASE(pmix_parcels_that_can_not_be_go_nowhere) {
    Serving g;
    g.start();
    GenerationId now = g.p1->generation(), other{now.term, now.number + 1};
    g.p1->send(1, 100, other);
    g.p1->send(1, 0);
    g.p1->send(1, max_parcel_bytes + 1);
    g.p1->send(0, 100);  // to itself
    g.p1->send(2, 100);
    g.p1->send(4000000000u, 100);
    g.run(100ms);
    BOOST_TEST(g.p1->parcels.empty());
    BOOST_TEST(g.p2->parcels.empty());
}

BOOST_AUTO_TEST_CASE(pmix_takes_its_share_of_a_link_only) {
    Serving g;
    g.start();
    std::size_t most = g.settings.network.peer_queue.value / 2;
    for (std::size_t sent = 0; sent < 2 * most; sent += max_parcel_bytes) g.p1->send(1, max_parcel_bytes);
    g.run(20ms);
    BOOST_TEST(g.p2->parcels.size() == most / max_parcel_bytes);
    g.p2->parcels.clear();
    g.run(1s);
    g.p1->send(1, max_parcel_bytes);
    g.run(20ms);
    BOOST_TEST(g.p2->parcels.size() == 1u, "later it may again");
}

BOOST_AUTO_TEST_CASE(pmix_of_an_older_daemon_is_out_of_reach) {
    Serving g;
    g.hub.make_older("n2", transport::PeerEnvelope::Kind::join);
    g.start();
    g.p1->send(1, 100);
    g.p1->send(1, 100);
    g.run(100ms);
    BOOST_TEST(g.p2->parcels.empty());
    BOOST_TEST(g.p1->unreachable == std::vector<std::uint32_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(pmix_of_each_generation_is_another_one) {
    Serving g;
    g.start();
    GenerationId first = g.p1->generation();
    g.n2.exited(g.a2, g.w2, 1, 3 << 8);
    g.await_worlds();
    BOOST_TEST((g.p1->stopped == first));
    BOOST_TEST((g.p1->generation() > first));
    BOOST_TEST(g.p1->worlds == 2);
    g.p2->parcels.clear();
    g.p1->send(1, 100, first);
    g.run(100ms);
    BOOST_TEST(g.p2->parcels.empty());
}

BOOST_AUTO_TEST_CASE(pmix_server_that_is_lost_costs_its_generation) {
    Serving g;
    g.start();
    GenerationId first = g.p2->generation();
    g.p2->die();
    g.run(200ms);
    BOOST_TEST(!g.fails("no PMIx"), "the guard starts it again");
    g.p2->connect();
    g.await_worlds();
    BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd has ended"));
    BOOST_TEST((g.p2->generation() > first));
    g.p2->die();
    g.run(PmixRelay::patience + 8s);
    BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd does not run"));
}

BOOST_AUTO_TEST_CASE(pmix_goes_on_when_the_daemon_is_started_again) {
    Serving g;
    g.start();
    GenerationId first = g.p2->generation();
    for (bool lost : {false, true}) {
        g.n2.restart();
        g.loop.advance(100ms);
        g.a2 = g.n2.start_agent(alice, first);
        g.p2->connect(lost ? GenerationId{} : first);
        g.run(8s);
        BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd has ended") == lost);
        BOOST_TEST((g.p2->generation() > first) == lost);
        if (lost) break;
        g.p1->send(1, 100);
        g.run(100ms);
        BOOST_TEST(g.p2->parcels.size() == 1u);
        g.p2->send(0, 100);
        g.run(100ms);
        BOOST_TEST(g.p1->parcels.size() == 1u);
    }
}

/// cycles.py found it: the daemon died when a world was on record and had not gone to the agents. They got it
/// with their PMIx server's word, and nobody told the member that it ran.
BOOST_AUTO_TEST_CASE(a_world_that_waited_for_pmix_through_a_daemons_restart_runs) {
    for (bool first : {true, false}) {
        Serving g;
        g.start();
        Node &node = first ? g.n1 : g.n2;
        Client &agent = first ? g.a1 : g.a2;
        Pmixd &pmixd = first ? *g.p1 : *g.p2;
        GenerationId id = pmixd.generation();
        node.restart();
        agent = node.start_agent(alice);
        g.run(300ms);
        BOOST_TEST(!g.next_world(node, agent).has_value());
        pmixd.connect(id);
        g.run(100ms);
        auto world = g.next_world(node, agent);
        BOOST_REQUIRE(world.has_value());
        BOOST_TEST((from_proto(world->generation) == id));
        g.run(8s);
        BOOST_TEST((pmixd.generation() == id));
        BOOST_TEST(!g.fails("are gone"));
    }
}

BOOST_AUTO_TEST_CASE(pmix_servers_are_their_users) {
    Serving g;
    g.start();
    auto stranger = g.n1.client(local::Role::Pmix, bob);
    local::PmixHelloT hello;
    hello.job_id = 7;
    g.n1.say(stranger, std::move(hello));
    BOOST_TEST(g.n1.port->take<local::FailureT>(stranger.id).has_value());
    // A second one of the user's takes the first one's place, which is not heard any more.
    Client old = g.p1->client;
    g.p1->connect(g.p1->generation());
    BOOST_TEST(g.n1.port->closed.contains(old.id));
    local::PmixParcelT parcel;
    parcel.generation = to_proto_ptr(g.p1->generation());
    parcel.place = 1;
    parcel.bytes = {1};
    g.n1.say(old, std::move(parcel));
    g.run(100ms);
    BOOST_TEST(g.p2->parcels.empty());
}

BOOST_AUTO_TEST_CASE(pmix_ranks_may_have_all_begin_again) {
    using State = local::RollbackState;
    Serving g;
    g.start();
    BOOST_TEST((g.p2->restart(-1) == State::Refused), "nothing is saved");
    g.save_everywhere(5);
    g.run(1s);
    BOOST_TEST((g.p2->restart(4) == State::Refused), "no older step is kept");
    BOOST_TEST((g.p2->restart(6) == State::Refused), "nobody has saved it");
    BOOST_TEST(count_events(g.n2, "request to begin again is refused") == 3);
    BOOST_TEST(count_events(g.n2, "have saved no step 6 yet: the newest is 5") == 1);
    GenerationId first = g.p2->generation();
    BOOST_TEST((g.p2->restart(-1) == State::Begun));
    g.await_worlds();
    BOOST_TEST((g.p2->generation() > first));
    BOOST_TEST(g.w1.restore_step == 5);
}

BOOST_AUTO_TEST_CASE(pmix_abort_is_in_the_time_line) {
    Serving g;
    g.start();
    g.p2->abort(1, 5, "bad\ninput");
    BOOST_TEST(count_events(g.n2, "The program aborted with status 5: bad") == 1u);
    g.p2->abort(9, 5, "bad\ninput");
    BOOST_TEST(count_events(g.n2, "aborted") == 1u, "no such rank");
    for (int i = 0; i < 100; ++i) g.p2->abort(0, 5, "again " + std::to_string(i));
    BOOST_TEST(count_events(g.n2, "aborted") == 1u, "the first one of a generation is told");
}

BOOST_AUTO_TEST_CASE(a_rank_that_aborts_and_does_not_end_has_failed) {
    for (auto [status, code] : {std::pair(5, 5), std::pair(256, 1), std::pair(-1, 255)}) {
        Serving g;
        g.start();
        GenerationId first = g.p2->generation();
        g.p2->abort(1, status, "no more");
        g.run(1s);
        g.p2->abort(0, 7, "neither do I");
        g.run(800ms);
        BOOST_TEST((g.p2->stopped < first), "it may end by itself");
        g.run(500ms);
        BOOST_TEST((g.p2->stopped == first));
        BOOST_TEST(g.p2->reason == "rank " + std::to_string(g.w2.first_rank + 1) +
                                       " on n2 exited with code " + std::to_string(code));
        g.await_worlds();
        GenerationId second = g.p2->generation();
        BOOST_TEST((second > first));
        g.run(10s);
        BOOST_TEST((g.p2->generation() == second), "the next one is none the worse");
    }
}

BOOST_AUTO_TEST_CASE(a_rank_that_aborts_and_ends_has_failed_once) {
    Serving g;
    g.start();
    g.p2->abort(1, 5, "no more");
    g.n2.exited(g.a2, g.w2, 1, 5 << 8);
    g.await_worlds();
    GenerationId second = g.p2->generation();
    g.p2->abort(0, 7, "nor now");  // its time is its own
    g.run(1s);
    BOOST_TEST((g.p2->generation() == second));
    g.run(4s);
    BOOST_TEST((g.p2->generation() > second));
    BOOST_TEST(g.p2->worlds == 3);
    BOOST_TEST(count_events(g.n1, "exited with code 5") + count_events(g.n2, "exited with code 5") > 0u);
}

BOOST_AUTO_TEST_CASE(a_rank_that_aborts_with_success_ends_the_others) {
    Serving g;
    g.start();
    GenerationId first = g.p2->generation();
    g.p2->abort(1, 0, "");
    g.n2.exited(g.a2, g.w2, 1, 0);
    g.run(4s);
    BOOST_TEST((g.p2->generation() > first));
}

BOOST_AUTO_TEST_CASE(ranks_that_waited_in_vain_are_in_the_time_line) {
    Serving g;
    g.start();
    local::PmixOverdueT overdue;
    overdue.generation = to_proto_ptr(g.p2->generation());
    overdue.purpose = "a fence\nof mine";
    auto stale = overdue;
    g.n2.say(g.p2->client, std::move(overdue), 0);
    BOOST_TEST(count_events(g.n2, "Ranks of n2 waited 300 s in PMIx for a fence") == 1u);
    *stale.generation = proto::Generation(1, 77);
    g.n2.say(g.p2->client, std::move(stale), 0);
    BOOST_TEST(count_events(g.n2, "in PMIx for") == 1u, "of another generation");
}

/// In the test no rank's process is there: who fails for that, test_pmix_late.py shows.
BOOST_AUTO_TEST_CASE(ranks_that_wait_for_their_neighbours_are_in_the_time_line) {
    Serving g;
    g.start();
    GenerationId first = g.p2->generation();
    std::string waiting = "rank " + std::to_string(g.w2.first_rank),
                missing = "rank " + std::to_string(g.w2.first_rank + 1);
    auto say = [&](bool all_wait) {
        local::PmixOverdueT overdue;
        overdue.generation = to_proto_ptr(first);
        overdue.purpose = "a fence";
        overdue.local = true;
        overdue.waiting = {0};
        (all_wait ? overdue.waiting : overdue.missing).push_back(1);
        g.n2.say(g.p2->client, std::move(overdue), 0);
    };
    auto told = [&](const std::string &text) { return count_events(g.n2, "On n2, " + waiting + text); };
    for (int i = 0; i < 30; ++i, g.run(10s)) say(false);
    BOOST_TEST(told(" waited 300 s in PMIx for a fence, to which " + missing +
                    " of this node did not come (pmix.wait_limit).") == 1u);
    g.run(110s);
    say(true);
    BOOST_TEST(count_events(g.n2, "waited 300 s in PMIx for a fence, which does not come about") == 1u);
    BOOST_TEST((g.p2->generation() == first), "what can not be seen is not judged");
    BOOST_TEST(!g.fails("counts as failed"));
}

namespace {

/// On n2 rank 0 waits for rank 1, at which its agent looks.
struct Neighbour : Serving {
    std::function<std::optional<Activity>(int look)> does;
    int looks = 0;

    /// Whether it counts as failed within five minutes.
    bool has_failed() {
        start();
        local::WorkerStartedT started;
        started.generation = to_proto_ptr(p2->generation());
        started.local_rank = 1;
        started.pid = 4711;
        n2.say(a2, std::move(started), 0);
        for (int i = 0; i < 30 && !fails("counts as failed"); ++i) {
            local::PmixOverdueT overdue;
            overdue.generation = to_proto_ptr(p2->generation());
            overdue.purpose = "a fence";
            overdue.local = true;
            overdue.waiting = {0};
            overdue.missing = {1};
            n2.say(p2->client, std::move(overdue), 0);
            tell();
            run(10s);
        }
        return fails("counts as failed");
    }
    void tell() {
        auto order = n2.port->take<local::LookAtRanksT>(a2.id);
        if (!order) return;
        BOOST_TEST((order->local_ranks == std::vector<std::uint16_t>{1}));
        auto activity = does(looks++);
        if (!activity) return;
        local::RanksSeenT seen;
        for (std::uint16_t local_rank : {1, 99}) {  // nobody has asked for the other
            auto &one = *seen.ranks.emplace_back(std::make_unique<local::RankActivityT>());
            one.local_rank = local_rank;
            one.processor_us = static_cast<std::uint64_t>(activity->processor.count());
            one.bytes = activity->bytes;
            one.in_kernel = activity->in_kernel;
        }
        n2.say(a2, std::move(seen), 0);
    }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_rank_that_does_nothing_while_its_neighbours_wait_has_failed) {
    Neighbour g;
    g.does = [](int) { return Activity{5s, 1000, false}; };
    BOOST_TEST(g.has_failed());
    BOOST_TEST(g.fails("which does nothing, counts as failed"));
    BOOST_TEST(g.looks >= 7, "for a minute");
}

BOOST_AUTO_TEST_CASE(a_rank_that_does_something_is_waited_for) {
    const std::function<std::optional<Activity>(int)> all[] = {
        [](int i) {
            return Activity{200ms * i, 0, false};
        },
        [](int i) {
            return Activity{0ms, std::uint64_t{1 << 20} * static_cast<unsigned>(i), false};
        },
        [](int) {
            return Activity{0ms, 0, true};
        },
    };
    for (const auto &does : all) {
        Neighbour g;
        g.does = does;
        BOOST_TEST(!g.has_failed());
        BOOST_TEST(g.looks == 30);
    }
}

/// What was told before is no sign of now.
BOOST_AUTO_TEST_CASE(a_rank_of_which_its_agent_tells_nothing_more_is_not_judged) {
    Neighbour g;
    g.does = [](int i) { return i < 3 ? std::optional(Activity{5s, 1000, false}) : std::nullopt; };
    BOOST_TEST(!g.has_failed());
}

/// Without pmix.busy_limit they would wait for ever: nothing is seen of what the ranks do.
BOOST_AUTO_TEST_CASE(ranks_wait_for_their_neighbours_no_longer_than_the_limit) {
    for (bool all_wait : {false, true}) {
        Serving g;
        g.start();
        GenerationId first = g.p2->generation();
        auto say = [&](std::chrono::milliseconds waited) {
            local::PmixOverdueT overdue;
            overdue.generation = to_proto_ptr(first);
            overdue.purpose = "a fence";
            overdue.local = true;
            overdue.waited_ms = static_cast<std::uint64_t>(waited.count());
            overdue.waiting = {0};
            (all_wait ? overdue.waiting : overdue.missing).push_back(1);
            // The last to be blamed, where it is not the only one.
            overdue.asking.push_back(all_wait ? 0 : 1);
            g.n2.say(g.p2->client, std::move(overdue), 0);
            g.run(10s);
        };
        say(30min - 10s);
        BOOST_TEST((g.p2->generation() == first));
        BOOST_TEST(!g.fails("counts as failed"));
        say(30min);
        std::string who = std::to_string(g.w2.first_rank + 1) + " on n2 ";
        BOOST_TEST(g.fails("Rank " + who + "counts as failed, whatever it does: "));
        BOOST_TEST(g.fails("waited 1800 s in PMIx for " + std::string(all_wait ? "each other" : "it") +
                           " (pmix.busy_limit)."));
        g.await_worlds();
        BOOST_TEST((g.p2->generation() > first));
        BOOST_TEST(g.p2->reason == "rank " + who + "was killed by signal 9 (Killed)");
    }
}

BOOST_AUTO_TEST_CASE(pmix_servers_hear_of_a_lost_rank) {
    Serving g;
    g.start();
    GenerationId first = g.p1->generation();
    g.n2.exited(g.a2, g.w2, 1, SIGKILL);
    g.run(100ms);
    std::uint64_t rank = g.w2.first_rank + 1;
    for (Pmixd *pmixd : {g.p1.get(), g.p2.get()}) {
        BOOST_REQUIRE(pmixd->events.size() == 1u);
        BOOST_TEST((pmixd->events[0] == std::pair(Pmixd::Kind::RankLost, rank)));
        BOOST_TEST((pmixd->stopped == first));
        BOOST_TEST(pmixd->reason ==
                   "rank " + std::to_string(rank) + " on n2 was killed by signal 9 (Killed)");
    }
    g.await_worlds();
    BOOST_TEST(g.p1->events.size() == 1u);
}

/// Who is ended by its agent hears of nothing any more.
BOOST_AUTO_TEST_CASE(programs_hear_of_an_end_before_their_agents) {
    Serving g;
    g.start();
    Subscriber s(g.n2, g.w2);
    auto &said = g.n2.port->history;
    said.clear();
    g.n2.exited(g.a2, g.w2, 1, SIGKILL);
    g.run(100ms);
    auto place_of = [&](const Client &to, local::Body what) {
        auto found = std::ranges::find(said, std::pair(to.id, what));
        BOOST_TEST((found != said.end()));
        return found;
    };
    auto agent = place_of(g.a2, local::Body::StopWorkers);
    for (const Client &program : {g.p2->client, s.worker})
        for (auto word : {local::Body::PmixEvent, local::Body::PmixStop})
            BOOST_TEST((place_of(program, word) < agent));
}

BOOST_AUTO_TEST_CASE(pmix_servers_hear_of_a_lost_node) {
    Serving g(StepOf{.min_nodes = 1});
    g.start();
    GenerationId first = g.p2->generation();
    std::uint64_t place = 1 - g.p2->world.place;
    g.p1.reset();
    g.n1.daemon.reset();
    g.n1.peers.reset();
    g.run(30s);
    BOOST_TEST((g.p2->generation() > first));
    BOOST_REQUIRE(g.p2->events.size() == 2u);
    std::ranges::sort(g.p2->events);
    BOOST_TEST((g.p2->events[0] == std::pair(Pmixd::Kind::NodeLost, place)));
    BOOST_TEST((g.p2->events[1] == std::pair(Pmixd::Kind::AllocationChanged, std::uint64_t{1})));
    BOOST_TEST(g.p2->reason.find("n1 lost") != std::string::npos, g.p2->reason);
}

BOOST_AUTO_TEST_CASE(pmix_servers_hear_what_is_safe_and_what_is_on_storage) {
    Saving g;
    auto none = g.p1->ask(3);
    BOOST_TEST(none.number == 3u);
    BOOST_TEST(none.safe_step == -1);
    BOOST_TEST(none.durable_step == -1);
    for (std::uint64_t step : {5u, 6u}) {
        BOOST_REQUIRE(g.try_save_everywhere(step));
        g.run(3s);
        for (Pmixd *pmixd : {g.p1.get(), g.p2.get()}) {
            auto heard = std::exchange(pmixd->events, {});
            std::ranges::sort(heard);
            BOOST_REQUIRE(heard.size() == 2u);
            BOOST_TEST((heard[0] == std::pair(Pmixd::Kind::StepSafe, step)));
            BOOST_TEST((heard[1] == std::pair(Pmixd::Kind::StepDurable, step)));
            auto state = pmixd->ask(step);
            BOOST_TEST(state.number == step);
            BOOST_TEST(state.safe_step == static_cast<std::int64_t>(step));
            BOOST_TEST(state.durable_step == static_cast<std::int64_t>(step));
            BOOST_TEST((state.goodput && state.goodput->wall_us > 0));
        }
    }
    // A daemon that is started again hears it from the others.
    g.n2.restart();
    g.loop.advance(100ms);
    g.a2 = g.n2.start_agent(alice, g.p2->generation());
    g.p2->connect(g.p2->generation());
    g.run(2s);
    BOOST_TEST(g.p2->ask(1).durable_step == 6);
}

BOOST_AUTO_TEST_CASE(pmix_servers_hear_how_a_group_ends) {
    Serving g;
    g.start();
    for (auto [node, agent, world] : {std::tuple(&g.n1, &g.a1, &g.w1), std::tuple(&g.n2, &g.a2, &g.w2)})
        for (std::uint16_t rank : {0, 1}) node->exited(*agent, *world, rank, 0);
    g.run(2s);
    BOOST_TEST((g.p1->stopped == g.p1->generation()));
    BOOST_TEST(g.p1->reason == "the group has ended");
}

BOOST_AUTO_TEST_CASE(pmix_is_in_the_status) {
    Serving g;
    g.start();
    auto both = status_at(g.n1, alice);
    BOOST_REQUIRE(both.groups.at(0)->pmix);
    BOOST_TEST(both.groups[0]->pmix->name_space == g.p1->world.name_space);
    BOOST_TEST(both.groups[0]->pmix->nodes == 2u);
    BOOST_TEST(both.groups[0]->pmix->up == 2u);
    BOOST_TEST(status_at(g.n2, alice, false).groups.at(0)->pmix->up == 1u);
    g.p2->die();
    BOOST_TEST(status_at(g.n1, alice).groups.at(0)->pmix->up == 1u);
}

BOOST_AUTO_TEST_CASE(pmix_on_its_own_does_without_a_server) {
    Serving g(automatic);
    g.p1 = std::make_unique<Pmixd>(g.n1);
    g.run(4s);
    auto with = g.next_world(g.n1, g.a1);
    BOOST_REQUIRE(with.has_value());
    BOOST_TEST(!with->variables.empty());
    BOOST_TEST(!g.next_world(g.n2, g.a2).has_value(), "one may come");
    g.run(PmixRelay::short_patience);
    auto without = g.next_world(g.n2, g.a2);
    BOOST_REQUIRE(without.has_value());
    BOOST_TEST(without->variables.empty());
    BOOST_TEST(
        g.fails("no PMIx on n2: dlrover-pmixd does not run (is it installed?). The ranks go on without it"));
    // Servers elsewhere do not wait for these ranks, also if they hear of the world later.
    BOOST_TEST(g.p1->unreachable == std::vector<std::uint32_t>{1}, boost::test_tools::per_element());
    BOOST_TEST(status_at(g.n1, alice).groups.at(0)->pmix->up == 1u);
    // One that comes now comes too late for this world, and is there for the next one.
    g.p2 = std::make_unique<Pmixd>(g.n2);
    g.run(1s);
    BOOST_TEST(g.p2->worlds == 0);
    g.p2->send(0, 100);
    g.run(1s);
    GenerationId first = g.p1->generation();
    g.n1.exited(g.a1, *with, 1, 3 << 8);
    g.run(3s);
    BOOST_TEST((g.p1->generation() > first));
    BOOST_TEST(g.p2->worlds == 1);
    BOOST_TEST(status_at(g.n1, alice).groups.at(0)->pmix->up == 2u);
}

BOOST_AUTO_TEST_CASE(pmix_on_its_own_does_without_one_that_can_not_serve) {
    Serving g(automatic);
    g.p1 = std::make_unique<Pmixd>(g.n1);
    g.p2 = std::make_unique<Pmixd>(g.n2);
    g.p2->able = false;
    g.run(8s);
    BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd: no memory. The ranks go on without it"));
    BOOST_TEST(g.p2->worlds == 1, "no world has failed");
    auto world = g.next_world(g.n2, g.a2);
    BOOST_REQUIRE(world.has_value());
    BOOST_TEST(world->variables.empty());
    BOOST_TEST(g.p1->unreachable == std::vector<std::uint32_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(pmix_that_nobody_uses_may_be_lost) {
    for (bool used : {false, true}) {
        Serving g(automatic);
        g.start();
        GenerationId first = g.p2->generation();
        if (used) g.p2->use();
        g.p2->die();
        g.run(200ms);
        g.p2->connect();
        g.run(5s);
        BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd has ended"));
        BOOST_TEST(g.fails("The ranks go on without it") == !used);
        BOOST_TEST((g.p1->generation() > first) == used);
    }
}

/// From then on it is no failure of a moment: a program that uses PMIx does so in each generation.
BOOST_AUTO_TEST_CASE(pmix_that_was_used_is_needed) {
    for (bool restarted : {false, true}) {
        Serving g(automatic);
        g.start();
        GenerationId first = g.p2->generation();
        g.p2->use();
        if (restarted) {
            g.n2.restart();
            g.loop.advance(100ms);
            g.a2 = g.n2.start_agent(alice, first);
            g.p2->connect(first);
            g.run(1s);
        }
        g.p2->die();
        g.n1.exited(g.a1, g.w1, 1, 3 << 8);
        g.run(PmixRelay::short_patience + 2s);
        BOOST_TEST(!g.fails("The ranks go on without it"));
        g.run(PmixRelay::patience);
        BOOST_TEST(g.fails("no PMIx on n2: dlrover-pmixd does not run"));
        BOOST_TEST(!g.fails("The ranks go on without it"));
    }
}

BOOST_AUTO_TEST_CASE(pmix_is_for_groups_that_want_it) {
    TwoNodes nodes;
    BOOST_TEST(!status_at(nodes.n1, alice).groups.at(0)->pmix);
    auto pmixd = nodes.n1.client(local::Role::Pmix, alice);
    local::PmixHelloT hello;
    hello.job_id = 7;
    nodes.n1.say(pmixd, std::move(hello));
    BOOST_TEST(nodes.n1.port->take<local::FailureT>(pmixd.id).has_value());
}

BOOST_AUTO_TEST_CASE(workers_hear_what_pmix_servers_hear) {
    Saving g;
    Subscriber s1(g.n1, g.w1), s2(g.n2, g.w2);
    for (Subscriber *s : {&s1, &s2}) {
        s->listen();
        BOOST_TEST(s->nodes == (std::vector<std::string>{"n1", "n2"}), boost::test_tools::per_element());
    }
    BOOST_REQUIRE(g.try_save_everywhere(5));
    g.run(3s);
    g.n2.exited(g.a2, g.w2, 1, SIGKILL);
    g.run(100ms);
    std::uint64_t rank = g.w2.first_rank + 1;
    for (Subscriber *s : {&s1, &s2}) {
        s->listen();
        std::ranges::sort(s->events);
        std::string heard;
        for (auto [kind, number] : s->events)
            heard += std::string(local::EnumNamePmixEventKind(kind)) + " " + std::to_string(number) + ";";
        BOOST_TEST(heard == "RankLost " + std::to_string(rank) + ";StepSafe 5;StepDurable 5;");
        BOOST_REQUIRE(s->stops.size() == 1u);
        BOOST_TEST(s->stops[0] == "rank " + std::to_string(rank) + " on n2 was killed by signal 9 (Killed)");
    }
}

BOOST_AUTO_TEST_CASE(workers_hear_that_the_jobs_time_is_nearly_over) {
    TwoNodes g;
    Subscriber early(g.n2, g.w2);
    g.run(1s);
    g.slurm.jobs.at(JobId(7)).end_time = std::time(nullptr) + 60;
    g.run(11min);  // Slurm is asked now and then
    early.listen();
    BOOST_REQUIRE(early.events.size() == 1u);
    BOOST_TEST((early.events[0].first == local::PmixEventKind::Draining));
    BOOST_TEST(early.events[0].second <= 60u);
    BOOST_TEST(early.events[0].second > 40u);
    BOOST_TEST(count_events(g.n1, "its time is over then") + count_events(g.n2, "its time is over then") ==
               1);
    Subscriber late(g.n1, g.w1);
    g.run(100ms);
    late.listen();
    BOOST_REQUIRE(late.events.size() == 1u);
    BOOST_TEST((late.events[0].first == local::PmixEventKind::Draining));
}

BOOST_AUTO_TEST_CASE(workers_hear_of_a_lost_node_without_pmix) {
    TwoNodes g(StepOf{.min_nodes = 1});
    g.await_worlds();
    Subscriber s(g.n2, g.w2);
    g.n1.daemon.reset();
    g.n1.peers.reset();
    g.run(30s);
    s.listen();
    BOOST_REQUIRE(s.events.size() == 2u);
    std::ranges::sort(s.events);
    BOOST_TEST((s.events[0].first == local::PmixEventKind::NodeLost));
    BOOST_TEST((s.events[1] == std::pair(local::PmixEventKind::AllocationChanged, std::uint64_t{1})));
    BOOST_TEST(s.nodes.at(s.events[0].second) == "n1");
    BOOST_REQUIRE(!s.stops.empty());
    BOOST_TEST(s.stops[0].find("n1 lost") != std::string::npos, s.stops[0]);
}
