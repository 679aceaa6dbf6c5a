// SPDX-License-Identifier: Apache-2.0
// Saves that find no slot, and ranks that never save.
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Three nodes of one rank, without copies; node 1 leads.
struct Fixture {
    Fixture() : g(TestGroup::config(3, 2, 3)) {
        for (std::uint32_t i = 0; i < 3; ++i) g.job_nodes.emplace_back(i);
        g.start();
        BOOST_REQUIRE(g.leader() == 1u);
        world = g.world(1);
    }
    void seal(std::uint32_t node, std::uint64_t step) {
        g.feed(node, LocalSealed{Seal{TrainStep(step), Rank(node), 3, world.id}});
    }
    void skip(std::uint32_t node, std::uint64_t step) {
        g.feed(node, LocalSkipped{world.id, {Rank(node), TrainStep(step)}});
    }
    void save(std::uint32_t node, std::uint64_t done, std::uint64_t skipped) {
        RankProgress p;
        p.rank = Rank(node);
        p.saves_done = done;
        p.saves_skipped = skipped;
        g.feed(node, LocalProgress{{p}});
        g.run(1s);  // with the next heartbeats
    }
    std::vector<Note> warnings(std::uint32_t node) {
        auto notes = g.actions<Note>(node);
        std::erase_if(notes, [](const Note &n) { return n.kind != Note::Kind::warning; });
        return notes;
    }
    TestGroup g;
    World world;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(skips)

// Not by the next heartbeat: the next save may be near.
BOOST_AUTO_TEST_CASE(what_others_have_sealed_of_a_skipped_step_gives_way_at_once) {
    Fixture f;
    f.seal(0, 5);
    f.seal(1, 5);
    f.skip(2, 5);
    for (std::uint32_t node : {0u, 1u, 2u}) {
        auto told = f.g.actions<StepsVoid>(node);
        BOOST_REQUIRE_MESSAGE(told.size() == 1u, "node " << node << ": " << told.size());
        BOOST_TEST((told[0].below == TrainStep(6)));
        BOOST_TEST((told[0].generation == f.world.id));
    }
}

BOOST_AUTO_TEST_CASE(so_it_does_where_the_skip_is_told_first) {
    Fixture f;
    f.skip(2, 5);
    f.skip(2, 4);  // a late word
    f.seal(0, 5);
    BOOST_TEST(f.g.actions<StepsVoid>(0).size() == 1u);
    f.seal(0, 6);
    f.seal(1, 6);
    f.seal(2, 6);
    BOOST_TEST(f.g.actions<StepsVoid>(0).size() == 1u);
    BOOST_TEST((f.g.actions<StepComplete>(0).back().step == TrainStep(6)));
}

// A slot that keeps it would be missed by the next save, which the next node would then have in vain, and so
// on.
BOOST_AUTO_TEST_CASE(what_is_sealed_after_that_word_gives_way_at_once_too) {
    Fixture f;
    f.skip(2, 5);
    f.seal(0, 5);
    f.seal(1, 5);
    auto told = f.g.actions<StepsVoid>(1);
    BOOST_REQUIRE(told.size() == 2u);
    BOOST_TEST((told[1].below == TrainStep(6) && told[1].generation == f.world.id));
    f.seal(1, 6);
    BOOST_TEST(f.g.actions<StepsVoid>(1).size() == 2u);
}

// Its daemon is missing: until it is given up, a minute later, no other node would have had a free slot.
BOOST_AUTO_TEST_CASE(a_spare_that_never_comes_keeps_no_slot) {
    TestGroup g(TestGroup::config(4, 2, 3));
    for (std::uint32_t i = 0; i < 4; ++i) g.job_nodes.emplace_back(i);
    g.cut(3);
    g.start();
    GenerationId world = g.world(1).id;
    for (std::uint32_t node : {0u, 1u}) g.feed(node, LocalSealed{Seal{TrainStep(5), Rank(node), 3, world}});
    g.feed(2, LocalSkipped{world, {Rank(2), TrainStep(5)}});
    for (std::uint32_t node : {0u, 1u, 2u}) {
        auto told = g.actions<StepsVoid>(node);
        BOOST_REQUIRE(!told.empty());
        BOOST_TEST((told.back().below == TrainStep(6) && told.back().generation == world));
    }
}

BOOST_AUTO_TEST_CASE(a_skip_of_another_generation_says_nothing) {
    Fixture f;
    GenerationId before = f.world.id;
    f.g.fail(2, 2, 9, 7);
    f.g.run(3s);
    f.world = f.g.world(1);
    BOOST_REQUIRE((f.world.id > before));
    f.seal(0, 5);
    f.g.feed(2, LocalSkipped{before, {Rank(2), TrainStep(5)}});
    BOOST_TEST(f.g.actions<StepsVoid>(0).empty());
    f.seal(1, 5);
    f.seal(2, 5);
    BOOST_TEST((f.g.actions<StepComplete>(0).back().step == TrainStep(5)));
}

BOOST_AUTO_TEST_CASE(saves_of_one_rank_alone_are_told_to_be_of_no_use) {
    Fixture f;
    f.save(0, 2, 2);
    BOOST_TEST(f.warnings(1).empty());
    f.save(0, 2, 3);
    f.save(0, 2, 4);
    auto told = f.warnings(1);
    BOOST_REQUIRE(told.size() == 1u);
    BOOST_TEST(
        told[0].text.find("rank 0's saves are skipped, and 2 of 3 ranks (the first is rank 1) have saved "
                          "nothing") == 0u,
        told[0].text);
}

BOOST_AUTO_TEST_CASE(ranks_that_all_save_hear_nothing) {
    Fixture f;
    f.save(1, 1, 0);
    f.save(2, 0, 1);
    f.save(0, 2, 9);
    BOOST_TEST(f.warnings(1).empty());
}

/// What `dlrover status` calls skipped saves: not those of rank 0 alone, and a step that several ranks skip
/// is one.
BOOST_AUTO_TEST_CASE(skipped_saves_of_all_ranks_are_counted) {
    Fixture f;
    auto step = [&](std::uint64_t done) {
        RankProgress p;
        p.rank = Rank(0);
        p.step = TrainStep(done - 1);
        p.steps_done = done;
        f.g.feed(0, LocalProgress{{p}});
        f.g.run(300ms);
    };
    step(1);
    f.skip(1, 5);
    f.skip(2, 5);
    f.skip(2, 7);
    step(8);
    BOOST_TEST(f.g.view(1).goodput.checkpoints_skipped == 2u);
    f.skip(1, 9);
    step(10);
    BOOST_TEST(f.g.view(1).goodput.checkpoints_skipped == 3u);
    // A leader that was not there hears of the newest skips again, and counts on.
    f.g.crash(1);
    f.g.boot(1);
    f.g.feed(1, LocalReady{true, f.world.id});
    f.g.run(6s);
    BOOST_REQUIRE((f.g.world(0).id == f.world.id));
    f.skip(2, 20);
    step(21);
    BOOST_TEST(f.g.view(f.g.leader()).goodput.checkpoints_skipped == 4u);
}

BOOST_AUTO_TEST_SUITE_END()
