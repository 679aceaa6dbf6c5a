// SPDX-License-Identifier: Apache-2.0
// How many nodes a person wants (dlrover scale): smaller and larger worlds, and what is given back to Slurm.
#include <boost/test/unit_test.hpp>
#include <map>

#include "elastic/scaling.h"
#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

/// Four nodes of one rank; node 1 leads. With copies on one other node, unless told otherwise.
struct Fixture {
    static GroupConfig config(std::uint32_t copies, bool storage) {
        GroupConfig c = TestGroup::config(4, 2, 4);
        for (std::uint32_t i = 0; i < 4; ++i) c.nodes[i].name = "n" + std::to_string(i);
        c.copies = copies;
        c.any_size = copies > 0;
        c.storage = storage;
        c.replacements = c.checks = true;
        return c;
    }
    explicit Fixture(std::uint32_t copies = 1, bool storage = false) : g(config(copies, storage)) {
        if (storage) {
            g.storage.emplace();
            g.storage->ok = true;
            g.storage->world_size = 4;
        }
        g.job_nodes = nodes({0, 1, 2, 3});
        g.start();
        BOOST_REQUIRE(g.leader() == 1u);
    }
    World world() const { return g.world(g.leader()); }
    std::vector<std::string> warnings() const {
        std::vector<std::string> texts;
        for (const Note &n : g.actions<Note>(g.leader()))
            if (n.kind == Note::Kind::warning) texts.push_back(n.text);
        return texts;
    }
    bool warned(const std::string &of) const {
        return std::ranges::any_of(warnings(), [&](auto &text) { return text.find(of) != text.npos; });
    }
    void seal_at(NodeIndex node, const Seal &seal) {
        held[node].push_back(seal);
        g.feed(node.value(), LocalSealed{seal});
    }
    /// Every rank of the world saves it, and its copies get to where they belong.
    void save(std::uint64_t step) {
        World w = world();
        auto size = static_cast<std::uint32_t>(w.nodes.size());
        for (std::uint32_t r = 0; r < size; ++r) {
            Seal seal{TrainStep(step), Rank(r), size, w.id};
            seal_at(w.nodes[r], seal);
            if (!w.partners.empty()) seal_at(w.partners[r], seal);
        }
        g.run(1s);
    }
    void scale(std::uint32_t wanted, std::uint32_t node = 3) {
        g.feed(node, LocalScale{wanted});
        g.run(1s);
    }
    /// n3, once the smaller world has steps of its own.
    void give_back_one() {
        save(5);
        scale(3);
        save(6);
        save(7);
        g.run(1s);
    }
    std::uint32_t wanted(std::uint32_t node) const { return g.view(node).wanted_nodes; }
    TestGroup g;
    std::map<NodeIndex, std::vector<Seal>> held;  ///< ever
};

}  // namespace

BOOST_AUTO_TEST_SUITE(scaling)

BOOST_AUTO_TEST_CASE(the_newest_word_holds_and_what_was_released_stays_so) {
    Scaling mine{2, 3, nodes({5})};
    BOOST_TEST(!merge(mine, {}));
    BOOST_TEST(!merge(mine, {1, 4, nodes({5})}));
    BOOST_TEST(merge(mine, {1, 4, nodes({6})}));
    BOOST_TEST((mine == Scaling{2, 3, nodes({5, 6})}));
    BOOST_TEST(merge(mine, {2, 4, {}}), "two words at the same time");
    BOOST_TEST(merge(mine, {3, 2, {}}));
    BOOST_TEST((mine == Scaling{3, 2, nodes({5, 6})}));
}

BOOST_AUTO_TEST_CASE(those_that_joined_last_go_first_and_some_last_of_all) {
    auto world = nodes({4, 1, 2, 0, 3});
    BOOST_TEST((stay(world, 5, {}) == world));
    BOOST_TEST((stay(world, 4, {}) == nodes({1, 2, 0, 3})));
    BOOST_TEST((stay(world, 3, {}) == nodes({1, 2, 0})), "in their order");
    BOOST_TEST((stay(world, 3, nodes({3})) == nodes({1, 0, 3})));
    BOOST_TEST((stay(world, 2, nodes({4, 0})) == nodes({4, 0})));
    BOOST_TEST((stay(world, 1, nodes({4, 0})) == nodes({0})));
}

BOOST_AUTO_TEST_CASE(a_world_gets_smaller_when_a_step_is_safe_and_costs_no_restart) {
    Fixture f;
    f.save(5);
    auto before = f.world().id;
    auto left = f.g.view(1).restarts_left;
    f.scale(3);
    BOOST_TEST((f.world().id == before), "work since the last step would be lost");
    BOOST_TEST(f.g.view(1).not_yet == "as soon as the next checkpoint is complete");
    for (std::uint32_t node : {0u, 1u, 2u, 3u}) BOOST_TEST(f.wanted(node) == 3u);
    f.save(6);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2})));
    BOOST_TEST((f.world().restore_step == TrainStep(6)));
    BOOST_TEST(f.world().memory_world_size == 4u);
    BOOST_TEST(f.world().reason == "1 node fewer wanted (dlrover scale)");
    BOOST_TEST(f.world().budget_used == 0u);
    BOOST_TEST(f.g.view(1).restarts_left == left);
    BOOST_TEST(f.g.view(1).not_yet == "");
}

BOOST_AUTO_TEST_CASE(nothing_is_given_back_before_the_smaller_world_has_a_safe_step) {
    Fixture f;
    f.save(5);
    f.scale(3);
    f.save(6);
    f.g.run(5s);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::shrink_to) == 0u);
    f.save(7);
    f.g.run(1s);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::shrink_to) == 1u);
    BOOST_TEST((f.g.job_nodes == nodes({0, 1, 2})));
    BOOST_TEST(f.warned("n3 removed: given back to Slurm"));
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2})));
    BOOST_TEST(f.world().reason == "1 node fewer wanted (dlrover scale)", "and no world for that");
    f.g.run(10s);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::add_nodes) == 0u, "it is not replaced");
}

BOOST_AUTO_TEST_CASE(where_slurm_keeps_a_node_it_is_a_spare_and_comes_back_at_once) {
    Fixture f;
    f.g.no_shrink = true;
    f.save(5);
    f.scale(3);
    f.save(6);
    f.save(7);
    f.g.run(10s);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::shrink_to) == 1u, "asked once for each word");
    BOOST_TEST(f.warned("Slurm keeps n3 in the job (it can not take nodes out of this job): held as spares"));
    BOOST_TEST((f.world().spares == nodes({3})));
    f.scale(4, 0);
    f.save(8);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2, 3})));
    BOOST_TEST((f.world().restore_step == TrainStep(8)));
    BOOST_TEST(f.world().reason == "1 node more");
    BOOST_TEST(f.g.count_asked(AskSlurm::What::add_nodes) == 0u);
}

BOOST_AUTO_TEST_CASE(a_given_back_node_may_come_back_without_a_check) {
    Fixture f;
    f.give_back_one();
    f.g.crash(3);
    f.scale(4, 0);
    f.g.run(8s);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::add_nodes) == 1u, "at once");
    BOOST_TEST(f.g.view(1).not_yet == "Slurm is asked for more nodes");
    BOOST_TEST(f.g.add("n3", 77) == 4u);
    f.g.run(1s);
    BOOST_TEST(f.g.count<RunCheck>(4) == 0u);
    f.save(8);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2, 4})));
    BOOST_TEST(f.world().reason == "1 node has joined");
    // A companion's job ends; nobody else is taken for lost.
    f.scale(2, 0);
    f.save(9);
    BOOST_TEST((f.world().nodes == nodes({0, 1})));
    f.save(10);
    f.g.run(3s);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::end_companion) == 1u);
    BOOST_TEST((f.g.job_nodes == nodes({0, 1})));
}

/// By what the next run goes: it checks what was lost, not what was given back.
BOOST_AUTO_TEST_CASE(what_is_lost_later_is_not_on_record_as_given_back) {
    Fixture f;
    f.give_back_one();
    BOOST_TEST(f.warned("n3 removed: given back to Slurm"));
    f.g.cut(2);
    f.g.run(8s);
    BOOST_TEST(f.warned("n2 removed: Slurm took them out of the job"));
    for (std::uint32_t node : {0u, 1u}) {
        Promise kept = f.g.actions<Store>(node).back().promise;
        BOOST_TEST((kept.removed == nodes({3, 2})));
        BOOST_TEST((kept.scaling.released == nodes({3})));
    }
    // The next leader knows it, too.
    f.g.crash(1);
    f.g.boot(1);
    f.g.feed(1, LocalReady{true, {}});
    f.g.run(8s);
    BOOST_TEST((f.g.actions<Store>(f.g.leader()).back().promise.scaling.released == nodes({3})));
}

BOOST_AUTO_TEST_CASE(what_slurm_refuses_is_told) {
    Fixture f;
    f.save(5);
    f.scale(3);
    f.save(6);
    f.save(7);
    f.g.run(1s);
    f.g.crash(3);
    f.g.no_nodes = "the account has no hours left";
    f.scale(4, 0);
    f.g.run(8s);
    BOOST_TEST(f.warned("Slurm gives no more nodes: the account has no hours left"));
    BOOST_TEST(f.g.view(1).not_yet == "Slurm gives no more nodes: the account has no hours left");
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2})));
}

BOOST_AUTO_TEST_CASE(the_next_leader_goes_by_the_word_and_so_does_a_daemon_that_was_started_again) {
    Fixture f;
    f.save(5);
    f.scale(3);
    f.g.crash(1);
    for (std::uint32_t node : {0u, 2u, 3u}) f.g.feed(node, PeerLink{NodeIndex(1), true});
    f.g.run(3s);
    BOOST_REQUIRE(f.g.leader() == 2u);
    f.g.boot(1);
    f.g.feed(1, LocalObjects{f.held[NodeIndex(1)]});
    f.g.feed(1, LocalReady{true, f.world().id});
    BOOST_TEST(f.wanted(1) == 3u);
    f.g.run(1s);
    f.save(6);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2})));
}

BOOST_AUTO_TEST_CASE(a_lost_node_is_not_replaced_where_fewer_are_wanted) {
    Fixture f;
    f.g.no_shrink = true;
    f.save(5);
    f.scale(3);
    f.save(6);
    f.save(7);
    f.g.no_shrink = false;
    f.g.crash(2);
    for (std::uint32_t node : {0u, 1u, 3u}) f.g.feed(node, PeerLink{NodeIndex(2), true});
    f.g.run(15s);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 3})), "the spare takes its place");
    BOOST_TEST(f.g.count_asked(AskSlurm::What::add_nodes) == 0u);
}

BOOST_AUTO_TEST_CASE(without_copies_a_world_of_another_size_goes_on_from_storage) {
    Fixture f(0, true);
    f.save(5);
    f.scale(3);
    f.save(6);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2, 3})), "nobody moves what the fourth one holds");
    CheckpointId stored{f.world().id, TrainStep(6)};
    f.g.folder.push_back(stored);
    f.g.feed(0, LocalDurable{stored});
    f.g.run(1s);
    BOOST_TEST((f.world().nodes == nodes({0, 1, 2})));
    BOOST_TEST((f.world().restore_step == TrainStep(6)));
    BOOST_TEST(f.world().stored_world_size == 4u);
}

BOOST_AUTO_TEST_SUITE_END()
