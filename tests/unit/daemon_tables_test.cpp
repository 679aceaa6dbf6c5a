// SPDX-License-Identifier: Apache-2.0
// The tables of a step that a world of another size goes on from: what they take of the loop's time.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "ckpt/block_kernel.h"
#include "common/manual_loop.h"
#include "daemon/group_tables.h"
#include "daemon/seal_bounds.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

constexpr std::uint64_t mib = 1u << 20;
constexpr GenerationId g1{Term(1), 1};
const CheckpointId step5{g1, TrainStep(5)};
const Rank rank0(0), rank1(1);
const NodeIndex n1(1), n2(2), n3(3);

/// Node 1, which holds objects; nodes 2 and 3 ask for their tables.
struct Holder {
    ManualLoop loop;
    MemoryKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{0};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    Arena arena{{loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false}};
    std::vector<std::pair<NodeIndex, MoveWord>> sent;
    std::vector<Rank> damaged;
    GroupTables tables{
        {loop, arena, prefaulter, budget, 1000},
        {[this](NodeIndex to, const MoveWord &word) { sent.emplace_back(to, word); },
         [](NodeIndex) { return std::string("n"); }, [](Rank, const CheckpointId &) { return false; },
         [this](Rank rank, const CheckpointId &, SlotIndex) { damaged.push_back(rank); }}};

    void save(Rank rank, std::uint64_t table_bytes, std::uint64_t wrong = 0) {
        auto place = arena.begin(rank, 7, step5.step, g1, table_bytes);
        BOOST_REQUIRE((place.ok() && place->has_value()));
        std::vector<std::uint8_t> zeros(table_bytes);  // as the memory
        local::SealT seal;
        seal.slot = static_cast<std::uint16_t>((*place)->slot.value());
        seal.train_step = 5;
        seal.table_bytes = table_bytes;
        seal.table_xxh3 = ckpt::block_kernel().hash(zeros.data(), zeros.size()) ^ wrong;
        BOOST_REQUIRE(arena.seal(rank, 7, g1, 2, std::move(seal), [](Status) {}).ok());
        loop.advance();
    }
    void ask(NodeIndex from, Rank rank, std::uint64_t at = 0) {
        MoveWord word;
        word.kind = MoveWord::Kind::FetchTable;
        word.rank = rank;
        word.id = step5;
        word.at = at;
        tables.on_word(from, word);
    }
    /// How often the loop came to others before there were so many answers.
    std::size_t turns_until(std::size_t answers) {
        std::size_t turns = 0;
        std::function<void()> other = [&] {
            if (sent.size() < answers && ++turns < 100000) loop.post(other);
        };
        loop.post(other);
        loop.advance();
        BOOST_TEST(sent.size() == answers);
        return turns;
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_tables, Holder)

BOOST_AUTO_TEST_CASE(a_long_table_is_verified_between_what_others_want) {
    save(rank0, 32 * mib + 5);
    ask(n2, rank0);
    BOOST_TEST(sent.empty());
    BOOST_TEST(turns_until(1) >= 32u);
    BOOST_TEST(sent[0].second.bytes.size() == max_table_piece_bytes);
    ask(n2, rank0, max_table_piece_bytes);
    BOOST_TEST(sent.size() == 2u, "a further piece is there at once");
}

BOOST_AUTO_TEST_CASE(who_asks_again_meanwhile_is_answered_once) {
    save(rank0, 4 * mib);
    for (NodeIndex node : {n2, n3, n2, n2}) ask(node, rank0);
    loop.advance();
    BOOST_REQUIRE(sent.size() == 2u);
    BOOST_TEST((sent[0].first == n2 && sent[1].first == n3));
    ask(n2, rank0);
    loop.advance();
    BOOST_TEST(sent.size() == 3u);
}

BOOST_AUTO_TEST_CASE(a_damaged_table_is_told_and_holds_up_no_other) {
    save(rank0, 2 * mib, 1);
    save(rank1, 2 * mib + 9);
    ask(n2, rank0);
    ask(n2, rank1);
    ask(n2, Rank(2));
    loop.advance();
    BOOST_REQUIRE(sent.size() == 3u);
    BOOST_TEST(sent[0].second.text.find("damaged") != std::string::npos);
    BOOST_TEST(!sent[1].second.bytes.empty());
    BOOST_TEST(sent[2].second.text.find("does not hold") != std::string::npos);
    BOOST_TEST((damaged == std::vector{rank0}));
}

BOOST_AUTO_TEST_CASE(this_nodes_own_ranks_get_theirs_in_the_same_way) {
    save(rank0, 3 * mib + 1);
    save(rank1, 64);
    std::uint64_t before = budget.held(1000).bytes;
    tables.on_world(GroupTables::Part{n1, step5, {n1, n1}});
    tables.begin();
    loop.advance();
    BOOST_TEST(tables.whole());
    BOOST_TEST(budget.held(1000).bytes == before + tables.bytes());
    auto memory = tables.memory();
    BOOST_REQUIRE(memory.ok());
    BOOST_TEST(::pwrite((*memory)->get(), "x", 1, 0) == -1);
    std::string again = "/proc/self/fd/" + std::to_string((*memory)->get());
    UniqueFd writable(::open(again.c_str(), O_RDWR | O_CLOEXEC));
    BOOST_TEST(::pwrite(writable.get(), "x", 1, 0) == -1, "however it is opened");
    BOOST_TEST((::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, writable.get(), 0) == MAP_FAILED));
    tables.drop();
    BOOST_TEST(budget.held(1000).bytes == before);
}

BOOST_AUTO_TEST_CASE(a_reader_that_goes_lets_the_object_go) {
    save(rank0, 8 * mib);
    auto nobody = [](auto &&...) { BOOST_ERROR("somebody is told"); };
    auto reader = std::make_unique<TableReader>(loop, arena, TableReader::Hooks{nobody, nobody});
    reader->check(rank0, step5, n2);
    loop.post([&] {
        arena.rewind({}, {Term(1), 2});
        BOOST_TEST(arena.holds(rank0, step5), "it is being read");
        reader.reset();
        arena.rewind({}, {Term(1), 2});
        BOOST_TEST(!arena.holds(rank0, step5));
    });
    loop.advance();
}

BOOST_AUTO_TEST_CASE(no_object_has_a_table_that_is_longer_than_readers_take) {
    local::SealT seal;
    seal.table_bytes = ckpt::max_table_bytes;
    BOOST_TEST(is_within(seal, UINT64_MAX));
    ++seal.table_bytes;
    BOOST_TEST(!is_within(seal, UINT64_MAX));
}

BOOST_AUTO_TEST_SUITE_END()
