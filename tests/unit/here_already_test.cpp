// SPDX-License-Identifier: Apache-2.0
#include "mover/here_already.h"

#include <random>

#include "storage_fixture.h"

using namespace dlrover;
using namespace dlrover::mover;
using ckpt::DType, ckpt::test::Maker, ckpt::test::Numbers;
using transport::bulk_block_bytes, transport::BulkSpared;

namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::uint64_t count, unsigned seed) {
    Bytes bytes(count);
    std::mt19937_64 random(seed);
    for (std::byte &b : bytes) b = static_cast<std::byte>(random());
    return bytes;
}

/// An object as it lies in memory.
struct Laid {
    explicit Laid(Maker &maker, std::uint32_t rank) {
        auto object = maker.object();
        place.data_bytes = object.data.size();
        place.table_offset = *ckpt::align_object_offset(place.data_bytes);
        place.table_bytes = object.table.size();
        place.table_xxh3 = ckpt::block_kernel().hash(object.table.data(), object.table.size());
        memory.assign(object.data.begin(), object.data.end());
        memory.resize(place.table_offset);
        auto table = std::as_bytes(object.table);
        memory.insert(memory.end(), table.begin(), table.end());
        who = {TrainStep(7), Rank(rank), 2, {Term(3), 2}, {}};
    }
    ckpt::KnownObject known() const { return {who, place, false}; }
    Bytes memory;
    ckpt::ObjectPlace place;
    ckpt::ObjectIdentity who;
};

constexpr std::uint64_t weight = 3 * bulk_block_bytes + 1000, bias = 200;

/// What two ranks of data parallelism save: a value of their own, then the same parameters.
Laid replica(std::uint32_t rank, unsigned seed = 1, const std::string &name = "weight") {
    Maker maker(rank, 2);
    Bytes own = random_bytes(100 + 64 * rank, 50 + rank);
    maker.put("own", DType::UInt8, {own.size()}, {0}, {own.size()}, 0, own);
    Bytes first = random_bytes(weight, seed), second = random_bytes(bias, seed + 1);
    maker.put(name, DType::UInt8, {weight}, {0}, {weight}, rank, first);
    maker.put("bias", DType::UInt8, {bias}, {0}, {bias}, rank, second);
    maker.put("more", DType::UInt8, {weight}, {0}, {weight}, rank, random_bytes(weight, seed + 2));
    return Laid(maker, rank);
}

/// As if it had been sent but for those blocks.
Bytes without(const Bytes &memory, const std::vector<BulkSpared> &spared) {
    Bytes left = memory;
    for (const BulkSpared &run : spared) {
        std::uint64_t begin = run.first * bulk_block_bytes;
        std::uint64_t bytes = std::min(run.count * bulk_block_bytes, left.size() - begin);
        std::fill_n(left.begin() + static_cast<std::ptrdiff_t>(begin), bytes, std::byte{0xaa});
    }
    return left;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(here_already)

BOOST_AUTO_TEST_CASE(replicas_are_left_out_and_filled_in) {
    Laid there = replica(0), here = replica(1);
    HereAlready known;
    known.add(here.memory, here.known());
    BOOST_TEST(known.list().size() == 4u);
    auto spared = find_spared(there.memory, there.place, known.list());
    // All but what begins with a value of its own, and what ends with the table.
    BOOST_REQUIRE(spared.size() == 1u);
    BOOST_TEST(spared[0].first == 1u);
    BOOST_TEST(spared[0].count == there.place.data_bytes / bulk_block_bytes - 1);
    Bytes arrived = without(there.memory, spared);
    BOOST_TEST((arrived != there.memory));
    BOOST_TEST(known.fill(arrived, there.place, spared).ok());
    BOOST_TEST((arrived == there.memory));
    BOOST_TEST(ckpt::verify_object(arrived, there.known()).ok());
}

/// Of these no checksum tells, and a parity is made of them.
BOOST_AUTO_TEST_CASE(what_lies_between_chunks_is_sent_unless_it_is_zeros) {
    Laid there = replica(0), here = replica(1);
    HereAlready known;
    known.add(here.memory, here.known());
    auto before = find_spared(there.memory, there.place, known.list());
    std::uint64_t gap = 128 + weight;  // behind "own" comes "weight"
    BOOST_REQUIRE(gap % 64 != 0);
    there.memory[gap] = std::byte{1};
    auto spared = find_spared(there.memory, there.place, known.list());
    BOOST_REQUIRE(spared.size() == 2u);
    BOOST_TEST(spared[0].count + spared[1].count == before[0].count - 1);
    BOOST_TEST(spared[1].first == gap / bulk_block_bytes + 1);
    Bytes arrived = without(there.memory, spared);
    BOOST_TEST(known.fill(arrived, there.place, spared).ok());
    BOOST_TEST((arrived == there.memory));
}

BOOST_AUTO_TEST_CASE(other_bytes_another_name_and_another_place_are_sent) {
    Laid there = replica(0);
    for (const Laid &here : {replica(1, 9), replica(1, 1, "other")}) {
        HereAlready known;
        known.add(here.memory, here.known());
        auto spared = find_spared(there.memory, there.place, known.list());
        for (const BulkSpared &run : spared) BOOST_TEST(run.first * bulk_block_bytes >= weight);
    }
    auto part = [](std::uint32_t rank) {  // alike by chance
        Maker maker(rank, 2);
        maker.put("w", DType::UInt8, {2 * weight}, {rank * weight}, {weight}, 0, random_bytes(weight, 3));
        return Laid(maker, rank);
    };
    Laid first = part(0), second = part(1);
    HereAlready known;
    known.add(second.memory, second.known());
    BOOST_TEST(find_spared(first.memory, first.place, known.list()).empty());
}

BOOST_AUTO_TEST_CASE(an_object_that_is_not_what_it_is_said_to_be_is_nothing) {
    Laid here = replica(1);
    auto empty = [&](auto change, bool parity = false) {
        ckpt::KnownObject object = here.known();
        object.parity = parity;
        change(object);
        HereAlready known;
        known.add(here.memory, object);
        return known.list().empty();
    };
    BOOST_TEST(!empty([](auto &) {}));
    BOOST_TEST(empty([](auto &o) { o.who.rank = Rank(0); }));
    BOOST_TEST(empty([](auto &o) { o.who.train_step = TrainStep(8); }));
    BOOST_TEST(empty([](auto &o) { o.place.table_xxh3 ^= 1; }));
    BOOST_TEST(empty([](auto &o) { o.place.table_offset = UINT64_MAX; }));
    BOOST_TEST(empty([](auto &) {}, true));
}

BOOST_AUTO_TEST_CASE(what_another_rank_keeps_is_not_here) {
    Maker maker(1, 2);
    maker.kept("weight", DType::UInt8, {weight}, 0);
    maker.put("own", DType::UInt8, {weight}, {0}, {weight}, 0, random_bytes(weight, 4));
    Laid here(maker, 1);
    HereAlready known;
    known.add(here.memory, here.known());
    BOOST_TEST(known.list().size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_was_left_out_and_is_not_here_is_found) {
    Laid there = replica(0), other = replica(1, 9);
    HereAlready known;
    known.add(other.memory, other.known());
    std::vector<BulkSpared> spared = {{1, 2}};
    Bytes arrived = without(there.memory, spared);
    Status status = known.fill(arrived, there.place, spared);
    BOOST_TEST((status.code() == Code::corrupt));
    BOOST_TEST(status.message().find("\"weight\" was left out, and is not here") != std::string::npos);
    arrived = without(there.memory, {{there.place.table_offset / bulk_block_bytes, 1}});
    BOOST_TEST(!known.fill(arrived, there.place, spared).ok(), "a table that is none");
}

BOOST_AUTO_TEST_CASE(damage_here_is_found_when_it_was_filled_in) {
    Laid there = replica(0), here = replica(1);
    here.memory[bulk_block_bytes + 5000] ^= std::byte{1};
    HereAlready known;
    known.add(here.memory, here.known());
    auto spared = find_spared(there.memory, there.place, known.list());
    Bytes arrived = without(there.memory, spared);
    BOOST_TEST(known.fill(arrived, there.place, spared).ok());
    BOOST_TEST((ckpt::verify_object(arrived, there.known()).code() == Code::corrupt));
}

/// Of these the checksums were compared while they came, and are not looked at again.
BOOST_AUTO_TEST_CASE(what_has_come_is_not_written_over) {
    constexpr std::uint64_t bytes = (1 << 20) + (64 << 10);
    auto make = [](std::uint32_t rank) {
        Maker maker(rank, 2);
        maker.put("weight", DType::UInt8, {bytes}, {0}, {bytes}, rank, random_bytes(bytes, 1));
        maker.put("own", DType::UInt8, {weight}, {0}, {weight}, 0, random_bytes(weight, 50 + rank));
        return Laid(maker, rank);
    };
    Laid there = make(0), here = make(1);
    here.memory[(1 << 20) + 5] ^= std::byte{1};
    HereAlready known;
    known.add(here.memory, here.known());
    auto spared = find_spared(there.memory, there.place, known.list());
    BOOST_REQUIRE((spared == std::vector<BulkSpared>{{0, 4}}));
    Bytes arrived = without(there.memory, spared);
    BOOST_TEST(known.fill(arrived, there.place, spared).ok());
    BOOST_TEST((arrived == there.memory));
}

BOOST_AUTO_TEST_CASE(filling_in_can_be_called_off) {
    Laid there = replica(0), here = replica(1);
    HereAlready known;
    known.add(here.memory, here.known());
    auto spared = find_spared(there.memory, there.place, known.list());
    Bytes arrived = without(there.memory, spared), before = arrived;
    std::atomic<bool> stop{true};
    BOOST_TEST((known.fill(arrived, there.place, spared, &stop).code() == Code::stale));
    BOOST_TEST((arrived == before));
}

BOOST_AUTO_TEST_CASE(of_very_many_the_largest_are_named) {
    Maker maker(1, 2);
    Bytes large = random_bytes(bulk_block_bytes, 4);
    for (std::uint64_t i = 0; i < transport::max_bulk_haves + 10; ++i) {
        std::byte small[] = {static_cast<std::byte>(i)};
        maker.put("v" + std::to_string(i), DType::UInt8, {1}, {0}, {1}, 0, small);
        if (i == 40000) maker.put("large", DType::UInt8, {large.size()}, {0}, {large.size()}, 0, large);
    }
    Laid here(maker, 1);
    HereAlready known;
    known.add(here.memory, here.known());
    auto list = known.list();
    BOOST_TEST(list.size() == transport::max_bulk_haves);
    BOOST_TEST(std::ranges::count(list, large.size(), &transport::BulkHave::bytes) == 1);
}

BOOST_AUTO_TEST_SUITE_END()
