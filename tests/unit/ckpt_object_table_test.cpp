// SPDX-License-Identifier: Apache-2.0
#include "ckpt/object_table.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <random>
#include <thread>

#include "ckpt/checksum.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

using Shape = std::vector<std::uint64_t>;

ObjectIdentity identity() {
    return {TrainStep(7), Rank(3), 8, GenerationId{Term(1), 2}, "cluster/1/7.0/abc"};
}

ChunkInfo chunk(std::string_view name, DType type, const Shape &global, const Shape &offset,
                const Shape &local, std::uint64_t at, std::uint64_t bytes) {
    return {name, type, global, offset, local, 0, at, bytes, 0x1234};
}

/// A table whose one chunk is as given, without the writer's checks.
std::vector<std::uint8_t> raw_table(format::ChunkT entry, std::uint16_t version = 1) {
    format::ObjectTableT table;
    table.version = version;
    table.chunks.push_back(std::make_unique<format::ChunkT>(std::move(entry)));
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(format::ObjectTable::Pack(builder, &table), format::ObjectTableIdentifier());
    return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

format::ChunkT good_entry() {
    format::ChunkT e;
    e.name = "w";
    e.dtype = DType::Float32;
    e.global_shape = {4, 4};
    e.global_offset = {2, 0};
    e.local_shape = {2, 4};
    e.offset = 64;
    e.bytes = 32;
    return e;
}

/// Of so many chunks; the memory that was wanted first is too little for the skeleton.
std::vector<std::uint8_t> table_of(std::size_t count, bool reserved) {
    ObjectTableWriter writer(identity());
    if (reserved) writer.reserve(100 * count);
    Shape shape{2, 4}, zero{0, 0};
    bool added = true;
    for (std::size_t i = 0; i < count; ++i) {
        std::string name = "w" + std::to_string(i);
        added &= writer.add(chunk(name, DType::Float32, shape, zero, shape, 64 * i, 32)).ok();
    }
    added &= writer.set_skeleton(std::string(60 * count, 's')).ok();
    auto table = writer.finish();
    return added && table ? *table
                          : std::vector<std::uint8_t>();  // threads make them: nothing of Boost's here
}

std::vector<std::uint8_t> good_table() {
    ObjectTableWriter writer(identity());
    Shape shape{2, 4}, zero{0, 0}, scalar;
    BOOST_REQUIRE(writer.add(chunk("w", DType::Float32, shape, zero, shape, 0, 32)).ok());
    BOOST_REQUIRE(writer.add(chunk("s", DType::Complex128, scalar, scalar, scalar, 64, 16)).ok());
    BOOST_REQUIRE(writer.set_skeleton("{\"a\":1}").ok());
    auto bytes = writer.finish();
    BOOST_REQUIRE(bytes.ok());
    return std::move(*bytes);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(object_table)

/// Memory is kept from table to table: of any size, and several at once.
BOOST_AUTO_TEST_CASE(tables_in_memory_that_was_used_before_are_as_others) {
    for (std::size_t count : {1, 3000, 10, 3000, 20000, 500, 3000})
        BOOST_TEST((table_of(count, true) == table_of(count, false)), count);
    auto expected = table_of(700, false);
    BOOST_REQUIRE(!expected.empty());
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i) wrong += table_of(700, true) != expected;
        });
    for (std::thread &thread : threads) thread.join();
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read) {
    auto bytes = good_table();
    auto view = ObjectTableView::parse(bytes, 80);
    BOOST_REQUIRE(view.ok());
    BOOST_TEST(view->count() == 2u);
    BOOST_TEST(view->skeleton() == "{\"a\":1}");
    auto who = view->identity();
    BOOST_TEST(who.train_step.value() == 7u);
    BOOST_TEST(who.rank.value() == 3u);
    BOOST_TEST(who.world_size == 8u);
    BOOST_TEST((who.generation == GenerationId{Term(1), 2}));
    BOOST_TEST(who.lineage == "cluster/1/7.0/abc");
    ChunkInfo w = view->chunk(0), s = view->chunk(1);
    BOOST_TEST(w.name == "w");
    BOOST_TEST((w.dtype == DType::Float32));
    BOOST_TEST((Shape(w.local_shape.begin(), w.local_shape.end()) == Shape{2, 4}));
    BOOST_TEST(w.checksum == 0x1234u);
    BOOST_TEST(s.local_shape.size() == 0u);
    BOOST_TEST(s.bytes == 16u);
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_aligned_are_read_too) {
    auto bytes = good_table();
    std::vector<std::uint8_t> shifted(bytes.size() + 1);
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
    auto view = ObjectTableView::parse(std::span(shifted).subspan(1));
    BOOST_REQUIRE(view.ok());
    ObjectTableView moved = std::move(*view);
    BOOST_TEST(moved.chunk(0).name == "w");
}

BOOST_AUTO_TEST_CASE(an_empty_object_is_an_object) {
    ObjectTableWriter writer({});
    auto bytes = writer.finish();
    BOOST_REQUIRE(bytes.ok());
    auto view = ObjectTableView::parse(*bytes, 0);
    BOOST_REQUIRE(view.ok());
    BOOST_TEST(view->count() == 0u);
    BOOST_TEST(view->skeleton() == "");
}

BOOST_AUTO_TEST_CASE(a_good_raw_table_passes) {
    BOOST_TEST(ObjectTableView::parse(raw_table(good_entry()), 96).ok());
}

BOOST_AUTO_TEST_CASE(each_lie_is_refused) {
    std::vector<std::pair<const char *, std::function<void(format::ChunkT &)>>> lies{
        {"no name", [](auto &e) { e.name.clear(); }},
        {"long name", [](auto &e) { e.name.assign(max_name_bytes + 1, 'x'); }},
        {"type", [](auto &e) { e.dtype = static_cast<DType>(200); }},
        {"bytes", [](auto &e) { e.bytes = 31; }},
        {"alignment", [](auto &e) { e.offset = 32; }},
        {"outside the global shape", [](auto &e) { e.global_offset[0] = 3; }},
        {"offset overflow", [](auto &e) { e.global_offset[0] = UINT64_MAX; }},
        {"rank of the shapes", [](auto &e) { e.global_offset.pop_back(); }},
        {"rank of the global shape", [](auto &e) { e.global_shape.push_back(1); }},
        {"outside the data", [](auto &e) { e.offset = 128; }},
        {"end overflow", [](auto &e) { e.offset = UINT64_MAX - 63; }},
        {"product overflow",
         [](auto &e) {
             e.global_shape = e.local_shape = {1ull << 62, 4};
             e.global_offset = {0, 0};
             e.bytes = 0;
         }},
        {"dimensions",
         [](auto &e) {
             e.global_shape = e.local_shape = Shape(17, 1);
             e.global_offset = Shape(17, 0);
             e.bytes = 4;
         }},
    };
    for (auto &[what, lie] : lies) {
        auto entry = good_entry();
        lie(entry);
        auto view = ObjectTableView::parse(raw_table(std::move(entry)), 96);
        BOOST_TEST((view.status().code() == Code::corrupt), what);
    }
}

/// Entry of a chunk that rank 2 keeps, in a table of rank 3 of 8.
std::vector<std::uint8_t> kept_table(const std::function<void(format::ChunkT &)> &change) {
    format::ChunkT entry = good_entry();
    entry.offset = 0;
    entry.replica = 1;
    entry.keeper = 2;
    change(entry);
    format::ObjectTableT table;
    table.rank = 3;
    table.world_size = 8;
    table.chunks.push_back(std::make_unique<format::ChunkT>(std::move(entry)));
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(format::ObjectTable::Pack(builder, &table), format::ObjectTableIdentifier());
    return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

BOOST_AUTO_TEST_CASE(a_chunk_that_another_rank_keeps_has_no_place) {
    auto bytes = kept_table([](auto &) {});
    auto view = ObjectTableView::parse(bytes, 0);
    BOOST_REQUIRE(view.ok());
    BOOST_TEST((view->chunk(0).keeper == Rank(2)));
    BOOST_TEST(view->chunk(0).bytes == 32u);
    ObjectTableWriter writer(identity());
    BOOST_REQUIRE(writer.add(view->chunk(0)).ok());
    auto again = writer.finish();
    BOOST_TEST((ObjectTableView::parse(*again, 0)->chunk(0).keeper == Rank(2)));
    auto own = good_table();
    BOOST_TEST(!ObjectTableView::parse(own)->chunk(0).keeper.has_value());
}

BOOST_AUTO_TEST_CASE(each_lie_about_a_keeper_is_refused) {
    std::vector<std::pair<const char *, std::function<void(format::ChunkT &)>>> lies{
        {"a place", [](auto &e) { e.offset = 64; }},
        {"a checksum", [](auto &e) { e.xxh3 = 1; }},
        {"to be written", [](auto &e) { e.replica = 0; }},
        {"no bytes",
         [](auto &e) {
             e.local_shape = {0, 4};
             e.bytes = 0;
         }},
        {"itself", [](auto &e) { e.keeper = 3; }},
        {"outside the world", [](auto &e) { e.keeper = 8; }},
        {"other bytes", [](auto &e) { e.bytes = 31; }},
        {"hashes of blocks",
         [](auto &e) {
             e.global_shape = e.local_shape = {1 << 20, 4};
             e.global_offset = {0, 0};
             e.bytes = 16 << 20;
             e.blocks = Shape(16);
         }},
    };
    for (auto &[what, lie] : lies) {
        auto view = ObjectTableView::parse(kept_table(lie), 1 << 20);
        BOOST_TEST((view.status().code() == Code::corrupt), what);
    }
}

BOOST_AUTO_TEST_CASE(a_piece_is_told_from_all_others) {
    Shape shape{4, 4}, zero{0, 0}, half{2, 4}, lower{2, 0};
    const ChunkInfo w = chunk("w", DType::Float32, shape, zero, half, 0, 32);
    BOOST_TEST(hash_of_piece(w) == hash_of_piece(chunk("w", DType::Float32, shape, zero, half, 64, 32)));
    Shape other{2, 4};
    for (const ChunkInfo &c : {chunk("v", DType::Float32, shape, zero, half, 0, 32),
                               chunk("w", DType::Int32, shape, zero, half, 0, 32),
                               chunk("w", DType::Float32, shape, lower, half, 0, 32),
                               chunk("w", DType::Float32, other, zero, half, 0, 32),
                               chunk("w", DType::Float32, shape, zero, shape, 0, 64)}) {
        BOOST_TEST(!same_piece(w, c));
        BOOST_TEST(hash_of_piece(w) != hash_of_piece(c));
    }
}

BOOST_AUTO_TEST_CASE(another_version_is_unsupported) {
    Status status = ObjectTableView::parse(raw_table(good_entry(), 2), 96).take_status();
    BOOST_TEST((status.code() == Code::unsupported));
    BOOST_TEST(
        status.message() ==
        "an object table is of version 2, and this dlrover reads version 1: a newer one has written it");
    status = ObjectTableView::parse(raw_table(good_entry(), 0), 96).take_status();
    BOOST_TEST(status.message() == "an object table is of version 0, and this dlrover reads version 1");
}

BOOST_AUTO_TEST_CASE(one_name_comes_once_per_global_offset) {
    Shape whole{4}, half{2}, first{0}, second{2};
    for (bool twice : {false, true}) {
        ObjectTableWriter writer(identity());
        BOOST_TEST(writer.add(chunk("w", DType::Int8, whole, first, half, 0, 2)).ok());
        BOOST_TEST(writer.add(chunk("w", DType::Int8, whole, second, half, 64, 2)).ok());
        if (twice) BOOST_TEST(writer.add(chunk("w", DType::Int8, whole, first, half, 128, 2)).ok());
        BOOST_TEST(writer.finish().ok() == !twice);
    }
}

/// Of a chunk of so many bytes.
Shape hashes_of(std::uint64_t bytes) {
    Shape hashes(checksum_blocks(bytes));
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = (bytes + i) * 0x9E3779B97F4A7C15u;
    return hashes;
}

const std::uint64_t some_lengths[] = {0, 2, checksum_block_bytes, checksum_block_bytes + 1,
                                      400 * checksum_block_bytes - 1};

BOOST_AUTO_TEST_CASE(hashes_may_come_later) {
    ObjectTableWriter writer(identity());
    Shape zero{0};
    auto length = [](std::uint64_t i) { return some_lengths[i % std::size(some_lengths)]; };
    for (std::uint64_t i = 0; i < 300; ++i) {
        Shape shape{length(i)};
        std::string name = "w" + std::to_string(i);
        ChunkInfo c = chunk(name, DType::Int8, shape, zero, shape, 64 * i, length(i));
        BOOST_REQUIRE((i % 2 == 0 ? writer.add_unhashed(c) : writer.add(c)).ok());
    }
    for (std::uint64_t i = 0; i < 300; i += 2) writer.set_hashes(i, hashes_of(length(i)));
    auto bytes = *writer.finish();
    BOOST_TEST(bytes.size() <= writer.bytes_bound());
    auto view = ObjectTableView::parse(bytes);
    BOOST_REQUIRE_MESSAGE(view.ok(), view.status().message());
    for (std::uint64_t i = 0; i < 300; ++i) {
        Shape hashes = hashes_of(length(i));
        ChunkInfo c = view->chunk(i);
        BOOST_TEST(c.checksum == (i % 2 != 0 ? 0x1234u : combine_block_hashes(hashes)));
        if (i % 2 != 0 || hashes.size() == 1) hashes.clear();
        BOOST_TEST((Shape(c.blocks.begin(), c.blocks.end()) == hashes), i);
    }
}

/// A chunk of three blocks, and how it may be told of.
struct ThreeBlocks {
    Shape shape{2 * checksum_block_bytes + 5}, zero{0}, hashes = hashes_of(shape[0]);
    ChunkInfo info() const {
        ChunkInfo c = chunk("w", DType::UInt8, shape, zero, shape, 0, shape[0]);
        c.checksum = combine_block_hashes(hashes);
        c.blocks = hashes;
        return c;
    }
    format::ChunkT entry() const {
        format::ChunkT e;
        e.name = "w";
        e.dtype = DType::UInt8;
        e.global_shape = e.local_shape = shape;
        e.global_offset = zero;
        e.bytes = shape[0];
        e.xxh3 = combine_block_hashes(hashes);
        e.blocks = hashes;
        return e;
    }
};

BOOST_FIXTURE_TEST_CASE(the_hashes_of_blocks_are_read_as_they_were_written, ThreeBlocks) {
    ObjectTableWriter writer(identity());
    BOOST_REQUIRE(writer.add(info()).ok());
    auto bytes = *writer.finish();
    auto view = ObjectTableView::parse(bytes, shape[0]);
    BOOST_REQUIRE_MESSAGE(view.ok(), view.status().message());
    BOOST_TEST(std::ranges::equal(view->chunk(0).blocks, hashes));
    BOOST_TEST(ObjectTableView::parse(raw_table(entry()), shape[0]).ok());
}

BOOST_FIXTURE_TEST_CASE(a_table_without_the_hashes_of_blocks_is_a_table, ThreeBlocks) {
    auto old = entry();
    old.blocks.clear();
    auto bytes = raw_table(old);
    auto view = ObjectTableView::parse(bytes, shape[0]);
    BOOST_REQUIRE(view.ok());
    BOOST_TEST(view->chunk(0).blocks.empty());
    BOOST_TEST(view->chunk(0).checksum == old.xxh3);
}

BOOST_FIXTURE_TEST_CASE(each_lie_about_blocks_is_refused, ThreeBlocks) {
    auto with_checksum = [](format::ChunkT &e) { e.xxh3 = combine_block_hashes(e.blocks); };
    std::vector<std::pair<const char *, std::function<void(format::ChunkT &)>>> lies{
        {"one too few", [&](auto &e) { e.blocks.pop_back(), with_checksum(e); }},
        {"one too many", [&](auto &e) { e.blocks.push_back(1), with_checksum(e); }},
        {"another hash", [](auto &e) { e.blocks[1] ^= 1; }},
        {"another order", [](auto &e) { std::swap(e.blocks[0], e.blocks[1]); }},
        {"another checksum", [](auto &e) { e.xxh3 ^= 1; }},
        {"one block",
         [&](auto &e) {
             e.global_shape = e.local_shape = {checksum_block_bytes};
             e.bytes = checksum_block_bytes;
             e.blocks.resize(1);
             with_checksum(e);
         }},
    };
    for (auto &[what, lie] : lies) {
        auto e = entry();
        lie(e);
        BOOST_TEST((ObjectTableView::parse(raw_table(e), shape[0]).status().code() == Code::corrupt), what);
    }
    ChunkInfo c = info();
    c.checksum ^= 1;
    BOOST_TEST((ObjectTableWriter(identity()).add(c).code() == Code::invalid_argument));
}

/// FlatBuffers' verifier lets them pass.
BOOST_FIXTURE_TEST_CASE(blocks_that_are_not_aligned_are_refused, ThreeBlocks) {
    auto bytes = raw_table(entry());
    const auto *chunk = format::GetObjectTable(bytes.data())->chunks()->Get(0);
    const auto *field =
        reinterpret_cast<const flatbuffers::Table *>(chunk)->GetAddressOf(format::Chunk::VT_BLOCKS);
    BOOST_REQUIRE(field != nullptr);
    auto from = static_cast<std::size_t>(field - bytes.data());
    bytes.resize((bytes.size() + 7) / 8 * 8);
    // At the end: a length of three where a vector's first number should be, and the numbers behind it.
    const auto offset = static_cast<std::uint32_t>(bytes.size() - from), count = 3u;
    std::memcpy(bytes.data() + from, &offset, sizeof offset);
    auto *counted = reinterpret_cast<const std::uint8_t *>(&count);
    bytes.insert(bytes.end(), counted, counted + sizeof count);
    auto *numbers = reinterpret_cast<const std::uint8_t *>(hashes.data());
    bytes.insert(bytes.end(), numbers, numbers + 3 * sizeof hashes[0]);
    Status status = ObjectTableView::parse(bytes, shape[0]).take_status();
    BOOST_TEST((status.code() == Code::corrupt));
    BOOST_TEST(status.message() == "a list in the object table is not aligned");
}

BOOST_FIXTURE_TEST_CASE(a_table_that_would_be_too_large_by_them_has_no_hashes_of_blocks, ThreeBlocks) {
    for (std::size_t room : {std::size_t{200}, std::size_t{1000}}) {
        ObjectTableWriter writer(identity());
        std::uint64_t left = max_table_bytes - writer.bytes_bound() - room;
        for (std::uint64_t n; left != 0; left -= n) {  // only the last one is kept
            n = std::min<std::uint64_t>(left, max_skeleton_bytes);
            BOOST_REQUIRE(writer.set_skeleton(std::string(n, ' ')).ok());
        }
        BOOST_REQUIRE(writer.set_skeleton("").ok());
        BOOST_REQUIRE(writer.add_unhashed(info()).ok());
        writer.set_hashes(0, hashes);
        auto bytes = *writer.finish();
        auto view = ObjectTableView::parse(bytes, shape[0]);
        BOOST_REQUIRE(view.ok());
        BOOST_TEST(view->chunk(0).blocks.size() == (room < 208 ? 0u : 3u));
        BOOST_TEST(view->chunk(0).checksum == combine_block_hashes(hashes));
    }
}

BOOST_AUTO_TEST_CASE(the_bound_is_a_bound) {
    ObjectTableWriter writer(identity());
    for (int i = 0; i < 500; ++i) {
        Shape shape(static_cast<std::size_t>(i % 17), 1), zero(shape.size(), 0);
        std::string name(static_cast<std::size_t>(1 + i % 100), 'n');
        name += std::to_string(i);
        BOOST_REQUIRE(
            writer.add(chunk(name, DType::Int8, shape, zero, shape, static_cast<std::uint64_t>(i) * 64, 1))
                .ok());
    }
    BOOST_TEST(writer.finish()->size() <= writer.bytes_bound());
}

BOOST_AUTO_TEST_CASE(limits_of_the_writer) {
    ObjectTableWriter writer(identity());
    BOOST_TEST(!writer.set_skeleton(std::string(max_skeleton_bytes + 1, ' ')).ok());
    Shape shape{3}, zero{0};
    BOOST_TEST(
        (writer.add(chunk("w", DType::Int16, shape, zero, shape, 0, 7)).code() == Code::invalid_argument));
    BOOST_TEST(!align_object_offset(UINT64_MAX).has_value());
    BOOST_TEST(*align_object_offset(65) == 128u);
}

BOOST_AUTO_TEST_CASE(damaged_bytes_never_lead_outside) {
    auto good = good_table();
    std::mt19937 random(1);
    for (int round = 0; round < 20000; ++round) {
        auto bytes = good;
        for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n)
            bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
        if (random() % 4 == 0) bytes.resize(random() % bytes.size());
        auto view = ObjectTableView::parse(bytes, 80);
        if (!view.ok()) continue;
        for (std::uint64_t i = 0; i < view->count(); ++i) {
            ChunkInfo c = view->chunk(i);
            BOOST_REQUIRE(c.offset + c.bytes <= 80u);
            BOOST_REQUIRE(c.blocks.empty());
            BOOST_REQUIRE(c.name.size() <= max_name_bytes);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
