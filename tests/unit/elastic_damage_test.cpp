// SPDX-License-Identifier: Apache-2.0
// Checkpoints that turn out to be damaged in memory: what a group goes on from, and when it ends.
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

TestGroup::Storage stored(std::uint64_t step, std::uint32_t world_size) {
    TestGroup::Storage s;
    s.ok = true;
    s.newest = CheckpointId{{Term(4), 9}, TrainStep(step)};
    s.world_size = world_size;
    s.next_term = Term(std::uint64_t{1} << 32);
    return s;
}

GroupConfig two_nodes(bool storage) {
    GroupConfig c = TestGroup::config(2, 2, 2);
    c.storage = storage;
    return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_damage)

BOOST_AUTO_TEST_CASE(where_the_only_checkpoint_is_damaged_the_group_ends) {
    for (bool with_folder : {false, true}) {
        TestGroup g(two_nodes(with_folder));
        if (with_folder) g.storage = stored(0, 0);
        if (with_folder) g.storage->newest.reset();
        g.start();
        GenerationId id = g.world(0).id;
        for (std::uint32_t rank : {0u, 1u}) g.feed(rank, LocalSealed{Seal{TrainStep(41), Rank(rank), 2, id}});
        g.run(1s);
        g.fail(0, 0, 256, 7);
        g.run(3s);
        BOOST_TEST((g.world(0).restore_step == TrainStep(41)));
        g.feed(1, LocalDamaged{{{id, TrainStep(41)}, Rank(1)}});
        g.feed(1, LocalObjects{});
        g.fail(1, 1, 256, 8);
        g.run(3s);
        for (std::uint32_t node : {0u, 1u}) {
            BOOST_REQUIRE(g.count<End>(node) == 1u);
            End end = g.actions<End>(node)[0];
            BOOST_TEST(end.exit_code == 1);
            std::string expected =
                "what rank 1 has saved of step 41 is damaged in the memory of node 1, and no "
                "other whole checkpoint is left in memory";
            BOOST_TEST(end.message.starts_with(expected + (with_folder ? " or on storage:" : ":")),
                       end.message);
        }
    }
}

BOOST_AUTO_TEST_CASE(after_damage_the_group_goes_on_from_what_is_left) {
    TestGroup g(two_nodes(true));
    g.storage = stored(40, 2);
    g.start();
    GenerationId id = g.world(0).id;
    for (std::uint32_t rank : {0u, 1u}) g.feed(rank, LocalSealed{Seal{TrainStep(41), Rank(rank), 2, id}});
    g.run(1s);
    g.feed(1, LocalDamaged{{{id, TrainStep(41)}, Rank(1)}});
    g.feed(1, LocalObjects{});
    g.fail(1, 1, 256, 7);
    g.run(3s);
    BOOST_TEST((g.world(0).restore_step == TrainStep(40)));
    BOOST_TEST(g.count<End>(0) == 0u);
}

BOOST_AUTO_TEST_CASE(what_was_damaged_before_a_newer_step_says_nothing_of_a_lost_one) {
    TestGroup g(two_nodes(false));
    g.start();
    GenerationId id = g.world(0).id;
    auto seal = [&](std::uint64_t step) {
        for (std::uint32_t rank : {0u, 1u})
            g.feed(rank, LocalSealed{Seal{TrainStep(step), Rank(rank), 2, id}});
        g.run(1s);
    };
    seal(41);
    g.feed(1, LocalDamaged{{{id, TrainStep(41)}, Rank(1)}});
    g.feed(1, LocalObjects{});
    seal(42);
    g.feed(1, LocalObjects{});
    g.fail(1, 1, 256, 7);
    g.run(3s);
    BOOST_TEST(!g.world(0).restore_step.has_value());
    BOOST_TEST(g.count<End>(0) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
