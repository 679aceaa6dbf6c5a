// SPDX-License-Identifier: Apache-2.0
// The first world of a requeued job, as the members decide from what their nodes have kept.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "elastic/placement.h"
#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

const GenerationId older{Term(1), 3}, newer{Term(2), 5};

Seal seal(std::uint64_t step, std::uint32_t rank, const GenerationId &generation, std::uint32_t size = 3) {
    return {TrainStep(step), Rank(rank), size, generation};
}

/// The second run of a job; one rank a node. Which objects a node holds is told before it is ready.
struct Second {
    static GroupConfig config(std::uint32_t count, std::uint32_t max, std::uint32_t copies, bool storage) {
        GroupConfig c = TestGroup::config(count, 2, max);
        c.copies = copies;
        c.storage = storage;
        c.slurm_restart_count = 1;
        return c;
    }
    explicit Second(std::vector<std::vector<Seal>> kept, std::uint32_t copies = 1, std::uint32_t max = 3,
                    std::optional<LocalStorage> storage = {})
        : g(config(static_cast<std::uint32_t>(kept.size()), max, copies, storage.has_value())) {
        g.storage = std::move(storage);
        for (std::uint32_t i = 0; i < kept.size(); ++i) {
            g.job_nodes.emplace_back(i);
            g.feed(i, LocalObjects{kept[i]});
        }
        g.start();
    }
    World world() const { return g.world(g.leader()); }
    bool says(const std::string &text) const {
        return std::ranges::any_of(g.actions<Note>(g.leader()), [&](const Note &n) {
            return n.kind == Note::Kind::warning && n.text.find(text) != std::string::npos;
        });
    }
    TestGroup g;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_kept)

BOOST_AUTO_TEST_CASE(a_requeued_job_goes_on_from_what_its_nodes_have_kept) {
    Second s({{seal(9, 0, older)}, {seal(9, 1, older)}, {seal(9, 2, older)}}, 0);
    BOOST_TEST((s.world().restore_step == TrainStep(9)));
    BOOST_TEST((s.world().restore_generation == older));
    BOOST_TEST((s.world().id.term > Term(std::uint64_t{1} << 32)));
    BOOST_TEST((s.world().nodes == nodes({0, 1, 2})));
    BOOST_TEST(s.world().sources.empty());
}

BOOST_AUTO_TEST_CASE(nodes_sit_where_they_have_the_objects) {
    // The node of rank 1 is gone; its object is at node 1, which had rank 2; node 2 is new.
    Second s({{seal(9, 0, older)}, {seal(9, 1, older), seal(9, 2, older)}, {}});
    BOOST_TEST((s.world().nodes == nodes({0, 1, 2}) || s.world().nodes == nodes({0, 2, 1})));
    BOOST_REQUIRE(s.world().sources.size() == 1u);
    BOOST_TEST((s.world().sources.front().node == NodeIndex(1)));
    Second turned({{seal(9, 2, older)}, {seal(9, 0, older)}, {seal(9, 1, older)}}, 0);
    BOOST_TEST((turned.world().nodes == nodes({1, 2, 0})));
    BOOST_TEST((turned.world().restore_step == TrainStep(9)));
}

BOOST_AUTO_TEST_CASE(a_spare_that_has_a_place_s_objects_takes_it) {
    Second s({{seal(9, 0, older)}, {}, {seal(9, 2, older)}, {seal(9, 1, older)}}, 0);
    BOOST_TEST((s.world().nodes == nodes({0, 3, 2})));
    BOOST_TEST((s.world().restore_step == TrainStep(9)));
}

BOOST_AUTO_TEST_CASE(generations_are_not_mixed_and_the_newest_counts) {
    Second mixed({{seal(9, 0, older)}, {seal(9, 1, newer)}, {seal(9, 2, older)}});
    BOOST_TEST(!mixed.world().restore_step.has_value());
    BOOST_TEST(mixed.says("does not hold a whole step"));
    // Step 9 was given up by the generation that began anew from an older one.
    std::vector<std::vector<Seal>> both(3);
    for (std::uint32_t r = 0; r < 3; ++r) both[r] = {seal(9, r, older), seal(7, r, newer)};
    Second given_up(both);
    BOOST_TEST((given_up.world().restore_step == TrainStep(7)));
    BOOST_TEST((given_up.world().restore_generation == newer));
}

BOOST_AUTO_TEST_CASE(a_world_of_another_size_does_without) {
    std::vector<std::vector<Seal>> kept;
    for (std::uint32_t r = 0; r < 3; ++r) kept.push_back({seal(9, r, older, 4)});
    kept[0].push_back(seal(9, 3, older, 4));
    Second s(kept);
    BOOST_TEST(!s.world().restore_step.has_value());
    BOOST_TEST(s.says("3 ranks: it goes on from the beginning"));
}

BOOST_AUTO_TEST_CASE(an_object_elsewhere_needs_a_mover) {
    std::vector<std::vector<Seal>> kept{{seal(9, 0, older)}, {seal(9, 1, older), seal(9, 2, older)}, {}};
    BOOST_TEST(!Second(kept, 0).world().restore_step.has_value());
    BOOST_TEST((Second(kept, 1).world().restore_step == TrainStep(9)));
}

BOOST_AUTO_TEST_CASE(storage_is_asked_too) {
    std::vector<std::vector<Seal>> kept{{seal(9, 0, older)}, {seal(9, 1, older)}, {seal(9, 2, older)}};
    auto stored = [](std::uint64_t step, GenerationId generation) {
        LocalStorage s;
        s.ok = true;
        s.newest = CheckpointId{generation, TrainStep(step)};
        s.world_size = 3;
        s.next_term = Term(4);
        return s;
    };
    BOOST_TEST(Second(kept, 0, 3, stored(8, older)).world().stored_world_size == 0u);
    BOOST_TEST(Second(kept, 0, 3, stored(9, older)).world().stored_world_size == 0u);
    World w = Second(kept, 0, 3, stored(10, older)).world();
    BOOST_TEST(w.stored_world_size == 3u);
    BOOST_TEST((w.restore_step == TrainStep(10)));
    // Whoever came after the run that left the memory.
    BOOST_TEST(Second(kept, 0, 3, stored(5, newer)).world().stored_world_size == 3u);
}

BOOST_AUTO_TEST_CASE(the_first_world_waits_for_every_node_of_the_job) {
    GroupConfig c = Second::config(4, 3, 1, false);
    TestGroup g(c);
    for (std::uint32_t i = 0; i < 4; ++i) g.job_nodes.emplace_back(i);
    g.cut(3);
    for (std::uint32_t i = 0; i < 4; ++i) g.feed(i, LocalObjects{{seal(9, i % 3, older)}});
    g.start();
    BOOST_TEST(g.count<Publish>(1) == 0u);
    g.heal();
    g.run(2s);
    BOOST_TEST(g.count<Publish>(1) == 1u);
}

BOOST_AUTO_TEST_CASE(the_end_says_whether_the_job_comes_back) {
    TestGroup g(TestGroup::config(3, 3, 3));
    for (std::uint32_t i = 0; i < 3; ++i) g.job_nodes.emplace_back(i);
    g.start();
    g.cut(2);
    g.run(8s);
    BOOST_TEST(std::ranges::any_of(g.asked,
                                   [](const AskSlurm &ask) { return ask.what == AskSlurm::What::requeue; }));
    for (std::uint32_t n : {0u, 1u}) {
        BOOST_REQUIRE(g.count<End>(n) == 1u);
        BOOST_TEST((g.actions<End>(n).front().next_run == NextRun::comes));
    }
}

BOOST_AUTO_TEST_CASE(as_many_as_can_be_sit_at_their_places) {
    auto candidate = [](std::uint32_t node, std::vector<std::uint32_t> places) {
        return Candidate{NodeIndex(node), std::move(places)};
    };
    BOOST_TEST((seat({}, 3).empty()));
    std::vector<Candidate> strangers{candidate(4, {}), candidate(2, {}), candidate(7, {})};
    BOOST_TEST((seat(strangers, 2) == nodes({4, 2})));
    // The first one moves on for the second.
    std::vector<Candidate> both{candidate(0, {0, 1}), candidate(1, {0}), candidate(2, {9})};
    BOOST_TEST((seat(both, 3) == nodes({1, 0, 2})));
    std::vector<Candidate> same{candidate(0, {2, 0}), candidate(1, {0, 1}), candidate(2, {1, 2})};
    BOOST_TEST((seat(same, 3) == nodes({0, 1, 2})));
    std::vector<Candidate> ring;
    for (std::uint32_t i = 0; i < 2000; ++i) ring.push_back(candidate(i, {(i + 1) % 2000, (i + 2) % 2000}));
    auto seated = seat(ring, 2000);
    BOOST_REQUIRE(seated.size() == 2000u);
    for (std::uint32_t place = 0; place < 2000; ++place) {
        const auto &has = ring[seated[place].value()].places;
        BOOST_REQUIRE((std::ranges::find(has, place) != has.end()));
    }
}

BOOST_AUTO_TEST_SUITE_END()
