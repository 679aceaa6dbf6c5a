// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_blocks.h"

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <mutex>
#include <random>
#include <set>

#include "ckpt/checksum.h"

using namespace dlrover;
using namespace dlrover::lib;
using ckpt::checksum_block_bytes;

namespace {

using Shape = std::vector<std::uint64_t>;

/// One rank's only chunk, of UInt16. Counts what is read of it.
class FakePieces final : public RankPieces {
  public:
    explicit FakePieces(Shape shape) : shape_(std::move(shape)) {
        data.resize(ckpt::box_elements(shape_) * 2);
        std::mt19937_64 random(shape_[0]);
        for (std::size_t i = 0; i + 8 <= data.size(); i += 8) {
            std::uint64_t word = random();
            std::memcpy(data.data() + i, &word, 8);
        }
        Shape zero(shape_.size());
        ckpt::ObjectTableWriter writer({TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"});
        ckpt::ChunkInfo chunk{"w", ckpt::DType::UInt16, shape_, zero, shape_, 0, 0, data.size()};
        BOOST_REQUIRE(writer.add_unhashed(chunk).ok());
        writer.set_hashes(0, ckpt::block_hashes(data));
        bytes_ = *writer.finish();
        table_.emplace(*ckpt::ObjectTableView::parse(bytes_, data.size()));
    }
    const ckpt::ObjectTableView &table() const override { return *table_; }
    Status read_bytes(std::uint64_t, std::uint64_t at, std::span<std::byte> out) const override {
        std::lock_guard lock(mutex_);
        if (at + out.size() > data.size()) return Status(Code::internal, "outside of the chunk");
        std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
        if (bad && *bad >= at && *bad < at + out.size()) out[*bad - at] ^= std::byte{4};
        read += out.size();
        ++calls;
        for (std::uint64_t i = at / checksum_block_bytes; i * checksum_block_bytes < at + out.size(); ++i)
            blocks.insert(i);
        return {};
    }
    Status read_part_into(std::uint64_t, std::span<const std::uint64_t>, std::span<const std::uint64_t>,
                          const ckpt::BoxPlace &, std::span<std::byte>) const override {
        return Status(Code::internal, "blocks are not read so");
    }
    bool forget(std::uint64_t) const override {
        if (stays_bad) return between;
        bad.reset();
        return between;
    }
    Status wrong_chunk(std::uint64_t) const override { return Status(Code::corrupt, "wrong"); }

    const Shape &shape() const { return shape_; }
    std::vector<std::byte> data;
    mutable std::optional<std::uint64_t> bad;  ///< this byte comes wrong
    bool between = true, stays_bad = true;     ///< a cache; not only there
    mutable std::uint64_t read = 0, calls = 0;
    mutable std::multiset<std::uint64_t> blocks;

  private:
    Shape shape_;
    std::vector<std::uint8_t> bytes_;
    std::optional<ckpt::ObjectTableView> table_;
    mutable std::mutex mutex_;
};

class FakeSource final : public PieceSource {
  public:
    explicit FakeSource(const FakePieces &pieces) : pieces_(pieces) {}
    std::uint32_t ranks() const override { return 1; }
    std::vector<std::uint32_t> nearest() const override { return {0}; }
    Result<const ckpt::ObjectTableView *> find_table(std::uint32_t) override { return &pieces_.table(); }
    Status load_tables(unsigned) override { return {}; }
    const ckpt::ObjectTableView &table(std::uint32_t) const override { return pieces_.table(); }
    Result<const RankPieces *> pieces(std::uint32_t) override { return &pieces_; }
    Status read_chunk(std::uint32_t, std::uint64_t, std::span<std::byte>, unsigned) override { return {}; }
    Status judge(Status why) const override { return why; }

  private:
    const FakePieces &pieces_;
};

/// A part of the chunk, and a larger array with a place for it.
struct Part {
    Shape offset, shape, whole, place;
    ckpt::BoxRuns runs(const FakePieces &from) const {
        return ckpt::BoxRuns({from.shape(), offset}, {whole, place}, shape, 2);
    }
};

Part any_part(const Shape &of, std::mt19937 &random) {
    Part part;
    auto below = [&](std::uint64_t n) { return random() % n; };
    for (std::uint64_t n : of) {
        bool all = below(3) == 0;
        part.shape.push_back(all ? n : 1 + below(n));
        part.offset.push_back(below(n - part.shape.back() + 1));
        bool tight = below(2) == 0;
        part.place.push_back(tight ? 0 : below(3));
        part.whole.push_back(part.shape.back() + part.place.back() + (tight ? 0 : below(3)));
    }
    return part;
}

/// By all stretches, one after the other.
std::set<std::uint64_t> touched(ckpt::BoxRuns runs) {
    std::set<std::uint64_t> blocks;
    for (; !runs.done(); runs.next())
        for (std::uint64_t at = runs.a(); at < runs.a() + runs.bytes(); at += 2)
            blocks.insert(at / checksum_block_bytes);
    return blocks;
}

std::vector<std::byte> expected(const Part &part, const FakePieces &from) {
    std::vector<std::byte> out(ckpt::box_elements(part.whole) * 2, std::byte{0xA5});
    for (ckpt::BoxRuns runs = part.runs(from); !runs.done(); runs.next())
        std::memcpy(out.data() + runs.b(), from.data.data() + runs.a(), runs.bytes());
    return out;
}

Status read(const FakePieces &from, const Part &part, unsigned threads, std::vector<std::byte> &out) {
    out.assign(ckpt::box_elements(part.whole) * 2, std::byte{0xA5});
    FakeSource source(from);
    BlockRead one{0, 0, part.runs(from), blocks_of(part.runs(from))};
    return read_blocks(source, std::span(&one, 1), out, threads);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stored_blocks)

BOOST_AUTO_TEST_CASE(a_walk_goes_on_from_any_byte) {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        Shape of(1 + random() % 4);
        for (auto &n : of) n = 1 + random() % 7;
        Part part = any_part(of, random);
        ckpt::BoxRuns first({of, part.offset}, {part.whole, part.place}, part.shape, 2), jumping = first;
        for (int jump = 0; jump < 20; ++jump) {
            std::uint64_t at = random() % (2 * ckpt::box_elements(of) + 2);
            ckpt::BoxRuns walking = first;
            while (!walking.done() && walking.a() + walking.bytes() <= at) walking.next();
            jumping.skip_to(at);
            for (int step = 0; step < 3; ++step) {
                BOOST_REQUIRE(jumping.done() == walking.done());
                if (walking.done()) break;
                BOOST_REQUIRE(jumping.a() == walking.a());
                BOOST_REQUIRE(jumping.b() == walking.b());
                jumping.next();
                walking.next();
            }
        }
    }
}

/// Of several blocks, the last one short; rows of less and of more than a block, and of one and two of them.
BOOST_AUTO_TEST_CASE(of_any_part_each_block_that_has_some_is_read_once) {
    const Shape shapes[] = {{4'300'123},
                            {8600, 500},
                            {6, 717'000},
                            {3, 5, 7, 40'000},
                            {4'200'000, 1},
                            {7, checksum_block_bytes / 2},
                            {4, checksum_block_bytes}};
    std::mt19937 random(2);
    for (const Shape &shape : shapes) {
        FakePieces pieces(shape);
        for (int round = 0; round < 25; ++round) {
            Part part = any_part(shape, random);
            auto blocks = touched(part.runs(pieces));
            pieces.read = 0;
            pieces.blocks.clear();
            std::vector<std::byte> out;
            BOOST_REQUIRE(read(pieces, part, 1 + random() % 3, out).ok());
            BOOST_REQUIRE((out == expected(part, pieces)));
            BOOST_TEST(std::ranges::equal(pieces.blocks, blocks));
            BOOST_TEST(pieces.read <= blocks.size() * checksum_block_bytes);
        }
    }
}

BOOST_AUTO_TEST_CASE(long_stretches_are_read_by_few_calls) {
    FakePieces pieces({20 * checksum_block_bytes / 2});
    std::uint64_t first = checksum_block_bytes / 4, wanted = 18 * checksum_block_bytes / 2;
    std::vector<std::byte> out;
    BOOST_REQUIRE(read(pieces, {{first}, {wanted}, {wanted}, {0}}, 1, out).ok());
    BOOST_TEST(pieces.read == 19 * checksum_block_bytes);
    BOOST_TEST(pieces.calls == 5u);  // both ends, and what is between in pieces of eight blocks
}

BOOST_AUTO_TEST_CASE(a_wrong_byte_counts_where_its_block_is_read) {
    FakePieces pieces({9, checksum_block_bytes / 2 + 1000});
    std::mt19937 random(3);
    for (int round = 0; round < 60; ++round) {
        Part part = any_part(pieces.shape(), random);
        auto blocks = touched(part.runs(pieces));
        pieces.bad = random() % pieces.data.size();
        pieces.between = round % 2 == 0;
        std::vector<std::byte> out;
        Status status = read(pieces, part, 2, out);
        bool seen = blocks.contains(*pieces.bad / checksum_block_bytes);
        BOOST_TEST((status.code() == (seen ? Code::corrupt : Code::ok)));
        if (!seen) BOOST_TEST((out == expected(part, pieces)));
    }
}

BOOST_AUTO_TEST_CASE(a_chunk_of_one_block_is_verified_too) {
    FakePieces pieces({100, 100});
    Part part{{1, 1}, {2, 2}, {2, 2}, {0, 0}};
    std::vector<std::byte> out;
    BOOST_TEST(read(pieces, part, 1, out).ok());
    BOOST_TEST((out == expected(part, pieces)));
    pieces.bad = 15'000;
    BOOST_TEST((read(pieces, part, 1, out).code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_between_is_read_once_more) {
    FakePieces pieces({3 * checksum_block_bytes});
    pieces.stays_bad = false;
    pieces.bad = checksum_block_bytes + 5;
    Part part{{1000}, {checksum_block_bytes}, {checksum_block_bytes}, {0}};
    std::vector<std::byte> out;
    BOOST_TEST(read(pieces, part, 1, out).ok());
    BOOST_TEST((out == expected(part, pieces)));
    pieces.bad = checksum_block_bytes + 5;
    pieces.between = false;
    BOOST_TEST((read(pieces, part, 1, out).code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(which_chunks_tell_their_blocks) {
    FakePieces one({checksum_block_bytes / 2}), two({checksum_block_bytes / 2 + 1});
    BOOST_TEST(tells_blocks(one.table().chunk(0)));
    ckpt::ChunkInfo chunk = two.table().chunk(0);
    BOOST_TEST(tells_blocks(chunk));
    chunk.blocks = {};
    BOOST_TEST(!tells_blocks(chunk));
}

BOOST_AUTO_TEST_CASE(blocks_are_remembered_by_rank_chunk_and_number) {
    VerifiedBlocks verified;
    const std::uint64_t some[] = {1, 3}, others[] = {1, 2}, last[] = {9};
    std::uint64_t bytes = 9 * checksum_block_bytes + 1;
    BOOST_TEST(!verified.contains(0, 0, some));
    verified.add(0, 0, bytes, some);
    BOOST_TEST(verified.contains(0, 0, some));
    BOOST_TEST(!verified.contains(0, 0, others));
    BOOST_TEST(!verified.contains(0, 1, some));
    BOOST_TEST(!verified.contains(1, 0, some));
    verified.add(0, 0, bytes, others);
    BOOST_TEST(verified.contains(0, 0, others));
    BOOST_TEST(verified.contains(0, 0, some));
    BOOST_TEST(!verified.contains(0, 0, last));
    verified.add_whole(0, 0, bytes);
    BOOST_TEST(verified.contains(0, 0, last));
}

BOOST_AUTO_TEST_SUITE_END()
