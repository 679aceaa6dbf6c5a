// SPDX-License-Identifier: Apache-2.0
// Nodes that join a running group: their index, their vote, the jobs that Slurm is asked for, larger worlds.
#include <boost/test/unit_test.hpp>

#include "elastic/roster.h"
#include "elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;
using What = AskSlurm::What;

namespace {

GroupConfig config(std::uint32_t size) {
    GroupConfig c = TestGroup::config(size, 1, size);
    for (std::uint32_t i = 0; i < size; ++i) c.nodes[i].name = "n" + std::to_string(i);
    c.replacements = true;
    c.any_size = true;
    return c;
}

/// Four nodes, of which the last one is lost: three go on.
struct Three : TestGroup {
    explicit Three(GroupConfig c = ::config(4)) : TestGroup(c) {
        job_nodes = nodes({0, 1, 2, 3});
        start();
        cut(3);
        run(4s);
    }
    void seal(TrainStep step) {
        World w = world(leader());
        auto ranks = static_cast<std::uint32_t>(w.nodes.size());
        for (std::uint32_t r = 0; r < ranks; ++r)
            feed(w.nodes[r].value(), LocalSealed{Seal{step, Rank(r), ranks, w.id, false}});
    }
    std::size_t notes(std::uint32_t node, const std::string &text) const {
        auto all = actions<Note>(node);
        return static_cast<std::size_t>(std::ranges::count_if(
            all, [&](const Note &n) { return n.text.find(text) != std::string::npos; }));
    }
    std::size_t asked_for() const {
        std::size_t count = 0;
        for (const auto &ask : asked)
            if (ask.what == What::add_nodes) count = ask.count;
        return count;
    }
};

Roster roster(std::uint64_t term, std::initializer_list<const char *> names, std::uint32_t firm) {
    Roster r;
    r.term = Term(term);
    for (const char *name : names) r.added.push_back({1, name});
    r.firm_added = firm;
    return r;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_join)

BOOST_AUTO_TEST_CASE(the_later_roster_holds_and_what_is_firm_stays) {
    Roster mine = roster(3, {"a", "b"}, 1);
    BOOST_TEST(!merge(mine, roster(3, {"a"}, 1)), "shorter, of the same term");
    BOOST_TEST(!merge(mine, roster(2, {"a", "c", "d"}, 1)), "of an earlier term");
    BOOST_TEST(merge(mine, roster(4, {"a", "c"}, 1)), "what is not firm may be replaced");
    BOOST_TEST(mine.added.back().name == "c");
    BOOST_TEST(merge(mine, roster(2, {"a", "x"}, 2)), "firm, whoever says it");
    BOOST_TEST((mine.added.back().name == "x" && mine.firm_added == 2u && mine.term == Term(4)));
    BOOST_TEST(!merge(mine, roster(5, {"a"}, 1)), "without what is firm");
    Roster twice = roster(4, {"a"}, 1);
    BOOST_TEST(could_be(twice, 4));
    twice.counted = nodes({4, 4});
    twice.firm_counted = 1;
    BOOST_TEST(!could_be(twice, 4), "one node counted twice");
    twice.counted = nodes({5});
    BOOST_TEST(!could_be(twice, 4), "nobody has this index");
    BOOST_TEST(!could_be(roster(4, {"a", "b", "c"}, 1), 4), "two entries that are not firm");
}

BOOST_AUTO_TEST_CASE(a_node_gets_an_index_is_counted_and_takes_part) {
    Three g;
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    g.feed(g.leader(), NodeOffered{"n9", 1, JobId(57)});
    g.run(100ms);
    for (std::uint32_t node : {0u, 1u, 2u}) {
        auto told = g.actions<NodesAdded>(node);
        BOOST_REQUIRE(told.size() == 1u);
        BOOST_TEST((told[0].added == std::vector<NodeSpec>{{1, "n9", JobId(57)}}));
    }
    BOOST_TEST(g.notes(1, "n9 has joined") == 0u);
    g.join(4);
    g.run(500ms);
    BOOST_TEST(g.notes(1, "n9 has joined the group (job 57)") == 1u);
    BOOST_TEST(g.world(1).nodes.size() == 3u);
    g.seal(TrainStep(1));
    g.run(200ms);
    for (std::uint32_t node : {0u, 1u, 2u, 4u}) BOOST_TEST((g.world(node).nodes == nodes({0, 1, 2, 4})));
    BOOST_TEST(g.world(4).reason == "1 node has joined");
    BOOST_TEST((g.world(4).restore_step == TrainStep(1)));
    BOOST_TEST(g.world(4).budget_used == 0u);
}

BOOST_AUTO_TEST_CASE(only_a_leader_in_office_lets_nodes_in) {
    Three g;
    g.feed(2, NodeOffered{"n9", 1, JobId(57)});
    g.run(1s);
    BOOST_TEST(g.count<NodesAdded>(1) == 0u);
}

BOOST_AUTO_TEST_CASE(a_name_is_in_the_table_once_and_comes_back_with_a_new_index) {
    Three g;
    g.feed(1, NodeOffered{"n2", 1, {}});
    g.feed(1, NodeOffered{"n9", 1, JobId(57)});
    g.feed(1, NodeOffered{"n9", 1, JobId(57)});
    g.run(200ms);
    g.feed(1, NodeOffered{"n9", 1, JobId(57)});
    g.run(200ms);
    BOOST_TEST(g.actions<NodesAdded>(1).back().added.size() == 1u);
    Three again;
    again.feed(1, NodeOffered{"n3", 1, JobId(58)});  // removed
    again.run(200ms);
    BOOST_TEST((again.actions<NodesAdded>(1).back().added == std::vector<NodeSpec>{{1, "n3", JobId(58)}}));
}

BOOST_AUTO_TEST_CASE(more_than_the_group_can_use_are_not_let_in_and_it_is_said_once) {
    Three g;
    g.add("n8", 57);
    for (int i = 0; i < 3; ++i) g.feed(1, NodeOffered{"n9", 1, JobId(58)});
    g.run(1s);
    BOOST_TEST(g.actions<NodesAdded>(1).back().added.size() == 1u);
    BOOST_TEST(g.notes(1, "n9 is not let in: the group has all the nodes that it can use") == 1u);
}

/// It may have been given its index by a leader that is no more.
BOOST_AUTO_TEST_CASE(a_joiner_votes_for_nobody_before_it_has_heard_a_leader) {
    Three g;
    g.feed(1, NodeOffered{"n9", 1, JobId(57)});
    g.run(100ms);
    g.cut(4);
    g.join(4);
    g.run(5s);
    g.feed(4, PeerMessage{NodeIndex(2), VoteRequest{Term(9), {}, {}}});
    for (const auto &sent : g.actions<SendMessage>(4))
        BOOST_TEST((!std::holds_alternative<VoteRequest>(sent.message) &&
                    !std::holds_alternative<VoteReply>(sent.message)));
}

BOOST_AUTO_TEST_CASE(a_node_that_was_counted_helps_to_elect_and_can_lead) {
    Three g;
    g.add("n9", 57);
    // Of 0, 1, 2 and 4 the leader and another one go at once: half of the four is left, 2 with the new one.
    g.job_nodes = nodes({0, 1, 2});
    g.cut(1);
    g.run(5s);
    BOOST_TEST(g.leader() != 1u);
    BOOST_TEST((*g.view(4).leader == NodeIndex(2)));
    BOOST_TEST((g.world(4).nodes == nodes({0, 4, 2}) || g.world(4).nodes == nodes({0, 2, 4})));
}

BOOST_AUTO_TEST_CASE(a_new_leader_knows_who_has_joined) {
    Three g;
    g.feed(1, NodeOffered{"n9", 1, JobId(57)});
    g.run(100ms);
    g.cut(1);
    g.run(6s);
    BOOST_TEST((*g.view(2).leader == NodeIndex(2)));
    g.join(4);
    g.run(500ms);
    BOOST_TEST(g.notes(2, "n9 has joined the group") == 1u);
    g.feed(2, NodeOffered{"n10", 1, JobId(58)});
    g.run(200ms);
    auto added = g.actions<NodesAdded>(2).back().added;
    BOOST_REQUIRE(added.size() == 2u);
    BOOST_TEST(added[1].name == "n10");
}

/// The leader had it on record, and nobody else.
BOOST_AUTO_TEST_CASE(an_index_that_no_majority_knew_is_given_anew) {
    Three g;
    for (std::uint32_t other : {0u, 2u}) g.cut(other);
    g.feed(1, NodeOffered{"n8", 1, JobId(57)});
    g.run(100ms);
    BOOST_TEST(g.count<NodesAdded>(1) == 0u, "not for good");
    g.heal();
    g.cut(1);
    g.cut(3);
    g.run(6s);
    g.feed(2, NodeOffered{"n9", 1, JobId(58)});
    g.run(200ms);
    BOOST_TEST((g.actions<NodesAdded>(2).back().added == std::vector<NodeSpec>{{1, "n9", JobId(58)}}));
}

BOOST_AUTO_TEST_CASE(the_table_survives_a_daemon) {
    Three g;
    std::uint32_t joined = g.add("n9", 57);
    g.seal(TrainStep(1));
    g.run(200ms);
    GenerationId running = g.world(1).id;
    for (std::uint32_t node : {0u, joined}) {
        g.crash(node);
        g.boot(node);
        g.feed(node, LocalReady{true, running});
    }
    g.run(2s);
    BOOST_TEST((g.view(joined).world->nodes == nodes({0, 1, 2, 4})));
    BOOST_TEST((g.world(1).id == running));
}

/// Slurm does not know it among the nodes of the job: its own job is ended.
BOOST_AUTO_TEST_CASE(a_joined_node_that_is_lost_has_its_job_ended) {
    Three g;
    g.add("n9", 57);
    g.seal(TrainStep(1));
    g.run(200ms);
    std::size_t shrinks = g.count_asked(What::shrink_to);
    g.cut(4);
    g.run(4s);
    BOOST_REQUIRE(g.count_asked(What::end_companion) == 1u);
    BOOST_TEST(g.count_asked(What::shrink_to) == shrinks);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    g.cut(2);
    g.run(4s);
    for (const auto &ask : g.asked)
        for (NodeIndex n : ask.what == What::shrink_to ? ask.nodes : nodes({}))
            BOOST_TEST(n.value() < 4u, "Slurm is told of a node that is not in the job");
}

BOOST_AUTO_TEST_CASE(a_joined_node_whose_job_is_over_ends) {
    Three g;
    g.add("n9", 57);
    g.ended = nodes({4});
    g.cut(1);
    g.cut(4);
    g.run(8s);  // 2 leads, reads the job, and removes 4; 4 reads it as well
    BOOST_TEST(!g.view(2).ended);
    g.feed(4, PeerMessage{NodeIndex(2), Heartbeat{.term = Term(99), .sequence = 1, .removed = nodes({4})}});
    BOOST_TEST(g.view(4).ended);
}

/// One side has a node of the job, the other one has only nodes that joined: nobody can take the first out.
/// Its own job is cancelled, or its time is over: no word to the group's.
BOOST_AUTO_TEST_CASE(what_ends_a_joined_nodes_job_does_not_end_the_group) {
    Three g;
    g.add("n9", 57);
    g.seal(TrainStep(1));
    g.run(200ms);
    g.feed(4, LocalSignal{15});
    g.run(1s);
    for (std::uint32_t node : {0u, 1u, 2u, 4u}) BOOST_TEST(!g.view(node).ended);
    g.feed(0, LocalSignal{15});
    for (std::uint32_t node : {0u, 1u, 2u, 4u}) BOOST_TEST(g.view(node).ended);
}

BOOST_AUTO_TEST_CASE(a_joined_node_that_is_told_to_end_and_has_no_leader_ends_for_itself) {
    Three g;
    g.add("n9", 57);
    g.run(200ms);
    g.cut(4);
    g.run(3s);
    g.feed(4, LocalSignal{15});
    BOOST_REQUIRE(g.view(4).ended);
    BOOST_TEST(g.actions<End>(4).back().evicted);
    g.heal();
    g.feed(4, PeerMessage{NodeIndex(1), VoteRequest{Term(90), {}, {}}});
    g.run(1s);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST(!g.view(node).ended);
}

/// The node's folder may be missing there: each one that comes would fail.
BOOST_AUTO_TEST_CASE(a_joined_node_that_is_lost_at_once_is_not_replaced_at_once) {
    Three g;
    g.run(10s);
    std::size_t asked = g.count_asked(What::add_nodes);
    BOOST_REQUIRE(asked > 0u);
    g.add("n9", 57);
    g.run(1s);
    g.cut(4);
    g.feed(1, NodesComing{0});
    g.run(10s);
    BOOST_REQUIRE(g.count_asked(What::end_companion) == 1u);
    BOOST_TEST(g.count_asked(What::add_nodes) == asked);
    g.run(2min);
    BOOST_TEST(g.count_asked(What::add_nodes) > asked);
}

BOOST_AUTO_TEST_CASE(half_of_nodes_that_joined_takes_nobody_out) {
    GroupConfig c = ::config(2);
    c.batch_host.reset();
    TestGroup g(c);
    g.job_nodes = nodes({0, 1});
    g.start();
    g.cut(g.leader() == 0u ? 1 : 0);
    std::uint32_t left = g.leader() == 0u ? 0 : 1;
    g.run(8s);
    BOOST_REQUIRE((*g.view(left).leader == NodeIndex(left)));
    std::uint32_t joined = g.add("n9", 57);
    g.job_nodes = {NodeIndex(left)};
    g.asked.clear();
    g.cut(left);
    g.run(7s);
    BOOST_TEST(g.count_asked(What::shrink_to) == 0u);
    BOOST_TEST((!g.view(joined).leader || *g.view(joined).leader != NodeIndex(joined)));
    BOOST_TEST((*g.view(left).leader == NodeIndex(left)), "it has ended the other one's job");
    BOOST_TEST(g.count_asked(What::end_companion) == 1u);
}

BOOST_AUTO_TEST_CASE(slurm_is_asked_for_as_many_nodes_as_are_gone) {
    Three g;
    g.run(3s);
    BOOST_TEST(g.count_asked(What::add_nodes) == 1u);
    BOOST_TEST(g.asked_for() == 1u);
    g.feed(1, NodesComing{1});
    g.run(30s);
    BOOST_TEST(g.count_asked(What::add_nodes) == 1u, "one is on its way");
    g.cut(2);
    g.run(5s);
    BOOST_TEST(g.asked_for() == 2u, "in all");
    g.feed(1, NodesComing{0});
    g.run(10s);
    std::size_t before = g.count_asked(What::add_nodes);
    g.run(200s);
    BOOST_TEST(g.count_asked(What::add_nodes) > before, "they are gone again");
}

/// Nobody asks twice: a leader after another asks for as many in all.
BOOST_AUTO_TEST_CASE(a_new_leader_asks_for_no_more_than_are_gone) {
    GroupConfig c = ::config(5);
    TestGroup g(c);
    g.job_nodes = nodes({0, 1, 2, 3, 4});
    g.start();
    g.cut(4);
    g.run(8s);
    g.cut(1);
    g.run(20s);
    BOOST_REQUIRE(g.count_asked(What::add_nodes) >= 2u);
    BOOST_TEST(g.asked.back().count <= 2u);
}

BOOST_AUTO_TEST_CASE(a_refusal_is_told_once_and_asked_again_after_growing_pauses) {
    GroupConfig c = ::config(4);
    TestGroup *group = nullptr;
    Three g(c);
    group = &g;
    group->no_nodes = "this site has no companion jobs";
    g.run(5s);
    g.feed(1, NodesComing{0});
    g.run(600s);
    std::size_t first = g.count_asked(What::add_nodes);
    BOOST_TEST((first >= 3u && first <= 5u), first << " times in ten minutes");
    g.run(1200s);
    BOOST_TEST(g.count_asked(What::add_nodes) - first <= 2u);
    BOOST_TEST(g.notes(1, "this site has no companion jobs") == 1u);
}

BOOST_AUTO_TEST_CASE(without_replacements_slurm_is_asked_for_none) {
    GroupConfig c = ::config(4);
    c.replacements = false;
    Three g(c);
    g.run(30s);
    BOOST_TEST(g.count_asked(What::add_nodes) == 0u);
}

BOOST_AUTO_TEST_CASE(who_is_still_to_come_is_not_needed_when_the_group_ends) {
    Three g;
    g.run(3s);
    g.feed(1, NodesComing{1});
    g.feed(1, LocalSignal{15});
    g.run(200ms);
    BOOST_TEST(g.count_asked(What::drop_coming) == 1u);
}

BOOST_AUTO_TEST_CASE(who_is_still_to_come_is_not_needed_when_the_job_is_over) {
    Three g;
    g.run(3s);
    g.feed(1, NodesComing{1});
    g.job_running = false;
    g.no_change = "it is over";
    g.cut(2);
    g.run(10s);
    BOOST_TEST(g.count_asked(What::drop_coming) >= 1u);
}

BOOST_AUTO_TEST_CASE(who_is_still_to_come_is_not_needed_when_the_table_is_full) {
    Three g;
    g.run(3s);
    g.add("n8", 57);
    g.feed(1, NodesComing{1});
    g.run(1s);
    BOOST_TEST(g.count_asked(What::drop_coming) >= 1u);
}

/// A group that leaves its batch host in office lets a node in that can lead.
BOOST_AUTO_TEST_CASE(the_batch_host_hands_over_to_a_node_that_joins) {
    GroupConfig c = ::config(1);
    c.max_nodes = 2;
    TestGroup g(c);
    g.job_nodes = nodes({0});
    g.start();
    BOOST_REQUIRE(g.leader() == 0u);
    g.add("n9", 57);
    g.run(5s);
    BOOST_TEST(g.leader() == 1u);
}

BOOST_AUTO_TEST_CASE(a_group_that_never_saved_grows_after_a_while) {
    Three g;
    g.add("n9", 57);
    g.run(40s);
    BOOST_TEST(g.world(1).nodes.size() == 3u);
    g.run(30s);
    BOOST_TEST(g.world(1).nodes.size() == 4u);
}

BOOST_AUTO_TEST_CASE(a_smaller_world_grows_by_whole_units) {
    GroupConfig c = ::config(4);
    c.node_unit = 2;
    Three g(c);
    BOOST_REQUIRE(g.world(1).nodes.size() == 2u);
    g.seal(TrainStep(1));
    g.run(200ms);
    BOOST_TEST(g.world(1).nodes.size() == 2u, "three are there");
    g.add("n9", 57);
    g.seal(TrainStep(2));
    g.run(200ms);
    BOOST_TEST(g.world(1).nodes.size() == 4u);
}

/// The larger world fails at once, every time.
BOOST_AUTO_TEST_CASE(a_world_that_grew_and_failed_does_not_grow_again_at_once) {
    Three g;
    g.add("n9", 57);
    g.seal(TrainStep(1));
    g.run(200ms);
    BOOST_REQUIRE(g.world(1).nodes.size() == 4u);
    g.cut(4);
    g.run(4s);
    BOOST_REQUIRE(g.world(1).nodes.size() == 3u);
    g.add("n10", 58);
    g.seal(TrainStep(2));
    g.run(200ms);
    BOOST_TEST(g.world(1).nodes.size() == 3u);
    g.run(60s);
    g.seal(TrainStep(3));
    g.run(200ms);
    BOOST_TEST(g.world(1).nodes.size() == 4u);
}

/// Where another size can not go on from what is in memory.
BOOST_AUTO_TEST_CASE(a_world_that_could_not_go_on_does_not_grow) {
    GroupConfig c = ::config(4);
    c.any_size = false;
    Three g(c);
    g.add("n9", 57);
    g.seal(TrainStep(1));
    g.run(100s);
    BOOST_TEST(g.world(1).nodes.size() == 3u);
}

/// The step that was complete was copied first.
BOOST_AUTO_TEST_CASE(where_copies_are_kept_a_world_grows_when_a_step_is_safe) {
    GroupConfig c = ::config(4);
    c.copies = 1;
    Three g(c);
    g.add("n9", 57);
    g.seal(TrainStep(1));
    g.run(200ms);
    World w = g.world(1);
    BOOST_REQUIRE(w.nodes.size() == 3u);
    for (std::uint32_t r = 0; r < 3; ++r)
        g.feed(w.partners[r].value(), LocalSealed{Seal{TrainStep(1), Rank(r), 3, w.id, false}});
    g.run(400ms);
    BOOST_TEST(g.world(1).nodes.size() == 4u);
    BOOST_TEST((g.world(1).restore_step == TrainStep(1)));
}

GroupConfig expanding(std::uint32_t size = 4) {
    GroupConfig c = ::config(size);
    c.expansion = true;
    return c;
}

BOOST_AUTO_TEST_CASE(a_job_is_expanded_before_another_one_is_asked_for) {
    Three g(expanding());
    g.run(10s);
    BOOST_TEST(g.count_asked(What::expand_job) == 1u);
    BOOST_TEST(g.count_asked(What::add_nodes) == 0u);
    g.feed(1, NodeOffered{"n9", 1, {}, StepId(5)});
    g.run(100ms);
    BOOST_TEST((g.actions<NodesAdded>(1).back().added == std::vector<NodeSpec>{{1, "n9", {}, StepId(5)}}));
    g.join(4);
    g.run(500ms);
    BOOST_TEST(g.notes(1, "n9 has joined the group (by expansion of the job)") == 1u);
    g.run(5min);
    BOOST_TEST(g.count_asked(What::expand_job) == 1u, "none is missing");
}

BOOST_AUTO_TEST_CASE(where_slurm_refuses_to_expand_a_job_of_its_own_is_asked_for_at_once) {
    Three g(expanding());
    BOOST_REQUIRE(g.count_asked(What::expand_job) == 1u);
    g.no_expansion = "no node is free now";
    g.run(70s);
    BOOST_TEST(g.count_asked(What::expand_job) == 2u);
    BOOST_TEST(g.count_asked(What::add_nodes) == 1u);
    BOOST_TEST(g.notes(1, "the job is not expanded, a job for another node is asked for: no node is free") ==
               1u);
    g.feed(1, NodesComing{0});
    g.run(10min);
    BOOST_TEST(g.count_asked(What::expand_job) >= 3u, "it is tried again first");
    BOOST_TEST(g.count_asked(What::add_nodes) == g.count_asked(What::expand_job) - 1);
    BOOST_TEST(g.notes(1, "the job is not expanded") == 1u, "said once");
}

BOOST_AUTO_TEST_CASE(a_site_that_can_not_expand_jobs_is_no_news) {
    Three g(expanding());
    g.no_expansion = "";
    g.run(70s);
    BOOST_TEST(g.count_asked(What::add_nodes) == 1u);
    BOOST_TEST(g.notes(1, "not expanded") == 0u);
}

/// It may have been done: whoever asks next finds it, and soon.
BOOST_AUTO_TEST_CASE(an_expansion_without_an_answer_is_asked_for_again) {
    Three g(expanding());
    g.no_change = "it does not answer";
    g.run(70s);
    std::size_t before = g.count_asked(What::expand_job);
    BOOST_REQUIRE(before >= 2u);
    g.no_change.clear();
    g.run(15s);
    BOOST_TEST(g.count_asked(What::expand_job) == before + 1);
    BOOST_TEST(g.count_asked(What::add_nodes) == 0u);
}

BOOST_AUTO_TEST_CASE(a_node_that_the_job_was_expanded_by_is_taken_out_as_any_of_the_job) {
    Three g(expanding());
    g.run(5s);
    g.feed(1, NodeOffered{"n9", 1, {}, StepId(5)});
    g.run(100ms);
    g.join(4);
    g.run(500ms);
    g.seal(TrainStep(1));
    g.run(200ms);
    BOOST_REQUIRE(g.world(1).nodes.size() == 4u);
    g.job_nodes = nodes({0, 1, 2, 4});
    g.cut(4);
    g.run(4s);
    BOOST_TEST(g.count_asked(What::end_companion) == 0u);
    BOOST_TEST((g.asked.back().what == What::shrink_to || g.count_asked(What::shrink_to) >= 2u));
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2})));
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    g.cut(2);
    g.run(4s);
    BOOST_TEST((g.job_nodes == nodes({0, 1})));
}

BOOST_AUTO_TEST_CASE(a_shrink_keeps_a_node_that_the_job_was_expanded_by) {
    Three g(expanding());
    g.run(5s);
    g.feed(1, NodeOffered{"n9", 1, {}, StepId(5)});
    g.run(100ms);
    g.join(4);
    g.run(500ms);
    g.job_nodes = nodes({0, 1, 2, 4});
    g.cut(2);
    g.run(4s);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 4})));
}

/// Its node would be one of the job again for a side that was cut off before.
BOOST_AUTO_TEST_CASE(a_node_that_was_taken_out_does_not_come_back_by_expansion) {
    Three g(expanding());
    g.run(5s);
    g.feed(1, NodeOffered{"n3", 1, {}, StepId(5)});
    g.run(200ms);
    BOOST_TEST(g.count<NodesAdded>(1) == 0u);
    BOOST_TEST(g.notes(1, "n3 is not let in: it was a node of the group before") == 1u);
    g.feed(1, NodeOffered{"n3", 1, JobId(58)});
    g.run(200ms);
    BOOST_TEST(g.count<NodesAdded>(1) == 1u);
}

BOOST_AUTO_TEST_CASE(what_ends_the_step_of_such_a_node_does_not_end_the_group) {
    Three g(expanding());
    g.run(5s);
    g.feed(1, NodeOffered{"n9", 1, {}, StepId(5)});
    g.run(100ms);
    g.join(4);
    g.run(500ms);
    g.feed(4, LocalSignal{15});
    g.run(1s);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST(!g.view(node).ended);
}

/// A leader before may have moved a node into the job that is not needed any more.
BOOST_AUTO_TEST_CASE(a_new_leader_that_misses_nobody_lets_go_of_what_is_left_over) {
    GroupConfig c = expanding(4);
    c.max_nodes = 3;
    c.spares = 1;
    Three g(c);
    g.run(5s);
    g.feed(1, NodeOffered{"n9", 1, {}, StepId(5)});
    g.run(100ms);
    g.join(4);
    g.run(1s);
    g.job_nodes = nodes({0, 1, 2, 4});
    std::size_t before = g.count_asked(What::drop_coming);
    g.cut(1);
    for (int i = 0; i < 200 && g.view(2).leader != NodeIndex(2); ++i) g.run(20ms);
    g.heal();
    g.cut(3);
    BOOST_REQUIRE((*g.view(2).leader == NodeIndex(2)));
    g.run(8s);
    BOOST_TEST(g.count_asked(What::drop_coming) == before + 1);
}

/// Two leaders had one term, where nodes that had joined since the election of the first one chose another.
BOOST_AUTO_TEST_CASE(who_follows_a_leader_votes_for_no_other_in_its_term) {
    Three g;
    std::uint32_t node = g.add("new", 7);
    g.run(1s);
    Term term = g.view(node).term;
    BOOST_REQUIRE(g.view(node).leader == NodeIndex(g.leader()));
    g.cut(node);
    g.run(1400ms);
    g.feed(node, PeerMessage{NodeIndex(2), VoteRequest{term, g.view(node).generation, nodes({3})}});
    auto sent = g.actions<SendMessage>(node);
    auto *vote = std::get_if<VoteReply>(&sent.back().message);
    BOOST_REQUIRE(vote != nullptr);
    BOOST_TEST(!vote->granted);
    BOOST_TEST((vote->term == term));
}

/// Else it may lead alone, and knows neither what was in force nor what was suspect.
BOOST_AUTO_TEST_CASE(who_joins_while_a_world_is_prepared_hears_of_the_one_in_force) {
    Three g;
    GenerationId in_force = g.view(g.leader()).generation;
    g.feed(2, LocalReady{false, {}});
    g.run(100ms);
    BOOST_REQUIRE((g.view(g.leader()).generation == in_force));
    BOOST_REQUIRE(g.view(g.leader()).recovering);
    std::uint32_t node = g.add("new", 7);
    g.run(1s);
    BOOST_TEST((g.view(node).generation == in_force));
    BOOST_TEST(g.view(g.leader()).roster.firm_counted == 1u);
}

/// It may be of a node that an earlier leader has moved into the job, and nobody uses.
BOOST_AUTO_TEST_CASE(what_is_in_the_job_for_nobody_is_looked_for_after_a_refusal) {
    TestGroup g(expanding());
    g.job_nodes = nodes({0, 1, 2, 3});
    g.no_expansion = "not now";
    g.start();
    g.cut(3);
    g.run(8s);
    BOOST_REQUIRE(g.count_asked(What::expand_job) == 1u);
    BOOST_REQUIRE(g.count_asked(What::add_nodes) == 1u);
    g.no_expansion.reset();
    g.run(2min);
    BOOST_TEST(g.count_asked(What::expand_job) == 2u);
    g.run(4min);
    BOOST_TEST(g.count_asked(What::expand_job) == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
