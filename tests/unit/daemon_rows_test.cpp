// SPDX-License-Identifier: Apache-2.0
// One node's parities and what it makes of them again: each part is added once, or all begins anew.
#include <boost/test/unit_test.hpp>

#include "daemon/group_parity.h"
#include "tests/unit/daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

const GenerationId g1{Term(1), 1}, g2{Term(1), 2};
const CheckpointId five{g1, TrainStep(5)}, six{g1, TrainStep(6)};
const NodeIndex n0(0), n1(1), n2(2);

/// Node 2 of three keeps the parity of the row of ranks 0 and 1.
struct Rows {
    ManualLoop loop;
    test::FullKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{0};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    Arena arena{{loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false}};
    TestPort port;
    Settings settings;
    GroupMover mover{{loop, port, settings}, "10.0.0.1", {[] {}}};
    std::vector<std::pair<std::uint32_t, std::uint32_t>> asked;  ///< nodes and parts
    std::vector<std::pair<std::uint32_t, Code>> rebuilt;
    std::vector<Code> taken;
    int changed = 0;
    GroupParity parity{
        {loop, arena},
        {[this](NodeIndex from, Rank part, const CheckpointId &) {
             asked.emplace_back(from.value(), part.value());
         },
         [this] { ++changed; },
         [this](Rank rank, const Status &status) { rebuilt.emplace_back(rank.value(), status.code()); }}};
    Client client{1, alice, alice, 1001, local::Role::Mover};

    Rows() {
        connect();
        parity.use_mover(&mover);
        parity.on_world(part());
        parity.protect(five);
    }
    void connect() {
        mover.on_hello(client, 1);
        local::MoverReadyT ready;
        ready.port = 4123;
        ready.ways = 1;
        say(std::move(ready));
    }
    template <typename BodyT>
    void say(BodyT body) {
        mover.on_message(client, proto::make_local(0, std::move(body)));
        loop.advance();
    }
    static GroupParity::Part part(GenerationId id = g1) {
        GroupParity::Part part;
        part.self = n2;
        part.world.id = id;
        part.world.nodes = {n0, n1, n2};
        part.world.groups = {0, 0, 1};
        part.world.partners = {n2, n2, n0};
        part.nodes = {{1}, {1}, {1}};
        return part;
    }
    static MoveWord offer(std::uint32_t rank, std::uint64_t bytes, const CheckpointId &id = five) {
        MoveWord word;
        word.kind = MoveWord::Kind::Offer;
        word.id = id;
        word.rank = Rank(rank);
        word.world_size = 3;
        word.object.train_step = id.step.value();
        word.object.data_bytes = word.object.table_offset = bytes - 128;
        word.object.table_bytes = 128;
        word.object.ledger.assign(rank + 1, 7);
        return word;
    }
    static std::vector<ArenaSegment> somewhere() { return {{SegmentId(1), 1 << 20, {}}}; }
    void push(std::uint32_t rank, std::uint64_t bytes, const CheckpointId &id = five) {
        parity.take_push(offer(rank, bytes, id), somewhere(),
                         [this](const Status &status) { taken.push_back(status.code()); });
        loop.advance();
    }
    local::FoldObjectT order() {
        auto fold = port.take<local::FoldObjectT>(client.id);
        BOOST_REQUIRE(fold.has_value());
        return std::move(*fold);
    }
    bool idle() { return !port.take<local::FoldObjectT>(client.id).has_value(); }
    local::FoldObjectT fold(bool ok = true) {
        auto order_now = order();
        local::ObjectFoldedT answer;
        answer.order = order_now.order;
        answer.ok = ok;
        answer.xxh3 = 99;
        say(std::move(answer));
        return order_now;
    }
    GroupParity::Need need(std::uint32_t rank, const CheckpointId &id = five) const {
        return parity.need_of(Rank(rank), id);
    }
    void make_parity() {
        push(0, 1000);
        fold();
        push(1, 3000);
        fold();
    }
    bool codes(std::vector<Code> wanted) const { return taken == wanted; }
};

constexpr auto none = GroupParity::Need::none, open = GroupParity::Need::open, done = GroupParity::Need::done;

/// Rank 0's object is lost: it is made of the parity and of rank 1's object, which node 1 has.
struct Losing : Rows {
    Losing() {
        make_parity();
        begin(g2);
    }
    void begin(GenerationId id) {
        parity.stop();
        auto part_now = part(id);
        part_now.world.restore_step = five.step;
        part_now.world.restore_generation = g1;
        part_now.world.rebuilds = {{Rank(0), n2, {Rank(0), Rank(1)}, {{1, n1}, {2, n2}}}};
        arena.rewind(five, id);
        parity.on_world(part_now);
        loop.advance();
    }
    void bring_part() {
        parity.take_part(n1, offer(1, 3000), somewhere(),
                         [this](const Status &status) { taken.push_back(status.code()); });
        loop.advance();
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_rows, Rows)

BOOST_AUTO_TEST_CASE(a_parity_is_whole_when_every_object_is_in) {
    BOOST_TEST((need(0) == open));
    BOOST_TEST((need(2) == none));
    push(0, 1000);
    auto first = fold();
    BOOST_TEST(first.sum_bytes == 0u);
    BOOST_TEST(first.bytes == 1000u);
    BOOST_TEST(first.data == 2);
    BOOST_TEST(first.target == 2);
    BOOST_TEST(first.source == 0);
    BOOST_TEST(!first.last);
    BOOST_TEST((need(0) == done));
    BOOST_TEST((need(1) == open));
    BOOST_TEST(arena.parities().empty());
    push(1, 3000);
    auto second = fold();
    BOOST_TEST(second.sum_bytes == 1000u);
    BOOST_TEST(second.source == 1);
    BOOST_TEST(second.last);
    BOOST_TEST(codes({Code::ok, Code::ok}));
    BOOST_REQUIRE(arena.parities().size() == 1u);
    auto made = arena.parities().front();
    BOOST_TEST((made == elastic::Parity{five, 3, 0, {Rank(0), Rank(1)}}));
    BOOST_TEST(arena.parity_bytes() == 3000u);
    BOOST_TEST(arena.seals().empty());
    BOOST_TEST(changed > 0);
    BOOST_TEST((need(0) == done));
    BOOST_TEST((need(1) == done));
    auto known = arena.parity(parity_place(0, Rank(0)), five);
    BOOST_REQUIRE(known);
    BOOST_TEST(known->objects.at(1).ledger.size() == 2u);
}

BOOST_AUTO_TEST_CASE(nothing_is_added_twice) {
    push(0, 1000);
    push(0, 1000);
    fold();
    BOOST_TEST(idle());
    push(0, 1000);
    BOOST_TEST(idle());
    BOOST_TEST(codes({Code::stale, Code::ok, Code::stale}));
}

BOOST_AUTO_TEST_CASE(one_is_added_after_the_other) {
    push(1, 3000);
    push(0, 1000);
    auto first = order();
    BOOST_TEST(idle());
    local::ObjectFoldedT answer;
    answer.order = first.order;
    answer.ok = true;
    say(std::move(answer));
    BOOST_TEST(fold().sum_bytes == 3000u);
    BOOST_TEST(arena.parities().size() == 1u);
}

BOOST_AUTO_TEST_CASE(after_a_failure_the_sum_begins_at_zero) {
    push(0, 1000);
    fold();
    push(1, 3000);
    fold(false);
    BOOST_TEST(codes({Code::ok, Code::unavailable}));
    BOOST_TEST((need(0) == open));
    BOOST_TEST(arena.parities().empty());
    push(1, 3000);
    BOOST_TEST(fold().sum_bytes == 0u);
    push(0, 1000);
    BOOST_TEST(fold().last);
    BOOST_TEST(arena.parities().size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_new_world_and_another_step_begin_at_zero) {
    push(0, 1000);
    fold();
    parity.stop();
    BOOST_TEST((need(0) == none));
    parity.on_world(part(g2));
    parity.protect(five);
    BOOST_TEST((need(0) == open));
    push(0, 1000);
    fold();
    parity.protect(six);
    parity.protect(five);
    BOOST_TEST((need(0) == open));
}

BOOST_AUTO_TEST_CASE(what_is_being_added_keeps_its_memory_until_the_mover_lets_go) {
    push(0, 1000);
    auto late = order();
    push(1, 3000);
    parity.stop();
    loop.advance();
    BOOST_TEST(keeper.count("slot/") == 1u);
    BOOST_TEST(codes({Code::unavailable}));  // who waited
    parity.on_world(part(g2));
    parity.protect(five);
    local::ObjectFoldedT answer;
    answer.order = late.order;
    answer.ok = true;
    say(std::move(answer));
    BOOST_TEST(codes({Code::unavailable, Code::unavailable}));
    BOOST_TEST((need(0) == open));
    BOOST_TEST(keeper.count("slot/") == 0u);
}

BOOST_AUTO_TEST_CASE(a_sealed_parity_outlives_worlds_and_daemons) {
    make_parity();
    parity.stop();
    parity.on_world(part(g2));
    parity.protect(five);
    BOOST_TEST((need(0) == done));
    BOOST_TEST((need(1) == done));
    push(0, 1000);
    BOOST_TEST(idle());
    Arena next{{loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false}};
    for (auto &record : keeper.copy()) {
        auto name = parse_record_name(record.name);
        auto decoded = decode_record(record.value);
        BOOST_REQUIRE(decoded.ok());
        next.restore(*name, *decoded, std::move(record.fd));
    }
    next.finish_restore();
    BOOST_TEST((next.parities() == arena.parities()));
    BOOST_TEST((next.parity(parity_place(0, Rank(0)), five)->objects.size() == 2u));
}

BOOST_AUTO_TEST_CASE(a_row_of_another_world_takes_the_place_of_the_former) {
    make_parity();
    parity.stop();
    auto other = part(g2);
    other.world.groups = {0, 1, 2};
    other.world.partners = {n2, n0, n1};
    parity.on_world(other);
    parity.protect(five);
    BOOST_TEST((need(0) == open));
    push(0, 1000);
    fold();
    BOOST_TEST((need(0) == done));
    auto known = arena.parity(parity_place(0, Rank(0)), five);
    BOOST_REQUIRE(known != nullptr);
    BOOST_TEST((known->ranks == std::vector{Rank(0)}));
}

BOOST_AUTO_TEST_CASE(ledgers_that_do_not_fit_are_refused) {
    auto word = offer(0, 1000);
    word.object.ledger.assign(65536, 1);
    parity.take_push(word, somewhere(), [this](const Status &status) { taken.push_back(status.code()); });
    loop.advance();
    fold();
    word.rank = Rank(1);
    BOOST_TEST((parity.open(word).code() == Code::resource_exhausted), "before it travels");
    parity.take_push(word, somewhere(), [this](const Status &status) { taken.push_back(status.code()); });
    loop.advance();
    BOOST_TEST(codes({Code::ok, Code::resource_exhausted}));
}

BOOST_AUTO_TEST_CASE(a_row_has_its_memory_before_its_first_object_travels) {
    BOOST_TEST(parity.open(offer(0, 1000)).ok());
    BOOST_TEST(keeper.count("slot/") == 1u);
    BOOST_TEST(parity.open(offer(1, 3000)).ok());
    BOOST_TEST(keeper.count("slot/") == 1u);
    loop.advance();
    make_parity();
    BOOST_TEST((parity.open(offer(0, 1000)).code() == Code::stale));
    MoveWord other = offer(0, 1000, six);
    BOOST_TEST((parity.open(other).code() == Code::stale));
    parity.protect(six);
    BOOST_TEST((parity.open(offer(0, std::uint64_t{1} << 41, six)).code() == Code::resource_exhausted));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(a_world_on_record_has_its_groups_and_what_is_made_again) {
    elastic::World world = Rows::part().world;
    world.restore_step = TrainStep(5);
    world.restore_generation = g1;
    world.rebuilds = {{Rank(0), n2, {Rank(0), Rank(1)}, {{1, n1}, {2, n2}}}};
    auto bytes = encode_record(to_record(world));
    auto record = decode_record(bytes);
    BOOST_REQUIRE(record.ok());
    BOOST_REQUIRE(record->body.AsWorldRecord() != nullptr);
    BOOST_TEST((from_record(*record->body.AsWorldRecord()) == world));
}

BOOST_FIXTURE_TEST_SUITE(daemon_rows_lost, Losing)

BOOST_AUTO_TEST_CASE(an_object_is_made_of_the_parity_and_what_others_have) {
    BOOST_TEST(parity.rebuilds(Rank(0), five));
    auto own = fold();
    BOOST_TEST(own.sum_bytes == 0u);
    BOOST_TEST(own.bytes == 1000u);
    BOOST_TEST(own.target == 0);
    BOOST_TEST(own.source == 2);
    BOOST_TEST((own.given == std::vector<std::uint16_t>{2, 1}));
    BOOST_TEST(!own.last);
    BOOST_TEST((asked == decltype(asked){{1, 1}}));
    BOOST_TEST(parity.asks_for(n1, Rank(1), five));
    BOOST_TEST(!parity.asks_for(n0, Rank(1), five));
    BOOST_TEST(!parity.asks_for(n1, Rank(1), six));
    bring_part();
    auto other = fold();
    BOOST_TEST(other.sum_bytes == 1000u);
    BOOST_TEST(other.bytes == 1000u);  // of 3000
    BOOST_TEST(other.source == 1);
    BOOST_TEST(other.last);
    BOOST_REQUIRE(other.checkpoint);
    BOOST_TEST(other.data_bytes == 872u);
    BOOST_TEST((rebuilt == decltype(rebuilt){{0, Code::ok}}));
    BOOST_TEST(arena.holds(Rank(0), five));
    BOOST_TEST(arena.world_size(Rank(0), five) == 3u);
    BOOST_TEST(arena.begin_read(Rank(0), five)->seal.ledger.size() == 1u);
    BOOST_TEST(!parity.rebuilds());
}

BOOST_AUTO_TEST_CASE(a_mover_that_fails_once_begins_it_anew) {
    fold();
    bring_part();
    fold(false);
    loop.advance(1s);
    parity.tick();
    loop.advance();
    BOOST_TEST(fold().sum_bytes == 0u);
    bring_part();
    fold();
    BOOST_TEST((rebuilt == decltype(rebuilt){{0, Code::ok}}));
    BOOST_TEST(arena.parities().size() == 1u);
}

BOOST_AUTO_TEST_CASE(parts_that_do_not_give_the_object_cost_the_parity) {
    for (int attempt = 0; attempt < 2; ++attempt) {
        fold();
        bring_part();
        fold(false);
        loop.advance(1s);
        parity.tick();
        loop.advance();
    }
    BOOST_TEST((rebuilt == decltype(rebuilt){{0, Code::unavailable}}));
    BOOST_TEST(arena.parities().empty());
    BOOST_TEST(!arena.holds(Rank(0), five));
    BOOST_TEST(!parity.rebuilds());
}

BOOST_AUTO_TEST_CASE(a_part_that_does_not_come_ends_it) {
    fold();
    for (int i = 0; i < 29; ++i) {
        loop.advance(1s);
        parity.tick();
    }
    BOOST_TEST(rebuilt.empty());
    BOOST_TEST(asked.size() > 20u);
    parity.on_part_waits(n1, Rank(1));
    loop.advance(20s);
    parity.tick();
    BOOST_TEST(rebuilt.empty());
    loop.advance(11s);
    parity.tick();
    loop.advance();
    BOOST_TEST((rebuilt == decltype(rebuilt){{0, Code::unavailable}}));
    BOOST_TEST(arena.parities().size() == 1u);
}

/// The other node offers it again each time: that is no success.
BOOST_AUTO_TEST_CASE(a_part_that_fails_each_time_ends_it) {
    fold();
    for (int i = 0; i < 5; ++i) {
        BOOST_TEST(rebuilt.empty());
        loop.advance(10s);
        parity.tick();
        parity.on_part_waits(n1, Rank(1));
        parity.on_part_failed(n1, Rank(1), "its checksum differs");
    }
    loop.advance();
    BOOST_TEST((rebuilt == decltype(rebuilt){{0, Code::unavailable}}));
}

BOOST_AUTO_TEST_CASE(the_next_world_tries_again) {
    fold();
    bring_part();
    auto late = order();
    begin(GenerationId{Term(1), 3});
    auto own = order();  // into another slot
    BOOST_TEST(own.sum_bytes == 0u);
    BOOST_TEST(own.into.at(0)->id != late.into.at(0)->id);
    local::ObjectFoldedT answer;
    answer.order = late.order;
    answer.ok = true;
    say(local::ObjectFoldedT(answer));
    BOOST_TEST(rebuilt.empty());
    BOOST_TEST(!arena.holds(Rank(0), five));
    answer.order = own.order;
    say(std::move(answer));
    bring_part();
    fold();
    BOOST_TEST((rebuilt == decltype(rebuilt){{0, Code::ok}}));
}

BOOST_AUTO_TEST_SUITE_END()
