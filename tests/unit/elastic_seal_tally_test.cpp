// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "elastic/seal_tally.h"

using namespace dlrover;
using namespace dlrover::elastic;

namespace {

constexpr NodeIndex here(0);
constexpr GenerationId first{Term(1), 1}, second{Term(1), 2};

Seal seal(std::uint64_t step, std::uint32_t rank, GenerationId generation, std::uint32_t world = 2) {
    return Seal{TrainStep(step), Rank(rank), world, generation};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(seal_tally)

BOOST_AUTO_TEST_CASE(complete_when_every_rank_has_sealed) {
    SealTally t;
    t.add(seal(5, 0, first), 8, here);
    BOOST_TEST(!t.newest({}).has_value());
    t.add(seal(5, 0, first), 8, here);
    BOOST_TEST(!t.newest({}).has_value());
    t.add(seal(5, 1, first), 8, here);
    BOOST_TEST((t.newest({})->step == TrainStep(5)));
}

BOOST_AUTO_TEST_CASE(never_from_two_generations_or_world_sizes) {
    SealTally t;
    t.add(seal(5, 0, first), 8, here);
    t.add(seal(5, 1, second), 8, here);
    t.add(seal(5, 1, first, 3), 8, here);
    BOOST_TEST(!t.newest({}).has_value());
}

BOOST_AUTO_TEST_CASE(the_newest_step_then_the_newest_generation) {
    SealTally t;
    for (std::uint32_t rank : {0u, 1u})
        for (std::uint64_t step : {7u, 5u}) {
            t.add(seal(step, rank, first), 8, here);
            t.add(seal(5, rank, second), 8, here);
        }
    BOOST_TEST((t.newest({}) == SealTally::Complete{TrainStep(7), first}));
    t.add(seal(7, 0, second), 8, here);
    t.add(seal(7, 1, second), 8, here);
    BOOST_TEST((t.newest({}) == SealTally::Complete{TrainStep(7), second}));
}

BOOST_AUTO_TEST_CASE(values_that_cannot_be_are_ignored) {
    SealTally t;
    t.add(seal(5, 2, first), 8, here);
    t.add(seal(5, 0, first, 0), 8, here);
    t.add(seal(5, 0, first, 9), 8, here);
    t.add(seal(5, 0, first, 1u << 31), 8, here);
    BOOST_TEST(!t.newest({}).has_value());
}

BOOST_AUTO_TEST_CASE(older_ones_can_be_dropped) {
    SealTally t;
    t.add(seal(5, 0, first, 1), 8, here);
    t.add(seal(6, 0, first, 2), 8, here);
    t.drop_older_than(TrainStep(6));
    BOOST_TEST(!t.newest({}).has_value());
    t.add(seal(6, 1, first, 2), 8, here);
    BOOST_TEST((t.newest({})->step == TrainStep(6)));
}

// Ranks that skip different saves fill their slots with steps that the others do not have: without this word
// they never save again.
BOOST_AUTO_TEST_CASE(a_step_that_a_rank_has_passed_is_void) {
    const GenerationId g{Term(1), 1};
    SealTally t;
    auto seal = [&](std::uint32_t rank, std::uint64_t step) {
        t.add(Seal{TrainStep(step), Rank(rank), 2, g}, 2, here);
    };
    seal(0, 60);
    seal(1, 60);
    BOOST_TEST(!t.void_below(g, TrainStep(60), {}, {}).has_value());
    seal(0, 80);
    BOOST_TEST(!t.void_below(g, TrainStep(60), {}, {}).has_value());  // rank 1 may still come to it
    seal(1, 100);
    BOOST_TEST((t.void_below(g, TrainStep(60), {}, {}) == TrainStep(81)));
    t.drop_void(g, TrainStep(81));
    seal(0, 120);
    seal(1, 140);
    BOOST_TEST((t.void_below(g, TrainStep(60), {}, {}) == TrainStep(121)));
    BOOST_TEST((t.newest({})->step == TrainStep(60)));
    BOOST_TEST(!t.void_below(GenerationId{Term(1), 2}, std::nullopt, {}, {}).has_value());
}

// With two slots a node whose slots are full skips the step that the others have just sealed. Were that not
// told, the others would find no slot for the next one, which it seals: no step would be complete again.
BOOST_AUTO_TEST_CASE(a_step_that_a_rank_has_skipped_is_void) {
    const GenerationId g{Term(1), 1};
    SealTally t;
    auto seal = [&](std::uint32_t rank, std::uint64_t step) {
        t.add(Seal{TrainStep(step), Rank(rank), 2, g}, 2, here);
    };
    auto skips = [](std::uint32_t rank, std::uint64_t step) {
        return std::vector<Skip>{{Rank(rank), TrainStep(step)}};
    };
    seal(0, 10);
    BOOST_TEST(!t.void_below(g, std::nullopt, skips(1, 9), {}).has_value());
    BOOST_TEST((t.void_below(g, std::nullopt, skips(1, 10), {}) == TrainStep(11)));
    BOOST_TEST((t.void_below(g, std::nullopt, skips(1, 12), {}) == TrainStep(11)));
    BOOST_TEST(!t.void_below(g, std::nullopt, skips(2, 10), {}).has_value());  // there is no such rank
    seal(1, 10);  // it had it before: what is complete is not given up
    BOOST_TEST(!t.void_below(g, std::nullopt, skips(1, 10), {}).has_value());
}

BOOST_AUTO_TEST_CASE(a_complete_step_that_one_rank_asked_for_on_storage) {
    SealTally t;
    Seal asks = seal(5, 0, first);
    asks.to_storage = true;
    t.add(asks, 8, here);
    BOOST_TEST(!t.newest_asked({}).has_value());
    t.add(seal(5, 1, first), 8, here);
    BOOST_TEST((t.newest_asked({}) == CheckpointId{first, TrainStep(5)}));
    for (std::uint32_t rank : {0u, 1u}) t.add(seal(6, rank, first), 8, here);
    BOOST_TEST((t.newest_asked({}) == CheckpointId{first, TrainStep(5)}));
    // Saved once more by a rank that asks.
    asks.step = TrainStep(6);
    t.add(asks, 8, here);
    BOOST_TEST((t.newest_asked({}) == CheckpointId{first, TrainStep(6)}));
    t.drop_older_than(TrainStep(6));
    BOOST_TEST((t.newest({})->step == TrainStep(6)));
}

BOOST_AUTO_TEST_CASE(safe_when_every_object_is_on_as_many_nodes_as_asked_for) {
    const CheckpointId id{first, TrainStep(5)};
    SealTally t(2);
    for (std::uint32_t rank : {0u, 1u}) t.add(seal(5, rank, first), 8, NodeIndex(rank));
    BOOST_TEST((t.newest({})->step == TrainStep(5)));
    BOOST_TEST(!t.safe(id, {}));
    BOOST_TEST(!t.newest_copied().has_value());
    t.add(seal(5, 0, first), 8, NodeIndex(0));  // once more on the same node
    BOOST_TEST(!t.newest_copied().has_value());
    t.add(seal(5, 0, first), 8, NodeIndex(1));
    BOOST_TEST((t.newest_copied() == id));
    BOOST_TEST(!t.safe(id, {}));
    BOOST_TEST(!t.newest_safe({}).has_value());
    t.add(seal(5, 1, first), 8, NodeIndex(2));
    BOOST_TEST(t.safe(id, {}));
    BOOST_TEST((t.newest_safe({}) == id));
    BOOST_TEST(!t.safe({second, TrainStep(5)}, {}));
    t.drop_older_than(TrainStep(6));
    BOOST_TEST(!t.safe(id, {}));
}

BOOST_AUTO_TEST_CASE(holders_of_a_complete_step) {
    const CheckpointId id{first, TrainStep(5)};
    SealTally t(2);
    t.add(seal(5, 0, first), 8, NodeIndex(3));
    BOOST_TEST(t.world_size(id) == 0u);
    BOOST_TEST(t.holders(id, Rank(0)).empty());
    for (std::uint32_t node : {1u, 2u, 3u}) t.add(seal(5, 1, first), 8, NodeIndex(node));
    BOOST_TEST(t.world_size(id) == 2u);
    BOOST_TEST(t.holders(id, Rank(0)).size() == 1u);
    BOOST_TEST((t.holders(id, Rank(0))[0] == NodeIndex(3)));
    BOOST_TEST(t.holders(id, Rank(1)).size() == 2u);  // no more than make it safe
    BOOST_TEST(t.holders(id, Rank(2)).empty());
}

BOOST_AUTO_TEST_CASE(what_is_removed_counts_no_more) {
    const CheckpointId id{first, TrainStep(5)};
    SealTally t(2);
    for (std::uint32_t rank : {0u, 1u})
        for (std::uint32_t node : {0u, 1u}) t.add(seal(5, rank, first), 8, NodeIndex(node));
    BOOST_TEST(t.safe(id, {}));
    t.remove(seal(5, 1, first), NodeIndex(2));  // has none
    t.remove(seal(6, 1, first), NodeIndex(1));
    t.remove(seal(5, 7, first), NodeIndex(1));
    BOOST_TEST(t.safe(id, {}));
    t.remove(seal(5, 1, first), NodeIndex(0));
    BOOST_TEST(!t.safe(id, {}));
    BOOST_TEST(t.world_size(id) == 2u);
    BOOST_TEST(t.holders(id, Rank(1)).size() == 1u);
    BOOST_TEST((t.holders(id, Rank(1))[0] == NodeIndex(1)));
    t.remove(seal(5, 1, first), NodeIndex(1));
    BOOST_TEST(t.world_size(id) == 0u);
    BOOST_TEST(!t.newest({}).has_value());
    for (std::uint32_t node : {0u, 1u}) t.add(seal(5, 1, first), 8, NodeIndex(node));
    BOOST_TEST(t.safe(id, {}));
}

BOOST_AUTO_TEST_CASE(a_row_without_its_parity_is_worth_less) {
    const CheckpointId id{first, TrainStep(5)};
    SealTally t(2, 3);
    const Parity parity{id, 2, 0, {Rank(0), Rank(1)}};
    for (std::uint32_t rank : {0u, 1u}) t.add(seal(5, rank, first), 8, NodeIndex(rank));
    t.add(parity, 8, NodeIndex(2), true);
    BOOST_TEST(t.safe(id, {}));
    t.remove(seal(5, 1, first), NodeIndex(1));
    BOOST_TEST(!t.safe(id, {}));
    BOOST_TEST(t.world_size(id) == 2u, "it can be made again");
    t.add(seal(5, 1, first), 8, NodeIndex(1));
    Parity other = parity;
    other.ranks = {Rank(0)};
    t.remove(other, NodeIndex(2));
    BOOST_TEST(t.safe(id, {}));
    t.remove(parity, NodeIndex(2));
    BOOST_TEST(!t.safe(id, {}));
    BOOST_TEST(t.world_size(id) == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
