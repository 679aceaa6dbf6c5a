// SPDX-License-Identifier: Apache-2.0
#include "daemon/arena.h"

#include <boost/test/unit_test.hpp>
#include <map>

#include "common/manual_loop.h"
#include "tests/unit/full_keeper.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

const GenerationId g1{Term(1), 1}, g2{Term(1), 2};
const Rank rank0(0);
constexpr ckpt::Holder worker = 7;

struct OneArena {
    ManualLoop loop;
    test::FullKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{0};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    Arena arena{{loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false}};
    std::vector<Code> stored;  ///< what became of the seals, in order
    static constexpr std::uint64_t slot_bytes = 2u << 20;

    std::uint16_t begin(std::uint64_t step, GenerationId generation) {
        auto place = arena.begin(rank0, worker, TrainStep(step), generation, 4096);
        BOOST_REQUIRE(place.ok());
        BOOST_REQUIRE(place->has_value());
        return static_cast<std::uint16_t>((*place)->slot.value());
    }
    void seal(std::uint16_t slot, std::uint64_t step, GenerationId generation, bool to_storage = false,
              std::uint64_t content = 0) {
        local::SealT seal;
        seal.to_storage = to_storage;
        seal.table_xxh3 = content;
        seal.table_bytes = 64;
        seal.train_step = step;
        seal.slot = slot;
        Status status = arena.seal(rank0, worker, generation, 1, std::move(seal),
                                   [this](Status s) { stored.push_back(s.code()); });
        BOOST_TEST(status.ok());
    }
    void save(std::uint64_t step, GenerationId generation) {
        seal(begin(step, generation), step, generation);
        loop.advance();
    }
    std::vector<std::uint64_t> sealed() const {
        std::vector<std::uint64_t> steps;
        for (const auto &seal : arena.seals()) steps.push_back(seal.step.value());
        return steps;
    }
    bool holds(std::uint64_t step, GenerationId generation = g1) {
        return arena.begin_read(rank0, {generation, TrainStep(step)}).ok();
    }
};

using Steps = std::vector<std::uint64_t>;

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_arena, OneArena)

BOOST_AUTO_TEST_CASE(a_seal_is_told_when_it_is_on_record) {
    auto slot = begin(1, g1);
    seal(slot, 1, g1);
    BOOST_TEST(sealed() == Steps{}, boost::test_tools::per_element());
    loop.advance();
    BOOST_TEST((stored == std::vector{Code::ok}));
    BOOST_TEST(sealed() == Steps{1}, boost::test_tools::per_element());
    BOOST_TEST(holds(1));
}

BOOST_AUTO_TEST_CASE(a_size_that_no_slot_can_have_changes_nothing) {
    for (std::uint64_t step : {5u, 6u, 7u}) save(step, g1);
    auto before = arena.memory().need_bytes;
    for (std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - 4096, UINT64_MAX - (1u << 21)})
        BOOST_TEST((arena.begin(rank0, worker, TrainStep(8), g1, bytes).status().code() ==
                    Code::resource_exhausted));
    for (std::uint64_t step : {6u, 7u}) BOOST_TEST(holds(step));
    BOOST_TEST(arena.memory().need_bytes == before);
}

BOOST_AUTO_TEST_CASE(a_seal_that_the_keeper_refuses_is_taken_back) {
    save(1, g1);
    auto slot = begin(2, g1);
    keeper.refused = "slot/";
    seal(slot, 2, g1);
    BOOST_TEST(sealed() == Steps{1}, boost::test_tools::per_element());
    loop.advance();
    BOOST_TEST((stored == std::vector{Code::ok, Code::resource_exhausted}));
    BOOST_TEST(sealed() == Steps{1}, boost::test_tools::per_element());
    BOOST_TEST(!holds(2));
    BOOST_TEST(keeper.count("slot/") == 1u, "the record of the grant goes too");
    keeper.refused.clear();
    save(2, g1);
    save(3, g1);
    BOOST_TEST(holds(1));
    BOOST_TEST(holds(2));
    BOOST_TEST(holds(3));
}

BOOST_AUTO_TEST_CASE(a_refusal_that_comes_late_takes_nothing_else_back) {
    save(1, g1);
    auto slot = begin(2, g1);
    keeper.refused = "slot/";
    seal(slot, 2, g1);
    arena.rewind(CheckpointId{g1, TrainStep(1)}, g2);
    keeper.refused.clear();
    seal(begin(2, g2), 2, g2);
    loop.advance();
    BOOST_TEST((stored == std::vector{Code::ok, Code::resource_exhausted, Code::ok}));
    BOOST_TEST(holds(2, g2));
    BOOST_TEST(!holds(2, g1));
}

BOOST_AUTO_TEST_CASE(seals_come_back_from_their_records) {
    save(1, g1);
    auto slot = begin(2, g1);
    keeper.refused = "slot/";
    seal(slot, 2, g1);
    loop.advance();
    Arena next({loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false});
    for (auto &kept : keeper.copy()) {
        auto record = decode_record(kept.value);
        BOOST_REQUIRE(record.ok());
        next.restore(*parse_record_name(kept.name), *record, std::move(kept.fd));
    }
    next.finish_restore();
    BOOST_REQUIRE(next.seals().size() == 1u);
    BOOST_TEST(next.seals()[0].step.value() == 1u);
}

BOOST_AUTO_TEST_CASE(a_checkpoint_whose_memory_the_keeper_refuses_is_taken_back) {
    save(1, g1);
    keeper.refused = "segment/";
    auto slot = begin(2, g1);
    loop.advance();
    seal(slot, 2, g1);
    loop.advance();
    BOOST_TEST((stored == std::vector{Code::ok, Code::resource_exhausted}));
    BOOST_TEST(sealed() == Steps{1}, boost::test_tools::per_element());
    BOOST_TEST(!holds(2));
    BOOST_TEST(keeper.count("slot/") == 1u);
    BOOST_TEST(arena.memory().bytes == slot_bytes, "it is given back");
    keeper.refused.clear();
    save(2, g1);
    BOOST_TEST(holds(2));
    BOOST_TEST(keeper.count("segment/") == 2u);
}

BOOST_AUTO_TEST_CASE(memory_that_the_keeper_refuses_is_given_back_before_it_is_used) {
    keeper.refused = "segment/";
    BOOST_TEST(arena.prepare(rank0, 4096).ok());
    BOOST_TEST(arena.memory().bytes == 3 * slot_bytes);
    loop.advance();
    BOOST_TEST(arena.memory().bytes == 0u);
    BOOST_TEST(budget.held(1000).bytes == 0u);
    keeper.refused.clear();
    save(1, g1);
    BOOST_TEST(holds(1));
}

BOOST_AUTO_TEST_CASE(memory_that_is_on_record_stays_where_its_news_are_refused) {
    BOOST_TEST(arena.prepare(rank0, 4096).ok());
    loop.advance();
    keeper.refused = "segment/";
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (arena.memory().ready_bytes < 3 * slot_bytes && std::chrono::steady_clock::now() < deadline)
        loop.advance();
    BOOST_TEST(arena.memory().ready_bytes == 3 * slot_bytes);
    save(1, g1);
    BOOST_TEST(holds(1));
}

/// The keeper has answered to nobody about the first part.
BOOST_AUTO_TEST_CASE(an_object_that_lacks_a_part_of_its_memory_does_not_come_back) {
    auto slot = begin(1, g1);
    BOOST_TEST(arena.abort(rank0, SlotIndex(slot), worker).ok());
    auto place = arena.begin(rank0, worker, TrainStep(1), g1, slot_bytes + 1);
    BOOST_REQUIRE((place.ok() && place->has_value()));
    BOOST_REQUIRE((*place)->segments.size() == 2u);
    seal(static_cast<std::uint16_t>((*place)->slot.value()), 1, g1);
    loop.advance();
    for (std::size_t lost : {0, 1}) {
        Arena next({loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false});
        auto name = "segment/7.0/" + std::to_string((*place)->segments[lost].id.value());
        for (auto &kept : keeper.copy())
            if (kept.name != name)
                next.restore(*parse_record_name(kept.name), *decode_record(kept.value), std::move(kept.fd));
        next.finish_restore();
        BOOST_TEST(next.seals().size() == lost, "it lies in the first part alone");
        BOOST_TEST(next.memory().bytes == lost * slot_bytes);
        loop.advance();
    }
}

/// memory.slots was lowered while the group ran.
BOOST_AUTO_TEST_CASE(a_daemon_with_fewer_slots_keeps_what_there_is) {
    for (std::uint64_t step : {1, 2, 3}) save(step, g1);
    Arena next({loop, keeper, prefaulter, budget}, {"7.0", 1000, 2, false});
    BOOST_TEST(next.slots(rank0) == 2u);
    for (auto &kept : keeper.copy())
        next.restore(*parse_record_name(kept.name), *decode_record(kept.value), std::move(kept.fd));
    next.finish_restore();
    BOOST_TEST(next.seals().size() == 3u);
    BOOST_TEST(next.slots(rank0) == 3u);
    for (std::uint64_t step : {1, 2, 3}) {
        auto object = next.begin_read(rank0, {g1, TrainStep(step)});
        BOOST_REQUIRE(object.ok());
        next.end_read(rank0, object->place.slot);
    }
    next.complete({g1, TrainStep(3)});
    BOOST_TEST(next.prepare(rank0, 4096).ok());
    auto place = next.begin(rank0, worker, TrainStep(4), g1, 4096);
    BOOST_REQUIRE(place.ok());
    BOOST_TEST(place->has_value());
    next.keep_sealed();
    Arena again({loop, keeper, prefaulter, budget}, {"7.0", 1000, 2, false, 1, 1});
    again.adopt(next);
    BOOST_TEST(again.holds(rank0, {g1, TrainStep(3)}));
    BOOST_TEST(again.prepare(rank0, 8u << 20).ok());
}

BOOST_AUTO_TEST_CASE(of_a_step_that_is_sealed_again_the_first_object_counts) {
    CheckpointId id{g1, TrainStep(1)};
    auto first = begin(1, g1);
    seal(first, 1, g1, false, 7);
    loop.advance();
    local::SealT other;
    other.table_xxh3 = 8;
    BOOST_TEST(arena.differs(rank0, id, other));
    auto again = begin(1, g1);
    BOOST_TEST(again != first);
    seal(again, 1, g1, true, 8);
    loop.advance();
    BOOST_TEST((stored == std::vector{Code::ok, Code::ok}));
    BOOST_TEST((sealed() == Steps{1}));
    BOOST_TEST(arena.seals()[0].to_storage);
    auto object = arena.begin_read(rank0, id);
    BOOST_REQUIRE(object.ok());
    BOOST_TEST(object->seal.table_xxh3 == 7u);
    BOOST_TEST(object->place.slot.value() == first);
}

BOOST_AUTO_TEST_CASE(a_seal_that_asks_for_storage_does_so_after_a_restart) {
    seal(begin(1, g1), 1, g1, true);
    loop.advance();
    save(1, g1);  // once more, without a word: the request stays
    save(2, g1);
    Arena next({loop, keeper, prefaulter, budget}, {"7.0", 1000, 3, false});
    for (auto &kept : keeper.copy())
        next.restore(*parse_record_name(kept.name), *decode_record(kept.value), std::move(kept.fd));
    next.finish_restore();
    for (const Arena *a : {&arena, &next}) {
        std::map<std::uint64_t, bool> asked;
        for (const auto &seal : a->seals()) asked[seal.step.value()] = seal.to_storage;
        BOOST_TEST((asked == std::map<std::uint64_t, bool>{{1, true}, {2, false}}));
    }
}

/// A copy of another node's rank.
struct Guests : OneArena {
    void copy(Rank rank, std::uint64_t step) {
        auto holder = ckpt::lasting_holder | step;
        auto place = arena.begin_copy(rank, holder, {g1, TrainStep(step)}, 4096, {});
        BOOST_REQUIRE((place.ok() && place->has_value()));
        local::SealT object;
        object.train_step = step;
        object.slot = static_cast<std::uint16_t>((*place)->slot.value());
        BOOST_TEST(arena.seal(rank, holder, g1, 4, std::move(object), [](Status) {}).ok());
        loop.advance();
    }
};

BOOST_FIXTURE_TEST_CASE(slots_of_ranks_that_have_gone_elsewhere_are_given_back_once_nothing_needs_them,
                        Guests) {
    const Rank kept(1), gone(2);
    for (std::uint64_t step : {4u, 5u})
        for (Rank rank : {kept, gone}) copy(rank, step);
    save(5, g1);
    BOOST_TEST(arena.memory().bytes == 5 * slot_bytes);
    std::set<Rank> ranks{rank0, kept};
    // Nothing is safe yet, as far as is known here.
    BOOST_TEST(!arena.keep_ranks(ranks));
    BOOST_TEST(arena.memory().bytes == 5 * slot_bytes);
    // 5 is safe: 4 is not needed, but a word of the leader keeps it.
    arena.complete({g1, TrainStep(5)}, CheckpointId{g1, TrainStep(4)});
    BOOST_TEST(!arena.keep_ranks(ranks));
    arena.complete({g1, TrainStep(5)});
    auto read = arena.begin_read(gone, {g1, TrainStep(4)});
    BOOST_REQUIRE(read.ok());
    BOOST_TEST(!arena.keep_ranks(ranks), "somebody reads it");
    arena.end_read(gone, read->place.slot);
    BOOST_TEST(arena.keep_ranks(ranks));
    BOOST_TEST(arena.memory().bytes == 4 * slot_bytes);
    BOOST_TEST(arena.holds(gone, {g1, TrainStep(5)}));
    // A slot that a mover may still write into is not given back.
    auto holder = ckpt::lasting_holder | 99;
    auto place = arena.begin_copy(gone, holder, {g1, TrainStep(6)}, 4096, {});
    BOOST_REQUIRE((place.ok() && place->has_value()));
    arena.complete({g1, TrainStep(7)});
    BOOST_TEST(arena.keep_ranks(ranks));
    BOOST_TEST(!arena.holds(gone, {g1, TrainStep(5)}));
    BOOST_TEST(arena.memory().bytes == 4 * slot_bytes);
    BOOST_TEST(arena.abort(gone, (*place)->slot, holder).ok());
    BOOST_TEST(!arena.keep_ranks(ranks));
    BOOST_TEST(arena.memory().bytes == 3 * slot_bytes);
    BOOST_TEST(budget.held(1000).bytes == 3 * slot_bytes);
    loop.advance();
    BOOST_TEST(keeper.count("segment/") == 3u);
    // Those that stay keep what can be written again.
    BOOST_TEST(arena.holds(kept, {g1, TrainStep(4)}));
}

BOOST_AUTO_TEST_SUITE_END()
