// SPDX-License-Identifier: Apache-2.0
// Real dlrover-movers of two nodes, under daemons that do as the test says.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "ckpt/checksum.h"
#include "helper_process.h"
#include "memory_object.h"
#include "transport/bulk_ucx.h"
#include "transport/bulk_wire.h"

using namespace dlrover;
using namespace dlrover::test;

namespace {

constexpr std::uint16_t tcp = 1, ucx = 2;
constexpr std::uint32_t long_ms = 60000;

class MoverNode : public HelperNode {
  public:
    explicit MoverNode(std::uint16_t ways = tcp) : HelperNode(TEST_MOVER, local::Role::Mover) {
        welcome_.address = "127.0.0.1";
        welcome_.ways = ways;
        welcome_.ucx_anywhere = true;
        welcome_.streams = 2;
    }
    local::MoverWelcomeT &settings() { return welcome_; }
    local::MoverReadyT ready;
    std::string sender = "127.0.0.1";  ///< that is listened to

    std::uint64_t expect(const MemoryObject &object, const MemoryObject &memory, std::uint32_t rank,
                         std::uint32_t wait_ms = long_ms, bool parity = false,
                         const std::map<std::uint32_t, const MemoryObject *> &own = {}) {
        auto stored = object.order(checkpoint(10), 2, rank);
        local::ExpectObjectT order;
        order.parity = parity;
        order.order = next_order++;
        order.transfer = 100 + order.order;
        order.key.assign(32, static_cast<std::uint8_t>(order.order));
        order.from = sender;
        order.checkpoint = std::move(stored.checkpoint);
        order.rank = rank;
        order.segments = std::move(stored.segments);
        order.data_bytes = object.data_bytes;
        order.table_offset = object.table_offset;
        order.table_bytes = object.table_bytes;
        order.table_xxh3 = object.table_xxh3;
        order.wait_ms = wait_ms;
        std::uint64_t number = order.order;
        std::vector<int> fds = {memory.memory.get()};
        for (const auto &[its_rank, lent] : own) {
            order.own.push_back(lend(*lent, its_rank));
            fds.push_back(lent->memory.get());
        }
        push(proto::make_local(0, std::move(order)), fds);
        return number;
    }
    static std::unique_ptr<local::OwnObjectT> lend(const MemoryObject &object, std::uint32_t rank) {
        auto own = std::make_unique<local::OwnObjectT>();
        own->rank = rank;
        own->segments = object.order(checkpoint(10), 2, rank).segments;
        own->data_bytes = object.data_bytes;
        own->table_offset = object.table_offset;
        own->table_bytes = object.table_bytes;
        own->table_xxh3 = object.table_xxh3;
        return own;
    }
    local::ExpectingObjectT expecting(std::uint64_t order) {
        auto answer = *wait_for(local::Body::ExpectingObject).body.AsExpectingObject();
        BOOST_TEST(answer.order == order);
        return answer;
    }
    local::ObjectArrivedT arrived(std::uint64_t order) {
        auto answer = *wait_for(local::Body::ObjectArrived).body.AsObjectArrived();
        BOOST_TEST(answer.order == order);
        return answer;
    }
    /// As the other node's order `as` says.
    std::uint64_t send(const MemoryObject &object, const MoverNode &to, std::uint64_t as,
                       std::uint16_t way = tcp, std::uint32_t wait_ms = long_ms,
                       const std::function<void(local::SendObjectT &)> &change = {}) {
        UniqueFd fd(
            ::open(("/proc/self/fd/" + std::to_string(object.memory.get())).c_str(), O_RDONLY | O_CLOEXEC));
        local::SendObjectT order;
        order.order = next_order++;
        order.transfer = 100 + as;
        order.key.assign(32, static_cast<std::uint8_t>(as));
        order.segments = object.order(checkpoint(10), 2, 0).segments;
        order.bytes = object.table_offset + object.table_bytes;
        order.address = "127.0.0.1";
        order.port = to.ready.port;
        order.way = way;
        order.wait_ms = wait_ms;
        if (change) change(order);
        std::uint64_t number = order.order;
        push(proto::make_local(0, std::move(order)), {fd.get()});
        return number;
    }
    local::ObjectSentT sent(std::uint64_t order) {
        auto answer = *wait_for(local::Body::ObjectSent).body.AsObjectSent();
        BOOST_TEST(answer.order == order);
        return answer;
    }

    /// An order to add `from`, part `source` of rs:2+m, to `into`; `change`: more of it.
    local::ObjectFoldedT fold(const MemoryObject &into, const MemoryObject &from, std::uint64_t sum_bytes,
                              std::uint16_t target, std::uint16_t source,
                              const std::function<void(local::FoldObjectT &)> &change = {}) {
        local::FoldObjectT order;
        order.order = next_order++;
        order.into = into.order(checkpoint(10), 2, 0).segments;
        order.from = from.order(checkpoint(10), 2, 0).segments;
        order.sum_bytes = sum_bytes;
        order.bytes = from.table_offset + from.table_bytes;
        order.data = 2;
        order.target = target;
        order.source = source;
        order.wait_ms = long_ms;
        if (change) change(order);
        std::uint64_t number = order.order;
        push(proto::make_local(0, std::move(order)), {into.memory.get(), from.memory.get()});
        auto answer = *wait_for(local::Body::ObjectFolded).body.AsObjectFolded();
        BOOST_TEST(answer.order == number);
        return answer;
    }

    local::NodeMeasuredT measure(const MemoryObject &into, std::uint64_t bytes, bool work,
                                 std::uint32_t wait_ms = long_ms) {
        std::uint64_t number = order_measure(into, bytes, work, wait_ms);
        auto answer = *wait_for(local::Body::NodeMeasured).body.AsNodeMeasured();
        BOOST_TEST(answer.order == number);
        return answer;
    }

    std::uint64_t order_measure(const MemoryObject &into, std::uint64_t bytes, bool work,
                                std::uint32_t wait_ms = long_ms) {
        local::MeasureNodeT order;
        order.order = next_order++;
        order.segments = into.order(checkpoint(10), 2, 0).segments;
        order.bytes = bytes;
        order.work = work;
        order.wait_ms = wait_ms;
        std::uint64_t number = order.order;
        push(proto::make_local(0, std::move(order)), {into.memory.get()});
        return number;
    }

  private:
    void welcome() override {
        auto hello = greeting(local::Body::MoverHello);
        BOOST_TEST(hello.body.AsMoverHello()->job_id == job);
        BOOST_TEST(hello.body.AsMoverHello()->step_id == step);
        answer(hello.id, proto::make_local(0, local::MoverWelcomeT(welcome_)));
        ready = *greeting(local::Body::MoverReady).body.AsMoverReady();
    }
    local::MoverWelcomeT welcome_;
};

/// As much memory as `object` has, and nothing in it.
MemoryObject room_for(const MemoryObject &object) {
    MemoryObject room = make_object(10, 0, 2);
    room.bytes = object.bytes;
    room.memory.reset(::memfd_create("room", MFD_CLOEXEC));
    BOOST_REQUIRE(::ftruncate(room.memory.get(), static_cast<off_t>(object.bytes)) == 0);
    return room;
}

std::vector<std::byte> content(const MemoryObject &object, std::uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    BOOST_REQUIRE(::pread(object.memory.get(), out.data(), bytes, 0) == static_cast<ssize_t>(bytes));
    return out;
}

bool same(const MemoryObject &a, const MemoryObject &b) {
    std::uint64_t bytes = a.table_offset + a.table_bytes;
    return content(a, bytes) == content(b, bytes);
}

/// Until its first bytes are there.
void wait_for_start(const MemoryObject &room) {
    auto empty = [](std::byte b) { return b == std::byte{0}; };
    for (int i = 0; i < 60000; ++i, ::usleep(1000)) {
        auto start = content(room, 4096);
        if (!std::all_of(start.begin(), start.end(), empty)) return;
    }
    BOOST_FAIL("nothing has come in a minute");
}

constexpr std::uint64_t replica_bytes = 12'000'000;

/// What each rank of data parallelism saves: its own value, then the parameters.
MemoryObject replica(std::uint32_t rank) {
    std::vector<std::byte> weights(replica_bytes);
    for (std::uint64_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::byte>(i * i >> 7);
    ckpt::test::Maker maker(rank, 2, 10);
    maker.add("own", ckpt::DType::Int64, {3 + 50 * rank})
        .put("w", ckpt::DType::UInt8, {replica_bytes}, {0}, {replica_bytes}, rank, weights);
    return MemoryObject(maker.object());
}

/// What the sender has to find in its memory.
void name(local::SendObjectT &order, const MemoryObject &object, std::uint32_t rank) {
    order.checkpoint = object.order(checkpoint(10), 2, rank).checkpoint;
    order.rank = rank;
    order.data_bytes = object.data_bytes;
    order.table_offset = object.table_offset;
    order.table_bytes = object.table_bytes;
    order.table_xxh3 = object.table_xxh3;
}

struct Two {
    explicit Two(std::uint16_t ways = tcp) : a(ways), b(ways) {}
    MoverNode a, b;
    MemoryObject object = make_object(10, 1, 2, 3'000'000);  // 12 MB
    MemoryObject room = room_for(object);

    void start() {
        a.start();
        b.start();
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(mover, Two)

BOOST_AUTO_TEST_CASE(an_object_is_moved_to_another_node) {
    start();
    BOOST_TEST(a.ready.ways == tcp);
    BOOST_TEST(a.ready.port != 0);
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sent = a.sent(a.send(object, b, order));
    BOOST_TEST(sent.ok, sent.text);
    auto arrived = b.arrived(order);
    BOOST_TEST(arrived.ok, arrived.text);
    BOOST_TEST(arrived.time_us > 0);
    BOOST_TEST(same(object, room));
}

BOOST_AUTO_TEST_CASE(what_ranks_of_both_nodes_saved_alike_is_not_sent) {
    start();
    BOOST_TEST(a.ready.takes_own);
    MemoryObject mine = replica(0), theirs = replica(1), unlike = make_object(10, 0, 2);
    MemoryObject place = room_for(theirs);
    auto order = b.expect(theirs, place, 1, long_ms, false, {{0, &mine}, {9, &unlike}});
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sent = a.sent(a.send(theirs, b, order, tcp, long_ms, [&](auto &o) { name(o, theirs, 1); }));
    BOOST_TEST(sent.ok, sent.text);
    auto arrived = b.arrived(order);
    BOOST_TEST(arrived.ok, arrived.text);
    BOOST_TEST(same(theirs, place));
    BOOST_TEST(arrived.spared_bytes >= replica_bytes - 2 * transport::bulk_block_bytes);
    BOOST_TEST(arrived.spared_bytes <= replica_bytes);
}

BOOST_AUTO_TEST_CASE(what_is_damaged_here_is_not_taken_for_what_was_not_sent) {
    start();
    MemoryObject mine = replica(0), theirs = replica(1), place = room_for(theirs);
    mine.flip(1'000'000);
    auto order = b.expect(theirs, place, 1, long_ms, false, {{0, &mine}});
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sent = a.sent(a.send(theirs, b, order, tcp, long_ms, [&](auto &o) { name(o, theirs, 1); }));
    BOOST_TEST(!sent.ok);
    BOOST_TEST(!sent.damaged, "the sender's is whole");
    auto arrived = b.arrived(order);
    BOOST_TEST(!arrived.ok);
    BOOST_TEST(arrived.text.find("does not match its checksum") != std::string::npos, arrived.text);
    order = b.expect(theirs, place, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    BOOST_TEST(a.sent(a.send(theirs, b, order)).ok);
    BOOST_TEST(b.arrived(order).spared_bytes == 0u);
    BOOST_TEST(same(theirs, place));
}

BOOST_AUTO_TEST_CASE(only_who_is_announced_is_listened_to) {
    start();
    b.sender = "127.0.0.2";
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sent = a.sent(a.send(object, b, order));
    BOOST_TEST(!sent.ok);
    BOOST_TEST(sent.retry);
    b.push_cancel(order);
    BOOST_TEST(!b.arrived(order).ok);
    b.sender = "localhost";  // a name will do
    order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    BOOST_TEST(a.sent(a.send(object, b, order)).ok);
    BOOST_TEST(b.arrived(order).ok);
}

BOOST_AUTO_TEST_CASE(both_ways_at_once_and_many) {
    start();
    std::vector<MemoryObject> rooms;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> orders;
    for (int i = 0; i < 8; ++i) {
        rooms.push_back(room_for(object));
        MoverNode &to = i % 2 == 0 ? b : a, &from = i % 2 == 0 ? a : b;
        auto expected = to.expect(object, rooms.back(), 1);
        BOOST_REQUIRE(to.expecting(expected).ok);
        orders.emplace_back(expected, from.send(object, to, expected));
    }
    for (int i = 0; i < 8; ++i) {
        MoverNode &to = i % 2 == 0 ? b : a, &from = i % 2 == 0 ? a : b;
        BOOST_TEST(from.sent(orders[static_cast<std::size_t>(i)].second).ok);
        BOOST_TEST(to.wait_for(local::Body::ObjectArrived).body.AsObjectArrived()->ok);
        BOOST_TEST(same(object, rooms[static_cast<std::size_t>(i)]));
    }
}

BOOST_AUTO_TEST_CASE(another_object_than_announced_is_found_by_the_receiver) {
    start();
    auto order = b.expect(object, room, 0);  // it is rank 1's
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sent = a.sent(a.send(object, b, order));
    BOOST_TEST(!sent.ok);
    BOOST_TEST(!sent.retry);
    BOOST_TEST(sent.text == "another object arrived: it is of rank 1");
    auto arrived = b.arrived(order);
    BOOST_TEST(!arrived.ok);
    BOOST_TEST(arrived.text == sent.text);
}

BOOST_AUTO_TEST_CASE(a_table_that_has_changed_is_found) {
    start();
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    object.flip(object.table_offset + 20);
    BOOST_TEST(!a.sent(a.send(object, b, order)).ok);
    BOOST_TEST(!b.arrived(order).ok);
}

BOOST_AUTO_TEST_CASE(bytes_that_were_damaged_before_they_were_sent_are_found_and_owned_to) {
    start();
    auto as_rank = [&](std::uint32_t rank) {
        return [&, rank](local::SendObjectT &order) { name(order, object, rank); };
    };
    auto exchange = [&](std::uint32_t expected, const std::function<void(local::SendObjectT &)> &change) {
        auto order = b.expect(object, room, expected);
        BOOST_REQUIRE(b.expecting(order).ok);
        auto sent = a.sent(a.send(object, b, order, tcp, long_ms, change));
        BOOST_TEST(b.arrived(order).ok == sent.ok);
        return sent;
    };
    auto sent = exchange(1, as_rank(1));
    BOOST_TEST(sent.ok, sent.text);
    BOOST_TEST(!sent.damaged);
    sent = exchange(0, as_rank(1));  // the other side is wrong
    BOOST_TEST(!sent.ok);
    BOOST_TEST(!sent.damaged);
    object.flip(5'000'000);
    sent = exchange(1, {});
    BOOST_TEST(!sent.ok);
    BOOST_TEST(!sent.damaged, "nothing is known of it");
    BOOST_TEST(sent.text == "chunk \"w\" does not match its checksum");
    sent = exchange(1, as_rank(1));
    BOOST_TEST(!sent.ok);
    BOOST_TEST(sent.damaged);
    BOOST_TEST(!sent.retry);
    BOOST_TEST(sent.text == "it is damaged in this node's memory: chunk \"w\" does not match its checksum");
    object.flip(5'000'000);
    BOOST_TEST(exchange(1, as_rank(1)).ok, "whole again");
}

BOOST_AUTO_TEST_CASE(a_parity_that_was_damaged_before_it_was_sent_is_found) {
    start();
    auto parity = [&](local::SendObjectT &order) {
        order.checkpoint = object.order(checkpoint(10), 2, 0).checkpoint;
        order.parity = true;
        order.data_bytes = object.data_bytes;
        order.table_xxh3 = object.table_xxh3;
    };
    object.data_bytes = object.table_offset + object.table_bytes;
    object.table_offset = object.data_bytes;
    object.table_bytes = 0;
    object.table_xxh3 = ckpt::chunk_checksum(content(object, object.data_bytes));
    for (bool damaged : {false, true}) {
        if (damaged) object.flip(77);
        auto order = b.expect(object, room, 0, long_ms, true);
        BOOST_REQUIRE(b.expecting(order).ok);
        auto sent = a.sent(a.send(object, b, order, tcp, long_ms, parity));
        BOOST_TEST(sent.ok == !damaged, sent.text);
        BOOST_TEST(sent.damaged == damaged);
        BOOST_TEST(b.arrived(order).ok == !damaged);
    }
}

BOOST_AUTO_TEST_CASE(a_mover_that_is_killed_is_no_end) {
    start();
    a.settings().bytes_per_second = 4 << 20;
    a.stop_daemon();
    a.greet();  // with the new rate
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    a.send(object, b, order);
    wait_for_start(room);
    a.signal(SIGKILL);
    a.wait();
    BOOST_TEST(!b.arrived(order).ok);
    a.settings().bytes_per_second = 0;
    a.start();
    order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    BOOST_TEST(a.sent(a.send(object, b, order)).ok);
    BOOST_TEST(b.arrived(order).ok);
    BOOST_TEST(same(object, room));
}

BOOST_AUTO_TEST_CASE(a_receiver_that_is_killed_is_told_of) {
    start();
    a.settings().bytes_per_second = 4 << 20;
    a.stop_daemon();
    a.greet();
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sending = a.send(object, b, order);
    wait_for_start(room);
    b.signal(SIGKILL);
    auto sent = a.sent(sending);
    BOOST_TEST(!sent.ok);
    BOOST_TEST(sent.retry);
    b.wait();
}

BOOST_AUTO_TEST_CASE(an_order_can_be_cancelled_on_either_side) {
    start();
    a.settings().bytes_per_second = 4 << 20;
    a.stop_daemon();
    a.greet();
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sending = a.send(object, b, order), waiting = a.send(object, b, 77);
    wait_for_start(room);
    a.push_cancel(waiting);
    BOOST_TEST(!a.sent(waiting).ok);
    b.push_cancel(order);
    auto arrived = b.arrived(order);
    BOOST_TEST(!arrived.ok);
    BOOST_TEST(arrived.text == "the order was cancelled");
    auto before = content(room, object.bytes);
    BOOST_TEST(!a.sent(sending).ok);
    BOOST_TEST((content(room, object.bytes) == before));
    room = room_for(object);
    order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    sending = a.send(object, b, order);
    wait_for_start(room);
    a.push_cancel(sending);
    BOOST_TEST(!a.sent(sending).ok);
    BOOST_TEST(!b.arrived(order).ok);
}

BOOST_AUTO_TEST_CASE(nobody_sends) {
    start();
    auto order = b.expect(object, room, 1, 100);
    BOOST_REQUIRE(b.expecting(order).ok);
    auto arrived = b.arrived(order);
    BOOST_TEST(!arrived.ok);
    BOOST_TEST(arrived.text == "nobody sent it in time");
}

BOOST_AUTO_TEST_CASE(a_daemon_that_comes_back_finds_the_mover_without_orders) {
    start();
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    b.stop_daemon();
    b.greet();
    BOOST_TEST(!a.sent(a.send(object, b, order)).ok);
    order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    BOOST_TEST(a.sent(a.send(object, b, order)).ok);
    BOOST_TEST(b.arrived(order).ok);
}

BOOST_AUTO_TEST_CASE(orders_that_can_not_be_meant_are_refused) {
    start();
    auto refused = [&](auto change) {
        local::ExpectObjectT order;
        order.order = b.next_order++;
        order.key.assign(32, 1);
        order.from = "127.0.0.1";
        order.checkpoint = object.order(checkpoint(10), 2, 1).checkpoint;
        order.segments = object.order(checkpoint(10), 2, 1).segments;
        order.data_bytes = object.data_bytes;
        order.table_offset = object.table_offset;
        order.table_bytes = object.table_bytes;
        order.wait_ms = long_ms;
        std::vector<int> fds{room.memory.get()};
        change(order);
        std::uint64_t number = order.order;
        b.push(proto::make_local(0, std::move(order)), fds);
        auto answer = b.expecting(number);
        return !answer.ok && !answer.text.empty();
    };
    BOOST_TEST(refused([](auto &order) { order.key.resize(31); }));
    BOOST_TEST(refused([](auto &order) { order.from.clear(); }));
    BOOST_TEST(refused([](auto &order) { order.from = "not an address"; }));
    BOOST_TEST(refused([](auto &order) { order.checkpoint.reset(); }));
    BOOST_TEST(refused([](auto &order) { order.checkpoint->generation.reset(); }));
    BOOST_TEST(refused([](auto &order) { order.table_bytes = UINT64_MAX; }));
    BOOST_TEST(refused([](auto &order) { order.table_offset = order.segments[0]->bytes; }));
    BOOST_TEST(refused([](auto &order) { order.segments[0]->bytes *= 2; }));
}

namespace {

/// Two ranks' objects of different lengths, and memory with something in it for what is made of them.
struct Folding : Two {
    MemoryObject small = make_object(10, 0, 2, 1000);
    std::uint64_t small_bytes = small.table_offset + small.table_bytes;
    std::uint64_t bytes = object.table_offset + object.table_bytes;

    Folding() { a.start(); }
    MemoryObject dirty_room() {
        MemoryObject dirty = room_for(object);
        std::vector<char> noise(dirty.bytes, 'x');
        BOOST_REQUIRE(::pwrite(dirty.memory.get(), noise.data(), noise.size(), 0) ==
                      static_cast<ssize_t>(noise.size()));
        return dirty;
    }
    /// Of both objects, `small` first.
    MemoryObject parity(std::uint16_t target) {
        MemoryObject sum = dirty_room();
        auto first = a.fold(sum, small, 0, target, 0);
        BOOST_TEST(first.ok, first.text);
        auto second = a.fold(sum, object, small_bytes, target, 1, [](auto &o) { o.last = true; });
        BOOST_TEST(second.ok, second.text);
        BOOST_TEST(second.xxh3 == ckpt::chunk_checksum(content(sum, bytes)));
        sum.data_bytes = sum.table_offset = bytes;
        sum.table_bytes = 0;
        sum.table_xxh3 = second.xxh3;
        return sum;
    }
    static void is_object(local::FoldObjectT &order, const MemoryObject &object, std::uint32_t rank) {
        auto stored = object.order(checkpoint(10), 2, rank);
        order.last = true;
        order.given = {2, 3};
        order.checkpoint = std::move(stored.checkpoint);
        order.rank = rank;
        order.data_bytes = object.data_bytes;
        order.table_offset = object.table_offset;
        order.table_bytes = object.table_bytes;
        order.table_xxh3 = object.table_xxh3;
    }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(two_parities_give_both_objects, Folding) {
    MemoryObject p = parity(2), q = parity(3);
    for (std::uint16_t target : {0, 1}) {
        MemoryObject made = dirty_room();
        BOOST_TEST(a.fold(made, p, 0, target, 2, [](auto &o) { o.given = {2, 3}; }).ok);
        const MemoryObject &want = target == 0 ? small : object;
        auto last = a.fold(made, q, bytes, target, 3, [&](auto &o) { is_object(o, want, target); });
        BOOST_TEST(last.ok, last.text);
        std::uint64_t size = target == 0 ? small_bytes : bytes;
        BOOST_TEST((content(made, size) == content(want, size)));
    }
}

BOOST_FIXTURE_TEST_CASE(what_parts_of_different_sums_give_is_not_believed, Folding) {
    MemoryObject p = parity(2), q = parity(3);
    q.flip(5000);
    MemoryObject made = dirty_room();
    BOOST_TEST(a.fold(made, p, 0, 1, 2, [](auto &o) { o.given = {2, 3}; }).ok);
    auto last = a.fold(made, q, bytes, 1, 3, [&](auto &o) { is_object(o, object, 1); });
    BOOST_TEST(!last.ok);
    BOOST_TEST(last.text.starts_with("the parts did not give the object: "), last.text);
}

BOOST_FIXTURE_TEST_CASE(a_parity_is_moved_and_its_checksum_looked_at, Folding) {
    b.start();
    for (bool spoilt : {false, true}) {
        MemoryObject p = parity(2);
        auto order = b.expect(p, room, 1, long_ms, true);
        BOOST_REQUIRE(b.expecting(order).ok);
        if (spoilt) p.flip(5000);
        auto sent = a.sent(a.send(p, b, order));
        BOOST_TEST(sent.ok == !spoilt, sent.text);
        BOOST_TEST(b.arrived(order).ok == !spoilt);
    }
}

BOOST_FIXTURE_TEST_CASE(parts_that_can_not_be_are_refused, Folding) {
    auto refused = [&](const std::function<void(local::FoldObjectT &)> &change) {
        auto answer = a.fold(room, object, 0, 2, 1, change);
        return !answer.ok && !answer.text.empty();
    };
    BOOST_TEST(!refused({}));
    BOOST_TEST(refused([](auto &o) { o.bytes = UINT64_MAX; }));
    BOOST_TEST(refused([](auto &o) { o.sum_bytes = UINT64_MAX; }));
    BOOST_TEST(refused([](auto &o) { o.data = 0; }));
    BOOST_TEST(refused([](auto &o) { o.data = 33; }));
    BOOST_TEST(refused([](auto &o) { o.target = 10; }));
    BOOST_TEST(refused([](auto &o) { o.source = 2; }));
    BOOST_TEST(refused([](auto &o) { o.given = {1}; }));
    BOOST_TEST(refused([](auto &o) { o.given = {0, 2}; }));
    BOOST_TEST(refused([](auto &o) { o.given = {1, 65535}; }));
    BOOST_TEST(refused([](auto &o) { o.from[0]->bytes *= 2; }));
    BOOST_TEST(refused([](auto &o) { o.from.clear(); }));
    BOOST_TEST(refused([](auto &o) { o.wait_ms = 0; }));
    BOOST_TEST(refused([&](auto &o) {
        is_object(o, object, 1);
        o.given.clear();
        o.checkpoint->generation.reset();
    }));
    BOOST_TEST(refused([&](auto &o) {
        is_object(o, object, 1);
        o.given.clear();
        o.table_offset = UINT64_MAX;
    }));
}

BOOST_AUTO_TEST_CASE(a_node_is_measured) {
    start();
    constexpr std::uint64_t bytes = 8u << 20;
    auto first = a.measure(room, bytes, true);
    BOOST_TEST(first.ok, first.text);
    BOOST_TEST(first.work_us > 0u);
    auto filled = content(room, bytes);
    BOOST_TEST(first.xxh3 == ckpt::chunk_checksum(filled));
    BOOST_TEST((std::ranges::count(filled, std::byte{0}) < static_cast<std::ptrdiff_t>(bytes / 64)),
               "not zeros");
    auto second = a.measure(room, bytes, false);
    BOOST_TEST((second.ok && second.work_us == 0u && second.xxh3 == first.xxh3));
    BOOST_TEST(!a.measure(room, bytes, true, 0).ok, "there was no time for it");
    BOOST_TEST(!a.measure(room, bytes, true, 0).unfit);
    // Of a new leader, say: it is done when the one before is.
    std::uint64_t one = a.order_measure(room, bytes, true), two = a.order_measure(room, bytes, true);
    auto first_answer = *a.wait_for(local::Body::NodeMeasured).body.AsNodeMeasured();
    auto newest = *a.wait_for(local::Body::NodeMeasured).body.AsNodeMeasured();
    BOOST_TEST((newest.order == two && newest.ok), newest.text);
    // Where that one came before it had begun it gives way to the newest.
    BOOST_TEST((first_answer.order == one && (first_answer.ok || !first_answer.unfit)), first_answer.text);
    BOOST_TEST(!a.measure(room, room.bytes + 4096, false).ok, "longer than the memory");
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

struct TwoByUcx : Two {
    TwoByUcx() : Two(tcp | ucx) {}
};

struct HasUcx {
    boost::test_tools::assertion_result operator()(boost::unit_test::test_unit_id) const {
        transport::ucx_allow(transport::UcxNetworks::any);
        boost::test_tools::assertion_result result(transport::ucx_usable().ok());
        result.message() << "UCX: " << transport::ucx_usable().message();
        return result;
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(mover_by_ucx, TwoByUcx, *boost::unit_test::precondition(HasUcx()))

BOOST_AUTO_TEST_CASE(an_object_is_moved_and_each_chunk_looked_at) {
    start();
    BOOST_TEST(b.ready.ways == (tcp | ucx));
    auto order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    auto sent = a.sent(a.send(object, b, order, ucx));
    BOOST_TEST(sent.ok, sent.text);
    BOOST_TEST(b.arrived(order).ok);
    BOOST_TEST(same(object, room));
    order = b.expect(object, room, 1);
    BOOST_REQUIRE(b.expecting(order).ok);
    object.flip(5'000'000);
    sent = a.sent(a.send(object, b, order, ucx));
    BOOST_TEST(!sent.ok);
    BOOST_TEST(sent.text == "chunk \"w\" does not match its checksum");
    BOOST_TEST(!b.arrived(order).ok);
}

BOOST_AUTO_TEST_CASE(without_rdma_it_has_to_be_allowed) {
    a.settings().ucx_anywhere = false;
    a.start();
    bool rdma = transport::rdma_present();
    BOOST_TEST(a.ready.ways == (rdma ? tcp | ucx : tcp));
    BOOST_TEST(a.ready.text == (rdma ? "" : "no RDMA network is up here"));
}

BOOST_AUTO_TEST_SUITE_END()
