// SPDX-License-Identifier: Apache-2.0
// Copies on other nodes, as the members decide: partners, which step, what is freed, who is sent where.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "elastic/placement.h"
#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// One rank a node, one copy; node 1 leads.
struct Fixture {
    static GroupConfig config(std::uint32_t count, std::uint32_t max) {
        GroupConfig c = TestGroup::config(count, 2, max);
        c.copies = 1;
        c.timings.copy_limit = 10s;
        return c;
    }
    explicit Fixture(std::uint32_t count = 3, std::uint32_t max = 3) : g(config(count, max)) {
        for (std::uint32_t i = 0; i < count; ++i) g.job_nodes.emplace_back(i);
        g.start();
        BOOST_REQUIRE(g.leader() == 1u);
    }
    World world() const { return g.world(1); }
    CheckpointId id(std::uint64_t step) const { return {world().id, TrainStep(step)}; }
    NodeIndex partner(std::uint32_t node) const {
        World w = world();
        for (std::size_t i = 0; i < w.nodes.size(); ++i)
            if (w.nodes[i] == NodeIndex(node)) return w.partners[i];
        return NodeIndex(node);
    }
    Seal seal(const CheckpointId &which, std::uint32_t rank) const {
        return {which.step, Rank(rank), static_cast<std::uint32_t>(world().nodes.size()), which.generation};
    }
    void save(std::uint64_t step) {
        World w = world();
        for (std::uint32_t r = 0; r < w.nodes.size(); ++r)
            g.feed(w.nodes[r].value(), LocalSealed{seal(id(step), r)});
        g.run(500ms);
    }
    void copy(const CheckpointId &which) {
        World w = world();
        for (std::uint32_t r = 0; r < w.nodes.size(); ++r)
            g.feed(w.partners[r].value(), LocalSealed{seal(which, r)});
        g.run(500ms);
    }
    std::optional<CheckpointId> protects(std::uint32_t node) const {
        auto all = g.actions<Protect>(node);
        return all.empty() ? std::nullopt : std::optional(all.back().id);
    }
    std::size_t warnings(std::uint32_t node) const {
        auto notes = g.actions<Note>(node);
        return static_cast<std::size_t>(
            std::ranges::count(notes, Note::Kind::warning, [](const Note &n) { return n.kind; }));
    }
    void lose(std::uint32_t node) {
        g.cut(node);
        g.run(4s);
    }
    /// Of a step that was copied.
    std::vector<Seal> held(std::uint32_t node, const CheckpointId &which) const {
        World w = world();
        std::vector<Seal> seals;
        for (std::uint32_t r = 0; r < w.nodes.size(); ++r)
            if (w.nodes[r] == NodeIndex(node) || w.partners[r] == NodeIndex(node))
                seals.push_back(seal(which, r));
        return seals;
    }
    /// Of the step, which is all that it holds.
    void drop(std::uint32_t node, const CheckpointId &which, std::uint32_t rank) {
        LocalObjects left{held(node, which)};
        std::erase_if(left.seals, [&](const Seal &s) { return s.rank == Rank(rank); });
        g.feed(node, LocalDamaged{{which, Rank(rank)}});
        g.feed(node, left);
        g.run(500ms);
    }

    TestGroup g;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_protection)

BOOST_AUTO_TEST_CASE(without_copies_nobody_has_partners_and_a_complete_step_is_freed) {
    TestGroup g(TestGroup::config(2, 2, 2));
    g.start();
    BOOST_TEST(g.world(1).partners.empty());
    for (std::uint32_t r : {0u, 1u}) g.feed(r, LocalSealed{Seal{TrainStep(5), Rank(r), 2, g.world(1).id}});
    g.run(500ms);
    BOOST_TEST(g.count<Protect>(0) == 0u);
    BOOST_REQUIRE(g.count<StepFreed>(0) == 1u);
    BOOST_TEST((g.actions<StepFreed>(0).back().id == CheckpointId{g.world(1).id, TrainStep(5)}));
}

BOOST_AUTO_TEST_CASE(a_partner_is_another_node_and_stays_the_same_after_a_loss) {
    Fixture f(5, 4);
    World before = f.world();
    BOOST_REQUIRE(before.partners.size() == 4u);
    for (std::uint32_t n : {0u, 1u, 2u, 3u}) BOOST_TEST((f.partner(n) != NodeIndex(n)));
    std::map<std::uint32_t, NodeIndex> old;
    for (std::uint32_t n : {0u, 1u, 2u}) old[n] = f.partner(n);
    f.lose(3);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2, 4})));
    for (std::uint32_t n : {0u, 1u, 2u})
        if (old[n] != NodeIndex(3)) BOOST_TEST((f.partner(n) == old[n]), "node " << n);
    for (std::uint32_t n : {0u, 1u, 2u, 4u}) {
        BOOST_TEST((f.partner(n) != NodeIndex(n)));
        BOOST_TEST((f.partner(n) != NodeIndex(3)));
    }
}

BOOST_AUTO_TEST_CASE(a_partner_hangs_on_another_switch) {
    GroupConfig config = Fixture::config(4, 4);
    TestGroup g(config);
    g.job_nodes = nodes({0, 1, 2, 3});
    for (std::uint32_t node = 0; node < 4; ++node) g.feed(node, LocalDomains{{7, 7, 9, 9}});
    g.start();
    World w = g.world(1);
    BOOST_TEST((w.nodes == nodes({0, 1, 2, 3})));
    BOOST_REQUIRE(w.partners.size() == 4u);
    for (std::uint32_t node = 0; node < 4; ++node)
        BOOST_TEST((w.partners[node].value() < 2) != (node < 2), "the partner of node " << node);
}

BOOST_AUTO_TEST_CASE(members_of_a_coding_group_hang_on_different_switches) {
    GroupConfig config = Fixture::config(6, 6);
    config.code = {2, 1};
    TestGroup g(config);
    g.job_nodes = nodes({0, 1, 2, 3, 4, 5});
    for (std::uint32_t node = 0; node < 6; ++node) g.feed(node, LocalDomains{{1, 1, 2, 2, 3, 3}});
    g.start();
    World w = g.world(1);
    BOOST_REQUIRE(w.groups.size() == 6u);
    for (std::uint32_t a = 0; a < 6; ++a)
        for (std::uint32_t b = a + 1; b < 6; ++b)
            BOOST_TEST((w.groups[a] != w.groups[b] || a / 2 != b / 2), a << " and " << b);
    for (std::uint32_t a = 0; a < 6; ++a) BOOST_TEST((w.partners[a].value() / 2 != a / 2));
}

BOOST_AUTO_TEST_CASE(the_first_world_waits_a_moment_for_spares_that_copies_need) {
    GroupConfig config = TestGroup::config(3, 2, 2);
    config.copies = 2;
    TestGroup g(config);
    g.job_nodes = nodes({0, 1, 2});
    g.crash(2);
    for (std::uint32_t node : {0u, 1u}) g.feed(node, LocalReady{false, {}});
    g.run(3s);  // somebody leads
    for (std::uint32_t node : {0u, 1u}) g.feed(node, LocalReady{true, {}});
    g.run(500ms);
    BOOST_TEST(g.count<Publish>(0) == 0u);
    g.boot(2);
    g.run(300ms);
    BOOST_REQUIRE(g.count<Publish>(0) == 1u);
    BOOST_TEST(g.world(0).partners.size() == 4u);
    BOOST_TEST(std::ranges::count(g.world(0).partners, NodeIndex(2)) == 2);
}

BOOST_AUTO_TEST_CASE(a_spare_that_does_not_come_is_not_waited_for) {
    GroupConfig config = TestGroup::config(3, 2, 2);
    config.copies = 2;
    TestGroup g(config);
    g.job_nodes = nodes({0, 1, 2});
    g.crash(2);
    for (std::uint32_t node : {0u, 1u}) g.feed(node, LocalReady{true, {}});
    g.run(4s);
    BOOST_REQUIRE(g.count<Publish>(0) == 1u);
    BOOST_TEST(g.world(0).partners.size() == 2u);
}

BOOST_AUTO_TEST_CASE(one_step_at_a_time_gets_its_copies) {
    Fixture f;
    f.save(5);
    BOOST_TEST((f.protects(0) == f.id(5)));
    f.save(6);
    f.save(7);
    BOOST_TEST((f.protects(0) == f.id(5)));
    BOOST_TEST(!f.g.view(0).safe.has_value());
    f.copy(f.id(5));
    BOOST_TEST((f.g.view(0).safe == f.id(5)));
    BOOST_TEST((f.protects(0) == f.id(7)));
    BOOST_TEST(f.g.count<Protect>(0) == 2u);
}

BOOST_AUTO_TEST_CASE(the_safe_step_is_kept_until_a_newer_one_is) {
    Fixture f;
    f.save(5);
    BOOST_TEST(f.g.count<StepFreed>(0) == 0u);
    f.copy(f.id(5));
    f.save(6);
    StepFreed freed = f.g.actions<StepFreed>(0).back();
    BOOST_TEST((freed.id == f.id(6)));
    BOOST_TEST((freed.keep == f.id(5)));
    BOOST_TEST(!freed.frees(f.id(5)));
    BOOST_TEST(freed.frees(f.id(4)));
    f.copy(f.id(6));
    freed = f.g.actions<StepFreed>(0).back();
    BOOST_TEST((freed.id == f.id(6)));
    BOOST_TEST(freed.frees(f.id(5)));
}

BOOST_AUTO_TEST_CASE(a_spare_that_takes_a_place_is_told_where_the_objects_are) {
    Fixture f(4, 3);
    CheckpointId saved = f.id(5);
    f.save(5);
    f.copy(saved);
    NodeIndex holder = f.partner(2);
    f.lose(2);
    World w = f.world();
    BOOST_TEST((w.nodes == nodes({0, 1, 3})));
    BOOST_TEST((w.restore_step == TrainStep(5)));
    BOOST_TEST((w.restore_generation == saved.generation));
    BOOST_TEST((w.sources == std::vector<ObjectSource>{{Rank(2), holder}}));
    // Fetched, and so on two nodes again; what node 2 kept for another has to be copied once more.
    f.g.feed(3, LocalSealed{f.seal(saved, 2)});
    f.copy(saved);
    BOOST_TEST((f.g.view(0).safe == saved));
}

BOOST_AUTO_TEST_CASE(without_copies_on_time_a_loss_goes_back_to_the_safe_step) {
    Fixture f(4, 3);
    CheckpointId safe = f.id(5);
    f.save(5);
    f.copy(safe);
    f.save(6);
    f.g.fail(0, 0, 9, 1);  // a world goes on from step 6, which has no copies
    BOOST_TEST((f.world().restore_step == TrainStep(6)));
    BOOST_TEST(f.world().sources.empty());
    f.lose(2);
    BOOST_TEST((f.world().restore_step == TrainStep(5)));
    BOOST_TEST((f.world().restore_generation == safe.generation));
    BOOST_TEST(f.world().sources.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_node_without_its_partner_stops_the_waiting_for_copies) {
    Fixture f;
    f.save(5);
    f.copy(f.id(5));
    f.save(6);
    f.g.feed(2, LocalProtection{false});
    f.g.run(500ms);
    BOOST_TEST(f.warnings(1) == 1u);
    f.save(7);
    StepFreed freed = f.g.actions<StepFreed>(0).back();
    BOOST_TEST(freed.frees(f.id(6)));
    BOOST_TEST(!freed.frees(f.id(5)));
    f.g.feed(2, LocalProtection{true});
    f.g.run(500ms);
    BOOST_TEST((f.protects(0) == f.id(7)));
    f.save(8);
    BOOST_TEST(!f.g.actions<StepFreed>(0).back().frees(f.id(7)));
    f.copy(f.id(7));
    BOOST_TEST((f.g.view(2).safe == f.id(7)));
    BOOST_TEST(f.warnings(1) == 1u);
}

BOOST_AUTO_TEST_CASE(a_word_about_the_partners_of_the_world_before_does_not_count) {
    Fixture f;
    f.save(5);
    f.g.feed(2, LocalProtection{false});
    f.g.run(500ms);
    BOOST_TEST(f.warnings(1) == 1u);
    f.g.fail(0, 0, 9, 1);
    f.g.run(1s);
    f.save(6);
    f.save(7);
    BOOST_TEST(f.warnings(1) == 1u);
    BOOST_TEST((f.protects(0) == CheckpointId{f.world().restore_generation, TrainStep(5)}));
}

BOOST_AUTO_TEST_CASE(copies_that_take_too_long_are_passed_over_and_tried_again) {
    Fixture f;
    f.save(5);
    f.g.run(11s);
    BOOST_TEST(f.warnings(1) == 1u);
    f.save(6);
    BOOST_TEST((f.protects(0) == f.id(6)));
    BOOST_TEST(f.g.actions<StepFreed>(0).back().frees(f.id(5)));
    f.g.run(11s);
    f.save(7);  // the next attempt: nothing more is freed
    BOOST_TEST((f.protects(0) == f.id(6)));
    BOOST_TEST(!f.g.actions<StepFreed>(0).back().frees(f.id(6)));
    f.copy(f.id(6));
    BOOST_TEST((f.g.view(0).safe == f.id(6)));
    BOOST_TEST(f.warnings(1) == 1u);
}

BOOST_AUTO_TEST_CASE(copies_that_come_slowly_are_waited_for) {
    Fixture f;
    f.save(1);
    CheckpointId first = f.id(1);
    World w = f.world();
    for (std::uint32_t r = 0; r < 3; ++r) {
        f.g.run(8s);
        BOOST_TEST(f.warnings(1) == 0u);
        f.g.feed(w.partners[r].value(), LocalSealed{f.seal(first, r)});
    }
    f.g.run(500ms);
    BOOST_TEST((f.g.view(1).safe == first));
    f.save(2);
    f.g.run(11s);
    BOOST_TEST(f.warnings(1) == 1u);
}

BOOST_AUTO_TEST_CASE(a_new_leader_goes_on_with_the_copies_that_have_begun) {
    Fixture f(4, 4);
    f.save(5);
    f.save(6);
    f.g.feed(f.partner(0).value(), LocalSealed{f.seal(f.id(5), 0)});
    f.g.run(500ms);
    f.g.crash(1);
    for (std::uint32_t n : {0u, 2u, 3u}) f.g.feed(n, PeerLink{NodeIndex(1), true});
    f.g.run(3s);
    BOOST_REQUIRE(f.g.leader() == 2u);
    f.g.boot(1);
    f.g.feed(1, LocalObjects{{f.seal(f.id(5), 1), f.seal(f.id(6), 1)}});
    f.g.feed(1, LocalReady{true, f.world().id});
    f.g.run(1s);
    BOOST_TEST(f.g.count<Publish>(0) == 1u);
    BOOST_TEST((f.protects(0) == f.id(5)));
    BOOST_TEST((f.protects(1) == f.id(5)));
    f.copy(f.id(5));
    BOOST_TEST((f.g.view(0).safe == f.id(5)));
    BOOST_TEST((f.protects(0) == f.id(6)));
}

BOOST_AUTO_TEST_CASE(fewer_nodes_go_on_from_what_more_have_in_memory) {
    Fixture f(4, 4);
    CheckpointId five = f.id(5);
    World before = f.world();
    f.save(5);
    f.copy(five);
    f.lose(3);
    World w = f.world();
    BOOST_TEST((w.nodes == nodes({0, 1, 2})));
    BOOST_TEST((w.restore_step == five.step));
    BOOST_TEST((w.restore_generation == five.generation));
    BOOST_TEST(w.memory_world_size == 4u);
    BOOST_REQUIRE(w.sources.size() == 4u);
    for (std::uint32_t r = 0; r < 4; ++r) {
        BOOST_TEST((w.sources[r].rank == Rank(r)));
        BOOST_TEST((w.sources[r].node == NodeIndex(r) || w.sources[r].node == before.partners[r]));
        BOOST_TEST((w.sources[r].node != NodeIndex(3)));
    }
    // Each object gets its copies from one node, and the step is safe again before another one is.
    std::size_t answered = 0;
    for (NodeIndex n : w.nodes) answered += answered_ranks(w, n).size();
    BOOST_TEST(answered == 4u);
    BOOST_TEST((f.protects(1) == five));
    BOOST_TEST((f.g.view(1).safe != five));
    for (NodeIndex n : w.nodes)
        for (Rank rank : answered_ranks(w, n)) {
            Seal seal{five.step, rank, 4, five.generation};
            f.g.feed(f.partner(n.value()).value(), LocalSealed{seal});
        }
    f.g.run(500ms);
    BOOST_TEST((f.g.view(1).safe == five));
}

BOOST_AUTO_TEST_CASE(what_another_size_saved_is_freed_once_a_newer_step_is_safe) {
    Fixture f(4, 4);
    CheckpointId five = f.id(5);
    f.save(5);
    f.copy(five);
    f.lose(3);
    CheckpointId six = f.id(6);
    auto freed = [&] { return f.g.actions<StepFreed>(0).back(); };
    f.save(6);
    BOOST_TEST(!freed().frees(five));
    for (std::uint32_t r = 0; r < 4; ++r)
        for (std::uint32_t n : {0u, 1u, 2u})
            f.g.feed(n, LocalSealed{Seal{five.step, Rank(r), 4, five.generation}});
    f.g.run(500ms);
    BOOST_TEST((f.protects(0) == six));
    BOOST_TEST(!freed().frees(five));
    f.copy(six);
    BOOST_TEST((f.g.view(0).safe == six));
    BOOST_TEST(freed().frees(five));
}

BOOST_AUTO_TEST_CASE(of_storage_and_another_sizes_memory_the_newer_one_counts) {
    for (std::uint64_t on_storage : {4u, 5u, 6u}) {
        GroupConfig config = Fixture::config(4, 4);
        config.storage = true;
        TestGroup g(config);
        for (std::uint32_t i = 0; i < 4; ++i) g.job_nodes.emplace_back(i);
        TestGroup::Storage storage;
        storage.ok = true;
        g.storage = storage;
        g.start();
        World before = g.world(1);
        for (std::uint32_t r = 0; r < 4; ++r) {
            Seal seal{TrainStep(5), Rank(r), 4, before.id};
            g.feed(r, LocalSealed{seal});
            g.feed(before.partners[r].value(), LocalSealed{seal});
        }
        g.run(500ms);
        g.storage->newest = CheckpointId{before.id, TrainStep(on_storage)};
        g.storage->world_size = 4;
        g.cut(3);
        g.run(4s);
        World w = g.world(1);
        BOOST_TEST((w.restore_step == TrainStep(std::max<std::uint64_t>(on_storage, 5))));
        BOOST_TEST(w.memory_world_size == (on_storage > 5 ? 0u : 4u));
        BOOST_TEST(w.stored_world_size == (on_storage > 5 ? 4u : 0u));
        BOOST_TEST(w.sources.size() == (on_storage > 5 ? 0u : 4u));
    }
}

// ---- what is damaged ----------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_step_of_which_a_copy_is_dropped_is_not_safe_until_it_is_there_again) {
    Fixture f;
    CheckpointId five = f.id(5);
    f.save(5);
    f.copy(five);
    std::uint32_t holder = f.partner(2).value();
    f.drop(holder, five, 2);
    for (std::uint32_t n : {0u, 1u, 2u}) {
        BOOST_TEST(!f.g.view(n).safe.has_value(), "node " << n);
        BOOST_TEST(!f.g.view(n).covered.has_value(), "so that its copies are offered again");
    }
    BOOST_TEST((f.protects(0) == five));
    f.g.feed(holder, LocalSealed{f.seal(five, 2)});
    f.g.run(500ms);
    for (std::uint32_t n : {0u, 1u, 2u}) BOOST_TEST((f.g.view(n).safe == five), "node " << n);
    BOOST_TEST(f.g.count<Publish>(0) == 1u);
}

BOOST_AUTO_TEST_CASE(what_was_safe_holds_nothing_free_for_a_newer_step_once_it_is_damaged) {
    Fixture f;
    CheckpointId five = f.id(5);
    f.save(5);
    f.copy(five);
    f.drop(f.partner(2).value(), five, 2);
    std::size_t freed = f.g.count<StepFreed>(0);
    f.save(6);
    f.save(7);
    BOOST_TEST(f.g.count<StepFreed>(0) == freed, "nothing is safe");
    BOOST_TEST((f.protects(0) == f.id(6)), "and not what nobody knows to get its copies again");
    f.copy(f.id(6));
    BOOST_TEST((f.g.view(0).safe == f.id(6)));
    BOOST_TEST(f.g.actions<StepFreed>(0).back().frees(five));
}

/// What the group has grown for once, it does not grow for again.
BOOST_AUTO_TEST_CASE(a_step_that_is_safe_again_is_no_news) {
    GroupConfig config = Fixture::config(3, 3);
    config.any_size = true;
    config.replacements = true;
    Fixture f;
    f.g = TestGroup(config);
    f.g.job_nodes = nodes({0, 1, 2});
    f.g.start();
    f.lose(2);
    BOOST_REQUIRE(f.world().nodes.size() == 2u);
    CheckpointId five = f.id(5);
    f.save(5);
    f.copy(five);
    BOOST_REQUIRE((f.g.view(1).safe == five));
    std::uint32_t joined = f.g.add("n3", 77);
    std::size_t worlds = f.g.count<Publish>(1);
    f.drop(0, five, 1);
    f.g.feed(0, LocalSealed{f.seal(five, 1)});
    f.g.run(1s);
    BOOST_TEST((f.g.view(1).safe == five));
    BOOST_TEST(f.g.count<Publish>(1) == worlds);
    f.save(6);
    f.copy(f.id(6));
    f.g.run(1s);
    BOOST_TEST(f.g.count<Publish>(1) == worlds + 1, "what is newer is news");
    BOOST_TEST(elastic::contains(f.world().nodes, NodeIndex(joined)));
}

BOOST_AUTO_TEST_CASE(a_late_report_does_not_bring_back_what_was_dropped) {
    Fixture f;
    CheckpointId five = f.id(5);
    f.save(5);
    f.copy(five);
    std::uint32_t holder = f.partner(0).value();
    auto leader = f.g.leader();
    BOOST_REQUIRE(holder != leader);
    NodeReport late;
    late.ready = true;
    late.running = f.world().id;
    late.seals = {f.seal(five, 0), f.seal(five, holder)};
    late.number = 1;
    f.drop(holder, five, 0);
    f.g.feed(leader, PeerMessage{NodeIndex(holder), Report{f.g.view(leader).term, late}});
    BOOST_TEST(!f.g.view(leader).safe.has_value());
}

/// In the moment in which it hears so, before it is told what is left.
BOOST_AUTO_TEST_CASE(what_is_damaged_at_the_leaders_own_node_is_not_called_safe) {
    Fixture f;
    f.save(5);
    f.copy(f.id(5));
    std::uint32_t leader = f.g.leader();
    BOOST_REQUIRE((f.g.view(leader).safe == f.id(5)));
    f.g.feed(leader, LocalDamaged{{f.id(5), f.held(leader, f.id(5)).front().rank}});
    BOOST_TEST(!f.g.view(leader).safe.has_value());
}

/// Others' slots are full of it, and of what is older.
BOOST_AUTO_TEST_CASE(a_complete_step_that_has_lost_a_part_for_good_is_given_up) {
    Fixture f;
    CheckpointId five = f.id(5);
    f.save(5);
    f.copy(five);
    f.save(6);
    CheckpointId six = f.id(6);
    f.g.feed(2, LocalDamaged{{six, Rank(2)}});
    f.g.feed(2, LocalObjects{f.held(2, five)});
    f.g.feed(2, LocalSealed{f.seal(f.id(7), 2)});
    f.g.run(1s);
    for (std::uint32_t n : {0u, 1u, 2u}) {
        auto given_up = f.g.actions<StepsVoid>(n);
        BOOST_REQUIRE(!given_up.empty());
        BOOST_TEST((given_up.back().below == TrainStep(7)));
        BOOST_TEST((given_up.back().complete == TrainStep(5)));
    }
    f.save(8);
    BOOST_TEST((f.protects(0) == f.id(8)));
    BOOST_TEST(!f.g.actions<StepFreed>(0).back().frees(five));
}

/// The owner's object is dropped before the leader hears that the copy has come.
BOOST_AUTO_TEST_CASE(a_step_whose_copy_is_told_late_is_not_given_up) {
    Fixture f;
    f.save(5);
    f.copy(f.id(5));
    f.save(6);
    CheckpointId six = f.id(6);
    std::uint32_t holder = f.partner(0).value();
    BOOST_REQUIRE(holder != f.g.leader());
    f.g.cut(holder);
    f.g.feed(holder, LocalSealed{f.seal(six, 0)});
    f.g.heal();  // told with its next heartbeat
    f.g.feed(0, LocalDamaged{{six, Rank(0)}});
    f.g.feed(0, LocalObjects{f.held(0, f.id(5))});
    f.g.feed(0, LocalSealed{f.seal(f.id(7), 0)});
    f.g.run(1s);
    for (const StepsVoid &v : f.g.actions<StepsVoid>(0)) BOOST_TEST((v.complete >= six.step));
    f.g.fail(2, 2, 9, 1);
    f.g.run(1s);
    BOOST_TEST((f.world().restore_step == six.step));
}

BOOST_AUTO_TEST_SUITE_END()
