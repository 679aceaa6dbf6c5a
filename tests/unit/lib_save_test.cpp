// SPDX-License-Identifier: Apache-2.0
#include "lib/save.h"

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <new>
#include <random>
#include <thread>

#include "ckpt/checksum.h"
#include "ckpt/mapping.h"
#include "lib/parallel.h"
#include "lib/restore.h"

using namespace dlrover;
using namespace dlrover::lib;
using ckpt::checksum_block_bytes;

namespace {

constexpr std::uint64_t room = std::uint64_t{64} << 20;

/// In an order in which blocks that are copied together come from different chunks; the many small ones are
/// copied by one call.
const std::vector<std::uint64_t> lengths = [] {
    std::vector<std::uint64_t> all = {100,
                                      3 * checksum_block_bytes + 7,
                                      0,
                                      checksum_block_bytes,
                                      checksum_block_bytes - 1,
                                      9000,
                                      5 * checksum_block_bytes,
                                      65536,
                                      checksum_block_bytes + 65536,
                                      1,
                                      2 * checksum_block_bytes + 20000};
    for (std::uint64_t i = 0; i < 150; ++i) all.push_back(8000 + i * 521);
    return all;
}();

struct Program {
    std::vector<std::vector<std::byte>> tensors;
    std::vector<std::string> names;
    std::vector<std::uint64_t> shapes, zero{0};

    Program() {
        std::mt19937 random(1);
        for (std::uint64_t n : lengths) {
            auto &tensor = tensors.emplace_back(n);
            for (auto &b : tensor) b = static_cast<std::byte>(random());
            names.push_back("tensor " + std::to_string(names.size()));
        }
        shapes = lengths;
    }
    std::vector<ChunkSource> sources() const {
        std::vector<ChunkSource> all;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            ckpt::ChunkInfo info;
            info.name = names[i];
            info.dtype = ckpt::DType::Bytes;
            info.global_shape = info.local_shape = std::span(shapes).subspan(i, 1);
            info.global_offset = zero;
            info.bytes = tensors[i].size();
            all.push_back({info, tensors[i].data()});
        }
        return all;
    }
};

/// The table's, of every chunk and, where it has several, of every block.
void check_hashes(const Program &program, const std::byte *base, const ObjectLayout &layout) {
    auto bytes = reinterpret_cast<const std::uint8_t *>(base + layout.table_offset);
    auto table = ckpt::ObjectTableView::parse({bytes, layout.table_bytes}, layout.data_bytes);
    BOOST_REQUIRE_MESSAGE(table.ok(), table.status().message());
    BOOST_REQUIRE(table->count() == program.tensors.size());
    for (std::uint64_t i = 0; i < table->count(); ++i) {
        auto hashes = ckpt::block_hashes(program.tensors[i]);
        ckpt::ChunkInfo chunk = table->chunk(i);
        BOOST_TEST(chunk.checksum == ckpt::combine_block_hashes(hashes), chunk.name);
        if (hashes.size() == 1) hashes.clear();
        BOOST_TEST(std::ranges::equal(chunk.blocks, hashes), chunk.name);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(save)

BOOST_AUTO_TEST_CASE(no_chunks_are_no_error) {
    auto memory = ckpt::Mapping::anonymous(1 << 20);
    BOOST_REQUIRE(memory.ok());
    ObjectWriter writer(SaveTarget{memory->base(), 1 << 20, TrainStep(1), SlotIndex(0), nullptr, false},
                        ckpt::ObjectIdentity{TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"}, 2);
    BOOST_TEST(writer.add({}).ok());
    BOOST_TEST(writer.finish().ok());
}

BOOST_AUTO_TEST_CASE(chunks_of_any_lengths_by_any_number_of_threads) {
    Program program;
    auto memory = ckpt::Mapping::anonymous(room);
    BOOST_REQUIRE(memory.ok());
    constexpr std::pair<unsigned, bool> ways[] = {{1, false},  {2, false}, {3, false},
                                                  {16, false}, {1, true},  {3, true}};
    for (auto [threads, fresh] : ways) {
        memory = ckpt::Mapping::anonymous(room);
        BOOST_REQUIRE(memory.ok());
        ObjectWriter writer(SaveTarget{memory->base(), room, TrainStep(1), SlotIndex(0), nullptr, fresh},
                            ckpt::ObjectIdentity{TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"}, threads);
        auto sources = program.sources();
        BOOST_REQUIRE(writer.add(sources).ok());
        for (std::size_t i = 0; i < sources.size(); ++i) {
            const auto &tensor = program.tensors[i];
            BOOST_TEST((tensor.empty() || std::memcmp(memory->base() + sources[i].info.offset, tensor.data(),
                                                      tensor.size()) == 0));
        }
        auto layout = writer.finish();
        BOOST_REQUIRE(layout.ok());
        check_hashes(program, memory->base(), *layout);
    }
}

/// Parities are made of these bytes, too; a slot has another step's there.
BOOST_AUTO_TEST_CASE(what_lies_between_chunks_is_zeros) {
    Program program;
    auto memory = ckpt::Mapping::anonymous(room);
    BOOST_REQUIRE(memory.ok());
    for (unsigned threads : {1u, 3u}) {
        std::memset(memory->base(), 0xaa, room);
        ObjectWriter writer(SaveTarget{memory->base(), room, TrainStep(1), SlotIndex(0)},
                            ckpt::ObjectIdentity{TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"}, threads);
        auto sources = program.sources();
        BOOST_REQUIRE(writer.add(sources).ok());
        std::uint64_t end = 0;
        for (const auto &source : sources) {
            for (; end < source.info.offset; ++end)
                if (memory->base()[end] != std::byte{0}) BOOST_FAIL("byte " + std::to_string(end));
            end = source.info.offset + source.info.bytes;
        }
    }
}

/// A save of `count` chunks of 9000 bytes, `at_once` to each add(); `twice`: one of the names comes again.
Result<ObjectLayout> save_many(std::byte *memory, std::size_t count, std::size_t at_once, bool twice) {
    static const std::vector<std::byte> tensor(9000, std::byte{7});
    static const std::vector<std::uint64_t> shape{9000}, zero{0};
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) names.push_back("weight " + std::to_string((i * 7919) % count));
    if (twice) names.back() = names.front();
    ObjectWriter writer(SaveTarget{memory, room, TrainStep(1), SlotIndex(0)},
                        ckpt::ObjectIdentity{TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"}, 2);
    for (std::size_t first = 0; first < count; first += at_once) {
        std::vector<ChunkSource> sources;
        for (std::size_t i = first; i < std::min(count, first + at_once); ++i)
            sources.push_back(
                {{names[i], ckpt::DType::Bytes, shape, zero, shape, 0, 0, 9000, 0, {}}, tensor.data()});
        DLROVER_TRY(writer.add(sources));
    }
    return writer.finish();
}

BOOST_AUTO_TEST_CASE(the_table_that_is_made_meanwhile_has_every_checksum) {
    auto memory = ckpt::Mapping::anonymous(room);
    BOOST_REQUIRE(memory.ok());
    for (std::size_t at_once : {1u, 7u, 3000u}) {
        auto layout = save_many(memory->base(), 3000, at_once, false);
        BOOST_REQUIRE(layout.ok());
        ObjectSource source{memory->base(), room, *layout, false, nullptr, nullptr};
        auto reader = ObjectReader::open(source, {0, 1, "lineage"}, 2);  // compares them
        BOOST_REQUIRE_MESSAGE(reader.ok(), reader.status().message());
        BOOST_TEST(reader->count() == 3000u);
        BOOST_TEST(reader->chunk(1).name == "weight 1919");
    }
}

BOOST_AUTO_TEST_CASE(a_name_that_comes_twice_is_refused_however_it_was_added) {
    auto memory = ckpt::Mapping::anonymous(room);
    BOOST_REQUIRE(memory.ok());
    for (std::size_t at_once : {1u, 7u, 3000u})
        BOOST_TEST(!save_many(memory->base(), 3000, at_once, true).ok(), at_once << " at once");
}

BOOST_AUTO_TEST_CASE(what_a_thread_does_first_and_the_loop_are_both_done) {
    for (unsigned threads : {1u, 2u, 5u})
        for (std::uint64_t count : {0u, 1u, 3u, 1000u}) {
            std::vector<std::atomic<int>> done(count);
            int first = 0;
            parallel_for(
                count, threads, [&](std::uint64_t i) { ++done[i]; }, [&] { ++first; });
            BOOST_TEST(first == 1);
            BOOST_TEST(std::ranges::all_of(done, [](const auto &n) { return n == 1; }));
        }
    std::atomic<int> running{0};
    auto fails = [] { throw std::bad_alloc(); };
    auto body = [&](std::uint64_t) {
        ++running;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --running;
    };
    BOOST_CHECK_THROW(parallel_for(20, 3, body, fails), std::bad_alloc);
    BOOST_TEST(running == 0);  // no thread is left behind
}

BOOST_AUTO_TEST_SUITE_END()
