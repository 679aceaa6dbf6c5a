// SPDX-License-Identifier: Apache-2.0
// A daemon and the mover of its node, which says what the test tells it.
#include <boost/test/unit_test.hpp>

#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

/// What came of one order, in the order of events.
struct Told {
    std::vector<std::pair<std::string, Code>> events;
    std::string text;
    bool retry = false;
    std::uint64_t spared = 0;

    std::function<void(Status)> as(const std::string &what) {
        return [this, what](Status status) { add(what, status); };
    }
    std::function<void(Status, std::uint64_t)> as_arrived() {
        return [this](Status status, std::uint64_t bytes) {
            add("arrived", status);
            spared = bytes;
        };
    }
    std::function<void(Status, bool)> as_sent() {
        return [this](Status status, bool again) {
            add("sent", status);
            retry = again;
        };
    }
    void add(const std::string &what, const Status &status) {
        events.emplace_back(what, status.code());
        text = status.message();
    }
    bool is(std::vector<std::pair<std::string, Code>> wanted) const { return events == wanted; }
};

/// Of a mover that was given no address: Slurm knows this node by a name.
std::string interface_of_mover(const std::string &own_address, UseUcx ucx, std::uint16_t ways) {
    ManualLoop loop;
    TestPort port;
    Settings settings;
    settings.transfer.ucx = ucx;
    GroupMover mover({loop, port, settings}, "", {[] {}, {}, [&] { return own_address; }});
    Client client{1, alice, alice, 1001, local::Role::Mover};
    mover.on_hello(client, 1);
    local::MoverReadyT ready;
    ready.port = 4123;
    ready.ways = ways;
    mover.on_message(client, proto::make_local(0, std::move(ready)));
    return mover.status()->interface;
}

struct Fixture {
    ManualLoop loop;
    TestPort port;
    Settings settings;
    int changes = 0;
    Told told;
    std::vector<bool> ended;
    GroupMover mover{{loop, port, settings},
                     "10.0.0.1",
                     {[this] { ++changes; }, [this](bool killed) { ended.push_back(killed); }}};
    Client client = another();

    static Client another() {
        static ConnectionId next = 1;
        ConnectionId id = next++;
        return {id, alice, alice, static_cast<std::int32_t>(1000 + id), local::Role::Mover};
    }
    void be_ready(std::uint16_t port_of = 4123, std::uint16_t ways = 1, bool answers = false) {
        mover.on_hello(client, 1);
        local::MoverReadyT ready;
        ready.answers = answers;
        ready.port = port_of;
        ready.ways = ways;
        ready.text = "no RDMA network is up here";
        say(std::move(ready));
    }
    template <typename BodyT>
    bool say(BodyT body) {
        bool taken = mover.on_message(client, proto::make_local(0, std::move(body)));
        loop.advance();
        return taken;
    }
    void be_ready_again_does_nothing() {
        auto before = mover.port();
        local::MoverReadyT again;
        again.port = 9;
        again.ways = 1;
        say(std::move(again));
        BOOST_TEST(mover.port() == before);
    }
    template <typename BodyT>
    bool answer(GroupMover::Order order, bool ok, const std::string &text = {}) {
        BodyT body;
        body.order = order;
        body.ok = ok;
        body.text = text;
        return say(std::move(body));
    }
    GroupMover::Order receive(std::chrono::milliseconds wait = 5s) {
        ObjectToReceive object;
        object.id = {{Term(3), 4}, TrainStep(5)};
        object.world_size = 2;
        object.rank = Rank(1);
        object.segments.resize(2);
        object.segments[1].bytes = 4096;
        object.data_bytes = 100;
        object.table_offset = 128;
        object.table_bytes = 50;
        object.table_xxh3 = 9;
        object.transfer = 77;
        object.key.assign(32, 6);
        object.from = "10.0.0.2";
        object.wait = wait;
        return mover.receive(std::move(object), told.as("expecting"), told.as_arrived());
    }
    GroupMover::Order send() {
        ObjectToSend object;
        object.segments.resize(1);
        object.bytes = 178;
        object.transfer = 77;
        object.key.assign(32, 6);
        object.address = "10.0.0.2";
        object.port = 4124;
        object.way = 1;
        object.wait = 5s;
        return mover.send(std::move(object), told.as_sent());
    }
    template <typename T>
    std::optional<T> pushed() {
        return port.take<T>(client.id);
    }
    bool cancelled(GroupMover::Order order) {
        auto cancel = pushed<local::CancelOrderT>();
        return cancel && cancel->order == order;
    }
};

constexpr Code ok = Code::ok, away = Code::unavailable;

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_mover, Fixture)

BOOST_AUTO_TEST_CASE(a_mover_uses_the_interface_of_its_nodes_links) {
    BOOST_TEST(interface_of_mover("127.0.0.1", UseUcx::never, 1).starts_with("lo"));
    BOOST_TEST(interface_of_mover("", UseUcx::never, 1) == "", "no link is up yet");
    BOOST_TEST(interface_of_mover("127.0.0.1", UseUcx::rdma, 3) == "",
               "UCX has chosen, among those for RDMA");
    BOOST_TEST(interface_of_mover("127.0.0.1", UseUcx::always, 3).starts_with("lo"));
}

BOOST_AUTO_TEST_CASE(a_mover_is_welcome_and_says_where_it_listens) {
    settings.transfer.streams = 7;
    settings.transfer.rate.value = 1 << 20;
    mover.on_hello(client, 9);
    auto welcome = pushed<local::MoverWelcomeT>();
    BOOST_REQUIRE(welcome.has_value());
    BOOST_TEST(welcome->address == "10.0.0.1");
    BOOST_TEST(welcome->ways == 3);
    BOOST_TEST(!welcome->ucx_anywhere);
    BOOST_TEST(welcome->streams == 7);
    BOOST_TEST(welcome->bytes_per_second == 1u << 20);
    BOOST_TEST(!mover.ready());
    BOOST_TEST(mover.port() == 0);
    BOOST_TEST(mover.text().empty());
    be_ready();
    BOOST_TEST(mover.ready());
    BOOST_TEST(changes == 1);
    BOOST_TEST(mover.port() == 4123);
    BOOST_TEST(mover.ways() == 1);
    auto status = mover.status();
    BOOST_TEST(status->ready);
    BOOST_TEST(status->address == "10.0.0.1");
    BOOST_TEST(status->port == 4123);
    BOOST_TEST(status->text == "no RDMA network is up here");
}

BOOST_AUTO_TEST_CASE(the_administrator_says_where_ucx_is_used) {
    settings.transfer.ucx = UseUcx::never;
    be_ready(4123, 3);
    BOOST_TEST(pushed<local::MoverWelcomeT>()->ways == 1);
    BOOST_TEST(mover.ways() == 1);  // whatever it says
    settings.transfer.ucx = UseUcx::always;
    be_ready(4123, 3);
    auto welcome = pushed<local::MoverWelcomeT>();
    BOOST_TEST(welcome->ways == 3);
    BOOST_TEST(welcome->ucx_anywhere);
    BOOST_TEST(mover.ways() == 3);
}

BOOST_AUTO_TEST_CASE(an_object_is_received) {
    be_ready();
    auto order = receive();
    BOOST_TEST(order != 0);
    auto expect = pushed<local::ExpectObjectT>();
    BOOST_REQUIRE(expect.has_value());
    BOOST_TEST(expect->order == order);
    BOOST_TEST(expect->transfer == 77);
    BOOST_TEST(expect->key.size() == 32);
    BOOST_TEST(expect->from == "10.0.0.2");
    BOOST_TEST(expect->checkpoint->train_step == 5);
    BOOST_TEST(expect->checkpoint->world_size == 2);
    BOOST_TEST(expect->checkpoint->generation->number() == 4);
    BOOST_TEST(expect->rank == 1);
    BOOST_REQUIRE(expect->segments.size() == 2);
    BOOST_TEST(expect->segments[1]->bytes == 4096);
    BOOST_TEST(expect->segments[1]->fd);
    BOOST_TEST(expect->data_bytes == 100);
    BOOST_TEST(expect->table_offset == 128);
    BOOST_TEST(expect->table_bytes == 50);
    BOOST_TEST(expect->table_xxh3 == 9);
    BOOST_TEST(expect->wait_ms == 5000);
    BOOST_TEST(told.events.empty());
    answer<local::ExpectingObjectT>(order, true);
    BOOST_TEST(told.is({{"expecting", ok}}));
    answer<local::ObjectArrivedT>(order, true);
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", ok}}));
    loop.advance(1h);
    BOOST_TEST(told.events.size() == 2);
    BOOST_TEST(!pushed<local::CancelOrderT>().has_value());
}

BOOST_AUTO_TEST_CASE(an_object_is_sent) {
    be_ready();
    auto order = send();
    auto message = pushed<local::SendObjectT>();
    BOOST_REQUIRE(message.has_value());
    BOOST_TEST(message->order == order);
    BOOST_TEST(message->transfer == 77);
    BOOST_TEST(message->key.size() == 32);
    BOOST_TEST(message->segments.size() == 1);
    BOOST_TEST(message->bytes == 178);
    BOOST_TEST(message->address == "10.0.0.2");
    BOOST_TEST(message->port == 4124);
    BOOST_TEST(message->way == 1);
    BOOST_TEST(message->wait_ms == 5000);
    local::ObjectSentT sent;
    sent.order = order;
    sent.ok = sent.retry = true;
    say(std::move(sent));
    BOOST_TEST(told.is({{"sent", ok}}));
    BOOST_TEST(!told.retry);
    told = {};
    local::ObjectSentT wrong;
    wrong.order = send();
    wrong.damaged = true;
    say(std::move(wrong));
    BOOST_TEST(told.is({{"sent", Code::corrupt}}));
}

BOOST_AUTO_TEST_CASE(what_the_mover_could_not_do_is_told_with_its_reason) {
    be_ready();
    auto refused = receive(), failed = receive();
    BOOST_TEST(failed > refused);
    answer<local::ExpectingObjectT>(refused, false, "no such segment");
    BOOST_TEST(told.is({{"expecting", away}}));
    BOOST_TEST(told.text == "no such segment");
    answer<local::ExpectingObjectT>(failed, true);
    answer<local::ObjectArrivedT>(failed, false, std::string(5000, 'x'));
    BOOST_TEST(told.is({{"expecting", away}, {"expecting", ok}, {"arrived", away}}));
    BOOST_TEST(told.text.size() == 1024);
    client = another();
    mover.on_hello(client, 1);
    local::MoverReadyT ready;
    ready.text = std::string(5000, 'x');
    say(std::move(ready));
    BOOST_TEST(mover.text().size() == 1024);
    BOOST_TEST(mover.status()->text.size() == 1024);
    be_ready();
    told = {};
    local::ObjectSentT sent;
    sent.order = send();
    sent.retry = true;
    say(std::move(sent));
    BOOST_TEST(told.is({{"sent", away}}));
    BOOST_TEST(told.retry);
    BOOST_TEST(!told.text.empty());
}

BOOST_AUTO_TEST_CASE(without_a_mover_nothing_is_moved) {
    receive();
    send();
    BOOST_TEST(told.events.empty());  // never from inside a call
    loop.advance();
    BOOST_TEST(told.is({{"expecting", away}, {"sent", away}}));
    told = {};
    be_ready(0, 0);
    BOOST_TEST(mover.ready());
    receive();
    loop.advance();
    BOOST_TEST(told.is({{"expecting", away}}));
    BOOST_TEST(told.text.find("no RDMA network") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_mover_that_dies_ends_what_is_open) {
    be_ready();
    auto order = receive();
    answer<local::ExpectingObjectT>(order, true);
    receive();
    send();
    mover.on_gone(another().id);  // somebody else
    BOOST_TEST(mover.is_mover(client.id));
    mover.on_gone(client.id);
    BOOST_TEST(!mover.is_mover(client.id));
    BOOST_TEST(!mover.ready());
    BOOST_TEST(told.events.size() == 1);
    loop.advance();
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", away}, {"expecting", away}, {"sent", away}}));
    BOOST_TEST(told.retry);
    BOOST_TEST(changes == 2);
    mover.cancel(order);
    loop.advance(1h);
    BOOST_TEST(told.events.size() == 4);
}

BOOST_AUTO_TEST_CASE(the_second_mover_is_the_one) {
    be_ready();
    Client old = client;
    auto order = send();
    client = another();
    be_ready(5000);
    BOOST_TEST(port.killed.contains(old.id));
    BOOST_TEST(!port.closed.contains(old.id), "its end is to be heard of");
    BOOST_TEST(told.events.empty());
    mover.on_gone(old.id);
    loop.advance();
    BOOST_TEST(told.is({{"sent", away}}));
    BOOST_TEST(mover.port() == 5000);
    auto next = send();
    BOOST_TEST(next > order);
    std::swap(client, old);
    BOOST_TEST(answer<local::ObjectSentT>(next, true));  // of the old one: it is nobody's
    be_ready_again_does_nothing();
    mover.on_gone(client.id);
    std::swap(client, old);
    BOOST_TEST(mover.ready());
    BOOST_TEST(told.events.size() == 1);
    answer<local::ObjectSentT>(next, true);
    BOOST_TEST(told.is({{"sent", away}, {"sent", ok}}));
}

BOOST_AUTO_TEST_CASE(words_that_can_not_be_are_not_believed) {
    be_ready();
    be_ready_again_does_nothing();
    auto in = receive(), out = send();
    for (auto order : {GroupMover::Order(0), out + 1, UINT64_MAX}) {
        answer<local::ExpectingObjectT>(order, true);
        answer<local::ObjectArrivedT>(order, true);
        answer<local::ObjectSentT>(order, true);
    }
    answer<local::ExpectingObjectT>(out, false);
    answer<local::ObjectArrivedT>(out, true);
    answer<local::ObjectSentT>(in, true);
    BOOST_TEST(told.events.empty());
    answer<local::ExpectingObjectT>(in, true);
    answer<local::ExpectingObjectT>(in, false);
    BOOST_TEST(told.is({{"expecting", ok}}));
    answer<local::ObjectArrivedT>(in, true);
    answer<local::ObjectArrivedT>(in, false);
    answer<local::ExpectingObjectT>(in, true);
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", ok}}));
    BOOST_TEST(!say(local::RestoreT{}));
    BOOST_TEST(!say(local::ObjectStoredT{}));
}

BOOST_AUTO_TEST_CASE(what_arrived_before_it_was_expected_did_not_arrive) {
    be_ready();
    auto order = receive();
    answer<local::ObjectArrivedT>(order, true);
    BOOST_TEST(told.is({{"expecting", away}}));
    answer<local::ExpectingObjectT>(order, true);
    BOOST_TEST(told.events.size() == 1);
}

BOOST_AUTO_TEST_CASE(a_mover_that_does_not_answer_is_killed_and_keeps_its_memory_until_it_is_gone) {
    be_ready();
    auto order = receive();
    answer<local::ExpectingObjectT>(order, true);
    send();
    loop.advance(14s);
    BOOST_TEST(port.killed.empty());
    loop.advance(1s);
    BOOST_TEST(port.killed.contains(client.id));
    BOOST_TEST(!mover.ready(), "it gets no more");
    BOOST_TEST(ended == std::vector{true});
    BOOST_TEST(told.is({{"expecting", ok}}));
    loop.advance(1h);
    BOOST_TEST(told.is({{"expecting", ok}}));
    mover.on_gone(client.id);
    loop.advance();
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", away}, {"sent", away}}));
    BOOST_TEST(told.retry);
    BOOST_TEST(ended.size() == 1u);
}

/// Long before an order's own time is over, which a large object has much of.
BOOST_AUTO_TEST_CASE(a_mover_that_stands_still_is_killed) {
    be_ready(4123, 1, true);
    auto order = receive(1h);
    auto call = pushed<local::CallMoverT>();
    BOOST_REQUIRE(call.has_value());
    answer<local::ExpectingObjectT>(order, true);
    loop.advance(29s);
    BOOST_TEST(!pushed<local::CallMoverT>().has_value(), "until it has answered");
    BOOST_TEST(port.killed.empty());
    BOOST_TEST(mover.is_worked_on(order));
    loop.advance(2s);
    BOOST_TEST(port.killed.contains(client.id));
    BOOST_TEST(ended == std::vector{true});
    BOOST_TEST(!mover.is_worked_on(order), "what waits for it need not");
    mover.on_gone(client.id);
    loop.advance();
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", away}}));
}

/// As by scontrol suspend, or in a partition whose jobs take turns.
BOOST_AUTO_TEST_CASE(a_mover_of_a_step_that_is_suspended_is_waited_for) {
    be_ready(4123, 1, true);
    auto order = receive(24h);
    answer<local::ExpectingObjectT>(order, true);
    port.suspended = true;
    loop.advance(1h);
    BOOST_TEST(port.killed.empty());
    port.suspended = false;
    loop.advance(10s);
    BOOST_TEST(port.killed.empty(), "it gets its time again");
    loop.advance(30s);
    BOOST_TEST(port.killed.contains(client.id));
}

BOOST_AUTO_TEST_CASE(a_mover_that_answers_may_take_its_time) {
    be_ready(4123, 1, true);
    BOOST_TEST(!pushed<local::CallMoverT>().has_value(), "it has nothing to do");
    auto order = receive(1h);
    answer<local::ExpectingObjectT>(order, true);
    for (int i = 0; i < 100; ++i) {
        auto call = pushed<local::CallMoverT>();
        BOOST_REQUIRE(call.has_value());
        loop.advance(500ms);
        local::MoverAnswerT word;
        word.order = call->order;
        BOOST_TEST(say(std::move(word)));
        loop.advance(500ms);
    }
    BOOST_TEST(port.killed.empty());
    answer<local::ObjectArrivedT>(order, true);
    loop.advance(1s);
    (void)pushed<local::CallMoverT>();
    loop.advance(1min);
    BOOST_TEST(!pushed<local::CallMoverT>().has_value());
    BOOST_TEST(port.killed.empty());
    auto next = receive(1h);
    BOOST_TEST(pushed<local::CallMoverT>().has_value(), "it has something to do again");
    BOOST_TEST(mover.is_worked_on(next));
}

/// Those of the version before know no calls.
BOOST_AUTO_TEST_CASE(a_mover_that_knows_no_calls_is_not_called) {
    be_ready();
    auto order = receive(1h);
    answer<local::ExpectingObjectT>(order, true);
    loop.advance(30min);
    BOOST_TEST(!pushed<local::CallMoverT>().has_value());
    BOOST_TEST(port.killed.empty());
}

BOOST_AUTO_TEST_CASE(a_mover_that_can_not_be_killed_keeps_its_memory_and_may_still_answer) {
    port.may_kill = false;
    be_ready();
    auto order = receive(), other = receive();
    answer<local::ExpectingObjectT>(order, true);
    loop.advance(15s);
    BOOST_TEST(ended == std::vector{false});
    Client hung = client;
    client = another();
    be_ready(5000);
    BOOST_TEST(mover.port() == 5000);
    auto next = send();
    std::swap(client, hung);
    answer<local::ObjectSentT>(next, true);  // not its own
    BOOST_TEST(told.is({{"expecting", ok}}));
    answer<local::ObjectArrivedT>(order, false, "too late");
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", away}}));
    mover.cancel(other);
    BOOST_TEST(cancelled(other));
    mover.on_gone(client.id);
    loop.advance();
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", away}, {"expecting", away}}));
    BOOST_TEST(mover.ready());
}

BOOST_AUTO_TEST_CASE(a_mover_whose_connection_is_cut_while_it_receives_is_killed) {
    be_ready();
    send();
    mover.on_gone(client.id);
    BOOST_TEST(port.killed.empty(), "it only reads");
    client = another();
    be_ready();
    receive();
    mover.on_gone(client.id);
    BOOST_TEST(port.killed.contains(client.id));
}

BOOST_AUTO_TEST_CASE(a_mover_that_connects_anew_has_forgotten_its_orders) {
    be_ready();
    receive();
    Client old = client;
    client.id = another().id;
    be_ready(5000);
    BOOST_TEST(port.closed.contains(old.id));
    BOOST_TEST(port.killed.empty());
    BOOST_TEST(told.is({{"expecting", away}}));
    BOOST_TEST(mover.port() == 5000);
}

BOOST_AUTO_TEST_CASE(an_order_is_cancelled_and_still_answered) {
    be_ready();
    auto in = receive(), out = send();
    answer<local::ExpectingObjectT>(in, true);
    mover.cancel(in);
    BOOST_TEST(cancelled(in));
    mover.cancel(out);
    BOOST_TEST(cancelled(out));
    mover.cancel(out + 1);
    BOOST_TEST(!pushed<local::CancelOrderT>().has_value());
    loop.advance(9s);
    BOOST_TEST(told.events.size() == 1);
    answer<local::ObjectArrivedT>(in, false, "the order was cancelled");
    BOOST_TEST(told.is({{"expecting", ok}, {"arrived", away}}));
    loop.advance(1s);  // sooner than without
    BOOST_TEST(port.killed.contains(client.id));
}

BOOST_AUTO_TEST_CASE(there_are_so_many_orders_and_no_more) {
    be_ready();
    auto first = send();
    for (std::size_t i = 1; i < GroupMover::max_orders; ++i) receive();
    loop.advance();
    BOOST_TEST(told.events.empty());
    send();
    loop.advance();
    BOOST_TEST(told.is({{"sent", Code::resource_exhausted}}));
    BOOST_TEST(told.retry);
    receive();
    loop.advance();
    BOOST_TEST((told.events.back() == std::pair<std::string, Code>("expecting", Code::resource_exhausted)));
    answer<local::ObjectSentT>(first, true);
    told = {};
    send();
    loop.advance();
    BOOST_TEST(told.events.empty());
}

BOOST_AUTO_TEST_CASE(orders_that_can_not_be_are_not_given) {
    be_ready();
    for (auto [segments, key_bytes] : {std::pair(0u, 32u), std::pair(65u, 32u), std::pair(1u, 31u)}) {
        told = {};
        ObjectToSend out;
        ObjectToReceive in;
        out.segments.resize(segments);
        in.segments.resize(segments);
        out.key.resize(key_bytes);
        in.key.resize(key_bytes);
        mover.send(std::move(out), told.as_sent());
        mover.receive(std::move(in), told.as("expecting"), told.as_arrived());
        loop.advance();
        BOOST_TEST(told.is({{"sent", Code::invalid_argument}, {"expecting", Code::invalid_argument}}));
        BOOST_TEST(!told.retry);
    }
}

BOOST_AUTO_TEST_CASE(nothing_is_told_after_the_end) {
    auto own = std::make_unique<GroupMover>(GroupMover::Services{loop, port, settings}, "",
                                            GroupMover::Hooks{[this] { ++changes; }, {}});
    own->on_hello(client, 1);
    own->on_message(client, proto::make_local(0, local::MoverReadyT{}));
    ObjectToSend object;
    object.segments.resize(1);
    object.key.assign(32, 1);
    own->send(std::move(object), told.as_sent());
    own->on_gone(client.id);
    own.reset();
    loop.advance(1h);
    BOOST_TEST(told.events.empty());
    BOOST_TEST(changes == 0);
}

BOOST_AUTO_TEST_SUITE_END()

// ---- in a daemon ----

namespace {

struct Daemons : World {
    Node n1{*this, "n1"}, n2{*this, "n2"};

    void begin(const std::string &redundancy) {
        StepOf step;
        step.redundancy = redundancy;
        for (std::uint32_t i : {0, 1}) (i == 0 ? n1 : n2).register_step(i, step);
        loop.advance(100ms);
    }
    Client hello(std::uint32_t uid = alice, std::uint32_t job = 7) {
        auto client = n1.client(local::Role::Mover, uid);
        local::MoverHelloT hello;
        hello.job_id = job;
        n1.say(client, std::move(hello));
        return client;
    }
    std::optional<local::Refusal> refused(const Client &client) {
        auto failure = n1.port->take<local::FailureT>(client.id);
        return failure ? std::optional(failure->code) : std::nullopt;
    }
    std::unique_ptr<local::MoverStatusT> status() {
        auto reply = status_at(n1, alice, false);
        return std::move(reply.groups.at(0)->mover);
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_with_mover, Daemons)

BOOST_AUTO_TEST_CASE(a_step_with_copies_has_a_mover) {
    slurm.addresses["n1"] = "10.0.0.1";
    begin("partner:1");
    BOOST_REQUIRE(status());
    BOOST_TEST(!status()->ready);
    auto client = hello();
    auto welcome = n1.port->take<local::MoverWelcomeT>(client.id);
    BOOST_REQUIRE(welcome.has_value());
    BOOST_TEST(welcome->address == "10.0.0.1");
    local::MoverReadyT ready;
    ready.port = 4123;
    ready.ways = 1;
    n1.say(client, std::move(ready), 0);
    BOOST_TEST(status()->ready);
    BOOST_TEST(status()->port == 4123);
    BOOST_TEST(!refused(client).has_value());
    n1.say(client, local::RestoreT{});
    BOOST_TEST((refused(client) == local::Refusal::BadMessage));
    n1.daemon->on_closed(client);
    BOOST_TEST(!status()->ready);
}

BOOST_AUTO_TEST_CASE(a_name_is_no_address_to_listen_at) {
    slurm.addresses["n1"] = "node-one";
    begin("partner:1");
    auto welcome = n1.port->take<local::MoverWelcomeT>(hello().id);
    BOOST_REQUIRE(welcome.has_value());
    BOOST_TEST(welcome->address.empty());
}

BOOST_AUTO_TEST_CASE(it_tries_again_until_slurm_has_said_where_the_node_is) {
    slurm.addresses.erase("n1");
    begin("partner:1");
    BOOST_TEST((refused(hello()) == local::Refusal::NotReady));
}

BOOST_AUTO_TEST_CASE(only_a_step_with_copies_has_a_mover_and_only_its_user) {
    begin("single");
    BOOST_TEST(!status());
    BOOST_TEST((refused(hello()) == local::Refusal::Stale));
    BOOST_TEST((refused(hello(bob)) == local::Refusal::NoSuchGroup));
    BOOST_TEST((refused(hello(alice, 8)) == local::Refusal::NoSuchGroup));
    auto silent = n1.client(local::Role::Mover, alice);
    n1.say(silent, local::MoverReadyT{}, 0);
    BOOST_TEST((refused(silent) == local::Refusal::BadMessage));
}

BOOST_AUTO_TEST_SUITE_END()
