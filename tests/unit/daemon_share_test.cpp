// SPDX-License-Identifier: Apache-2.0
// What an arena takes of its user's share, and gives back.
#include "daemon/arena.h"

#include <boost/test/unit_test.hpp>

#include "common/manual_loop.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

constexpr std::uint32_t alice = 1000, bob = 1001;
constexpr GenerationId generation{Term(1), 1};
constexpr std::uint64_t mib = 1u << 20;

struct SharedNode {
    explicit SharedNode(std::uint64_t user_segments, std::uint64_t available = std::uint64_t{1} << 40)
        : limits{1ull << 30, 0, user_segments}, available_bytes(available) {}
    std::unique_ptr<Arena> arena(std::uint32_t uid) {
        return std::make_unique<Arena>(ArenaServices{loop, keeper, prefaulter, budget},
                                       ArenaOptions{std::to_string(uid) + ".0", uid});
    }
    MemoryBudget::Limits limits;
    ManualLoop loop;
    MemoryKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{[](std::uint64_t) { return Status(Code::system, "no pages in this test"); }};
    std::uint64_t available_bytes;  ///< without what segments have taken: their pages are to come
    MemoryBudget budget{limits, [this] { return available_bytes; }};
};

Result<std::optional<Arena::Place>> begin(Arena &arena, std::uint32_t rank, std::uint64_t step,
                                          std::uint64_t bytes = 1) {
    return arena.begin(Rank(rank), rank + 1, TrainStep(step), generation, bytes);
}

Status seal(Arena &arena, std::uint32_t rank, std::uint64_t step, SlotIndex slot, std::size_t ledger_bytes) {
    local::SealT seal;
    seal.train_step = step;
    seal.slot = static_cast<std::uint16_t>(slot.value());
    seal.ledger.resize(ledger_bytes);
    return arena.seal(Rank(rank), rank + 1, generation, 1, std::move(seal), [](const Status &) {});
}

ArenaTenants ranks_here(std::uint32_t count) {
    ArenaTenants tenants;
    for (std::uint32_t rank = 0; rank < count; ++rank) tenants.own.emplace(rank);
    return tenants;
}

/// As another daemon would get it from the keeper.
std::unique_ptr<Arena> taken_over(SharedNode &node, std::uint32_t uid) {
    auto arena = node.arena(uid);
    for (auto &kept : node.keeper.copy()) {
        auto record = decode_record(kept.value);
        BOOST_REQUIRE(record.ok());
        arena->restore(*parse_record_name(kept.name), *record, std::move(kept.fd));
    }
    arena->finish_restore();
    return arena;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_share)

BOOST_AUTO_TEST_CASE(a_user_holds_no_more_segments_than_his_share) {
    SharedNode node(10);
    auto arena = node.arena(alice), other = node.arena(bob);
    std::uint32_t rank = 0;
    while (arena->prepare(Rank(rank), mib).ok()) BOOST_REQUIRE(++rank < 100);
    BOOST_TEST(rank == 3u);
    auto refused = begin(*arena, rank + 1, 5);
    BOOST_TEST((refused.status().code() == Code::resource_exhausted));
    BOOST_TEST(refused.status().message().find("segments_per_user") != std::string::npos);
    BOOST_TEST(node.budget.held(alice).segments == 9u, "who gets no two slots gets none");
    // What he has he goes on using; others have their own share.
    BOOST_TEST(begin(*arena, 0, 5).ok());
    BOOST_TEST(begin(*other, 0, 5).ok());
    arena->drop();
    BOOST_TEST((node.budget.held(alice) == MemoryBudget::Holding{}));
    BOOST_TEST(node.keeper.copy().size() == 2u, "bob's segment and slot");
}

BOOST_AUTO_TEST_CASE(what_can_not_fit_is_refused_whole) {
    SharedNode node(3072, 10 * mib);
    auto arena = node.arena(alice);
    arena->expect(ranks_here(2));
    Status refused = arena->prepare(Rank(0), 6 * mib);
    BOOST_TEST((refused.code() == Code::resource_exhausted));
    for (const char *part :
         {"24 MiB", "ranks: 2", "slots: 2 of 6.0 MiB", "12 MiB more", "10 MiB", "memory.available_floor"})
        BOOST_TEST(refused.message().find(part) != std::string::npos, part << " in " << refused.message());
    BOOST_TEST((node.budget.held(alice) == MemoryBudget::Holding{}));
    BOOST_TEST(node.keeper.copy().empty());
    BOOST_TEST((begin(*arena, 0, 1, 6 * mib).status().code() == Code::resource_exhausted), "nor is it begun");
    BOOST_TEST(arena->memory().need_bytes == 24 * mib);
}

BOOST_AUTO_TEST_CASE(two_slots_where_memory_is_short) {
    SharedNode node(3072, 10 * mib);
    auto arena = node.arena(alice);
    BOOST_TEST(arena->prepare(Rank(0), 4 * mib).ok());
    BOOST_TEST(node.budget.held(alice).bytes == 8 * mib);
    BOOST_TEST(arena->memory().slots == 2u);
    BOOST_TEST(arena->memory().need_bytes == 8 * mib);
    for (std::uint64_t step = 1; step < 3; ++step) {
        auto place = begin(*arena, 0, step, 4 * mib);
        BOOST_REQUIRE((place.ok() && place->has_value()));
        BOOST_TEST(seal(*arena, 0, step, (*place)->slot, 0).ok());
    }
    auto skipped = begin(*arena, 0, 3, 4 * mib);
    BOOST_TEST((skipped.ok() && !skipped->has_value()));
    arena->complete({generation, TrainStep(2)});
    auto reused = begin(*arena, 0, 3, 4 * mib);
    BOOST_TEST((reused.ok() && reused->has_value()));
    BOOST_TEST(node.budget.held(alice).bytes == 8 * mib);
}

BOOST_AUTO_TEST_CASE(a_slot_that_can_not_grow_leaves_the_others_in_use) {
    SharedNode node(3072, 10 * mib);
    auto arena = node.arena(alice);
    BOOST_TEST(arena->prepare(Rank(0), 2 * mib).ok());
    BOOST_TEST(arena->memory().slots == 3u);
    BOOST_TEST(arena->prepare(Rank(0), 4 * mib).ok(), "of two");
    BOOST_TEST(node.budget.held(alice).bytes == 10 * mib);
    auto first = begin(*arena, 0, 1, 4 * mib);
    auto second = begin(*arena, 0, 2, 4 * mib);
    BOOST_TEST((first.ok() && first->has_value() && second.ok() && second->has_value()));
    auto third = begin(*arena, 0, 3, 4 * mib);
    BOOST_TEST((third.ok() && !third->has_value()), "skipped");
    BOOST_TEST(begin(*arena, 0, 3, mib)->has_value(), "what fits the third goes there");
}

BOOST_AUTO_TEST_CASE(ranks_that_have_not_told_their_size_count_for_slots_only) {
    SharedNode node(3072, 20 * mib);
    auto arena = node.arena(alice);
    arena->expect(ranks_here(8));
    BOOST_TEST(arena->prepare(Rank(0), 4 * mib).ok());
    BOOST_TEST(arena->memory().slots == 2u);
    BOOST_TEST(arena->memory().need_bytes == 64 * mib);
    // 8 MiB are taken; a slot has 2 MiB at least.
    for (std::uint32_t rank = 1; rank < 7; ++rank)
        BOOST_TEST(arena->prepare(Rank(rank), 1).ok() == (rank < 4));
}

BOOST_AUTO_TEST_CASE(all_slots_where_there_is_room_for_all_ranks) {
    SharedNode node(3072, 24 * mib);
    auto arena = node.arena(alice);
    arena->expect(ranks_here(2));
    for (std::uint32_t rank : {0, 1}) BOOST_TEST(arena->prepare(Rank(rank), 4 * mib).ok());
    BOOST_TEST(arena->memory().slots == 3u);
    BOOST_TEST(arena->memory().need_bytes == 24 * mib);
    BOOST_TEST(node.budget.held(alice).bytes == 24 * mib);
    auto again = taken_over(node, alice);
    again->expect(ranks_here(2));
    BOOST_TEST(again->memory().need_bytes == 24 * mib);
}

BOOST_AUTO_TEST_CASE(no_slot_is_on_record_without_a_segment) {
    SharedNode node(64);
    auto arena = node.arena(alice);
    BOOST_TEST(begin(*arena, 0, 5, 0).ok());
    BOOST_TEST(node.budget.held(alice).segments == 1u);
}

BOOST_AUTO_TEST_CASE(ledgers_have_their_share_and_give_it_back) {
    SharedNode node(64);  // 256 KiB of ledgers
    auto arena = node.arena(alice);
    constexpr std::size_t longest = 64u << 10;
    for (std::uint32_t rank = 0; rank < 5; ++rank) {
        auto place = begin(*arena, rank, 5);
        BOOST_REQUIRE((place.ok() && place->has_value()));
        Status sealed = seal(*arena, rank, 5, (*place)->slot, longest);
        BOOST_TEST(sealed.ok() == (rank < 4), sealed.message());
        if (!sealed.ok()) {
            BOOST_TEST((sealed.code() == Code::resource_exhausted));
            BOOST_TEST(seal(*arena, rank, 5, (*place)->slot, 0).ok());
        }
    }
    BOOST_TEST(node.budget.held(alice).noted_bytes == 4 * longest);
    arena->rewind(std::nullopt, {Term(1), 2});
    BOOST_TEST(node.budget.held(alice).noted_bytes == 0u);
}

/// A seal that names 1023 ranks has some 28 KiB in the keeper.
BOOST_AUTO_TEST_CASE(what_seals_say_of_other_ranks_counts) {
    SharedNode node(64);
    auto arena = node.arena(alice);
    std::size_t sealed = 0;
    for (std::uint32_t rank = 0; rank < 20; ++rank) {
        auto place = begin(*arena, rank, 5);
        BOOST_REQUIRE((place.ok() && place->has_value()));
        local::SealT seal;
        seal.train_step = 5;
        seal.slot = static_cast<std::uint16_t>((*place)->slot.value());
        for (std::uint32_t other = 2000; other < 3023; ++other) {
            seal.shared.push_back(std::make_unique<local::SharedWithT>());
            seal.shared.back()->rank = other;
            seal.shared.back()->kept_by = seal.shared.back()->kept_for = ~std::uint64_t{0};
        }
        Status status = arena->seal(Rank(rank), rank + 1, generation, 1, std::move(seal), [](Status) {});
        sealed += status.ok();
        BOOST_TEST((status.ok() || status.code() == Code::resource_exhausted));
    }
    BOOST_TEST(sealed == 8u, "of 64 * 4 KiB");
    std::uint64_t kept = 0;
    for (const auto &record : node.keeper.copy())
        kept += record.name.starts_with("slot/") ? record.value.size() : 0;
    BOOST_TEST(kept <= node.budget.held(alice).noted_bytes + 20 * 512);
    arena->rewind(std::nullopt, {Term(1), 2});
    BOOST_TEST(node.budget.held(alice).noted_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(a_slot_that_is_written_again_holds_one_ledger) {
    SharedNode node(64);
    auto arena = node.arena(alice);
    for (std::uint64_t step = 1; step < 20; ++step) {
        auto place = begin(*arena, 0, step);
        BOOST_REQUIRE((place.ok() && place->has_value()));
        BOOST_TEST(seal(*arena, 0, step, (*place)->slot, 1000).ok());
        arena->complete({generation, TrainStep(step)});
        BOOST_TEST(node.budget.held(alice).noted_bytes <= 3000u);
    }
    BOOST_TEST(node.budget.held(alice).segments == 3u);
}

BOOST_AUTO_TEST_CASE(the_next_daemon_counts_what_the_former_one_granted) {
    SharedNode node(64);
    auto arena = node.arena(alice);
    for (std::uint32_t rank : {0, 1, 2}) {
        auto place = begin(*arena, rank, 5, 3 * mib);
        BOOST_REQUIRE((place.ok() && place->has_value()));
        BOOST_TEST(seal(*arena, rank, 5, (*place)->slot, 500).ok());
        BOOST_TEST(begin(*arena, rank, 6, 3 * mib).ok());
    }
    auto held = node.budget.held(alice);
    BOOST_TEST(held.segments == 6u);
    BOOST_TEST(held.noted_bytes == 1500u);
    arena.reset();
    BOOST_TEST((node.budget.held(alice) == MemoryBudget::Holding{}));
    arena = taken_over(node, alice);
    BOOST_TEST((node.budget.held(alice) == held));
}

BOOST_AUTO_TEST_SUITE_END()
