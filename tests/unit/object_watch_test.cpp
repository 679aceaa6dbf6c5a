// SPDX-License-Identifier: Apache-2.0
#include "mover/object_watch.h"

#include <random>
#include <thread>

#include "storage_fixture.h"
#include "transport/bulk_wire.h"

using namespace dlrover;
using ckpt::DType, ckpt::test::Maker;
using mover::ObjectWatch;
using transport::bulk_block_bytes, transport::bulk_blocks;

namespace {

using Bytes = std::vector<std::byte>;

struct Fixture {
    Fixture() {
        Maker maker(0, 2);
        std::mt19937_64 random(3);
        int number = 0;
        for (std::uint64_t bytes :
             {std::uint64_t{1}, std::uint64_t{300}, (std::uint64_t{5} << 20) + 17, std::uint64_t{1} << 20,
              bulk_block_bytes - 1, std::uint64_t{3} << 20, std::uint64_t{63}}) {
            Bytes data(bytes);
            for (std::byte &b : data) b = static_cast<std::byte>(random());
            maker.put("chunk" + std::to_string(number++), DType::UInt8, {bytes}, {0}, {bytes}, 0, data);
        }
        auto object = maker.object();
        known.who = {TrainStep(7), Rank(0), 2, {Term(3), 2}, {}};
        known.place.data_bytes = object.data.size();
        known.place.table_offset = *ckpt::align_object_offset(known.place.data_bytes);
        known.place.table_bytes = object.table.size();
        known.place.table_xxh3 = ckpt::block_kernel().hash(object.table.data(), object.table.size());
        memory.assign(object.data.begin(), object.data.end());
        memory.resize(known.place.table_offset);
        auto table = std::as_bytes(object.table);
        memory.insert(memory.end(), table.begin(), table.end());
    }

    /// The numbers of all blocks, the table's first, or as `random` says.
    std::vector<std::uint64_t> order(std::mt19937_64 *random = nullptr) const {
        std::uint64_t count = bulk_blocks(memory.size()), first = known.place.table_offset / bulk_block_bytes;
        std::vector<std::uint64_t> all(count);
        for (std::uint64_t i = 0; i < count; ++i) all[i] = (first + i) % count;
        if (random != nullptr) std::ranges::shuffle(all, *random);
        return all;
    }
    /// As the transport does: the bytes, then the word of them.
    void bring(Bytes &room, ObjectWatch &watch, std::uint64_t block, std::uint16_t stream = 0) const {
        std::uint64_t at = block * bulk_block_bytes, bytes = std::min(bulk_block_bytes, memory.size() - at);
        std::copy_n(memory.begin() + static_cast<std::ptrdiff_t>(at), bytes,
                    room.begin() + static_cast<std::ptrdiff_t>(at));
        watch.arrived(stream, at, bytes);
    }

    Bytes memory;
    ckpt::KnownObject known;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(object_watch, Fixture)

BOOST_AUTO_TEST_CASE(what_came_whole_is_whole_in_any_order) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 20; ++round) {
        Bytes room(memory.size());
        ObjectWatch watch(room, known);
        for (std::uint64_t block : order(round > 0 ? &random : nullptr)) bring(room, watch, block);
        BOOST_TEST(watch.verify().ok(), "round " << round);
    }
}

/// Its bytes are read as they come, and not again: or all this would be for nothing.
BOOST_AUTO_TEST_CASE(what_was_looked_at_is_not_read_again) {
    Bytes room(memory.size());
    ObjectWatch watch(room, known);
    for (std::uint64_t block : order()) bring(room, watch, block);
    room[1 << 20] ^= std::byte{1};
    BOOST_TEST(watch.verify().ok());
    BOOST_TEST(!ckpt::verify_object(room, known).ok());
}

/// While it is in the cache, that is: not when the last part of its piece is there.
BOOST_AUTO_TEST_CASE(what_one_stream_brings_in_order_is_read_as_it_comes) {
    for (bool in_order : {true, false}) {
        Bytes room(memory.size());
        ObjectWatch watch(room, known);
        for (std::uint64_t block : order()) {
            bring(room, watch, block, in_order ? 0 : static_cast<std::uint16_t>(block % 2));
            if (block == 5) room[(1 << 20) + (1 << 16)] ^= std::byte{1};  // in what came as block 4
        }
        BOOST_TEST(watch.verify().ok() == in_order);
    }
}

BOOST_AUTO_TEST_CASE(streams_that_share_a_piece_in_any_way_find_the_altered_byte) {
    std::mt19937_64 random(4);
    for (int round = 0; round < 200; ++round) {
        Bytes sent = memory, room(memory.size());
        if (round % 2 != 0) sent[(std::uint64_t{2} << 20) + random() % 1000000] ^= std::byte{1};
        std::swap(sent, memory);
        ObjectWatch watch(room, known);
        auto stream = static_cast<std::uint16_t>(0);
        auto blocks = order();
        if (round % 4 < 2) std::ranges::shuffle(blocks.begin() + 2, blocks.end(), random);
        for (std::uint64_t block : blocks) {
            if (random() % 3 == 0)
                stream = static_cast<std::uint16_t>(random() % transport::max_bulk_streams);
            bring(room, watch, block, stream);
        }
        std::swap(sent, memory);
        BOOST_TEST(watch.verify().ok() == (round % 2 == 0), "round " << round);
    }
}

BOOST_AUTO_TEST_CASE(a_byte_that_was_altered_on_its_way_is_found) {
    std::mt19937_64 random(2);
    for (int round = 0; round < 60; ++round) {
        Bytes sent = memory, room(memory.size());
        std::uint64_t at = random() % memory.size();
        sent[at] ^= std::byte{16};
        bool counts = !ckpt::verify_object(sent, known).ok();  // or it lies between two chunks
        std::swap(sent, memory);
        ObjectWatch watch(room, known);
        for (std::uint64_t block : order(round % 2 != 0 ? &random : nullptr)) bring(room, watch, block);
        std::swap(sent, memory);
        BOOST_TEST((watch.verify().code() == (counts ? Code::corrupt : Code::ok)), "byte " << at);
    }
}

BOOST_AUTO_TEST_CASE(what_nobody_told_of_is_looked_at_in_the_end) {
    for (bool damaged : {false, true}) {
        Bytes room(memory.size());
        ObjectWatch watch(room, known);
        for (std::uint64_t block : order())
            if (block != 4 && block != 9) bring(room, watch, block);
        for (std::uint64_t block : {4u, 9u}) {
            auto at = static_cast<std::ptrdiff_t>(block * bulk_block_bytes);
            std::copy_n(memory.begin() + at, bulk_block_bytes, room.begin() + at);
        }
        if (damaged) room[9 * bulk_block_bytes + 5] ^= std::byte{1};
        BOOST_TEST(watch.verify().ok() == !damaged);
    }
}

BOOST_AUTO_TEST_CASE(several_streams_at_once) {
    for (int round = 0; round < 20; ++round) {
        Bytes room(memory.size());
        ObjectWatch watch(room, known);
        auto blocks = order();
        std::atomic<std::size_t> next{0};
        auto stream = [&](std::uint16_t number) {
            std::size_t run = static_cast<std::size_t>(round) % 9 + 1;
            for (std::size_t i; (i = next.fetch_add(run)) < blocks.size();)
                for (std::size_t n = i; n < std::min(i + run, blocks.size()); ++n)
                    bring(room, watch, blocks[n], number);
        };
        std::vector<std::thread> streams;
        for (std::uint16_t i = 0; i < 4; ++i) streams.emplace_back(stream, i);
        for (auto &one : streams) one.join();
        BOOST_TEST(watch.verify().ok());
    }
}

BOOST_AUTO_TEST_CASE(another_object_or_no_table_is_refused) {
    Bytes room(memory.size());
    ckpt::KnownObject another = known;
    another.who.train_step = TrainStep(8);
    ObjectWatch watch(room, another);
    for (std::uint64_t block : order()) bring(room, watch, block);
    BOOST_TEST((watch.verify().code() == Code::corrupt), "another step's");
    ckpt::KnownObject wrong = known;
    wrong.place.table_xxh3 ^= 1;
    ObjectWatch other(room, wrong);
    for (std::uint64_t block : order()) bring(room, other, block);
    BOOST_TEST((other.verify().code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(a_parity_has_a_checksum_of_the_whole) {
    ckpt::KnownObject parity{{}, {memory.size(), memory.size(), 0, ckpt::chunk_checksum(memory)}, true};
    for (bool damaged : {false, true}) {
        Bytes room(memory.size());
        ObjectWatch watch(room, parity);
        if (damaged) parity.place.table_xxh3 ^= 1;
        ObjectWatch wrong(room, parity);
        for (std::uint64_t block : order()) {
            bring(room, watch, block);
            wrong.arrived(0, 0, 0);
        }
        BOOST_TEST(watch.verify().ok());
        BOOST_TEST(wrong.verify().ok() == !damaged);
    }
}

BOOST_AUTO_TEST_CASE(an_order_that_is_cancelled_stops_it) {
    Bytes room = memory;
    ObjectWatch watch(room, known);
    std::atomic<bool> stop{true};
    BOOST_TEST((watch.verify(&stop).code() == Code::stale));
}

BOOST_AUTO_TEST_SUITE_END()
