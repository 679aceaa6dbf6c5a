// SPDX-License-Identifier: Apache-2.0
// Nodes that are lost, signals: one named case each. Daemons that fall: elastic_daemon_test.cpp.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(elastic_member)

BOOST_AUTO_TEST_CASE(the_batch_host_does_not_lead) {
    TestGroup g(TestGroup::config(3, 2, 3));
    g.start();
    BOOST_TEST(g.leader() == 1u);
}

/// Two nodes whose daemons started at the same time have half of the votes each.
BOOST_AUTO_TEST_CASE(a_candidate_stands_again_where_the_votes_are_split) {
    TestGroup g(TestGroup::config(4, 4, 4));
    for (std::uint32_t other : {0u, 2u, 3u}) g.cut(other);
    g.run(100ms);
    auto asks = [&] {
        Term term;
        for (const auto &sent : g.actions<SendMessage>(1))
            if (auto *request = std::get_if<VoteRequest>(&sent.message)) term = request->term;
        return term;
    };
    Term first = asks();
    BOOST_REQUIRE((first > Term(0)));
    Promise theirs;
    theirs.term = first;
    auto refuse = [&](NodeIndex voted_for) {
        theirs.voted_for = voted_for;
        g.feed(1, PeerMessage{NodeIndex(2), VoteReply{first, false, theirs, {}}});
    };
    refuse(NodeIndex(2));
    BOOST_TEST((asks() == first), "the other one may have a majority");
    g.run(1s);
    g.feed(1, PeerMessage{NodeIndex(3), VoteReply{first, true, {}, {}}});
    g.run(1s);
    refuse(NodeIndex(2));
    BOOST_TEST((asks() > first));
}

/// It misses in no step, and every step that is complete is news.
BOOST_AUTO_TEST_CASE(a_lost_spare_is_noticed_while_there_is_news_all_the_time) {
    TestGroup g(TestGroup::config(4, 2, 3));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    GenerationId running = g.world(1).id;
    g.cut(3);
    for (std::uint64_t step = 1; step <= 40; ++step) {
        for (std::uint32_t rank = 0; rank < 3; ++rank)
            g.feed(rank, LocalSealed{Seal{TrainStep(step), Rank(rank), 3, running}});
        g.run(100ms);
    }
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2})));
    BOOST_TEST(g.count<Publish>(1) == 1u);
}

/// Its answers take longer than dozens of heartbeats, which are news of steps that follow each other in
/// milliseconds.
BOOST_AUTO_TEST_CASE(a_node_that_answers_late_is_not_lost_amid_news) {
    TestGroup g(TestGroup::config(4, 2, 3));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    GenerationId running = g.world(1).id;
    BOOST_REQUIRE(g.leader() == 1u);
    g.cut(3);
    std::vector<std::pair<Time, Heartbeat>> under_way;  // to node 3, half a second there and back
    std::size_t seen = g.actions<SendMessage>(1).size();
    for (std::uint64_t step = 1; step <= 500; ++step) {
        for (std::uint32_t rank = 0; rank < 3; ++rank)
            g.feed(rank, LocalSealed{Seal{TrainStep(step), Rank(rank), 3, running}});
        if (step % 4 == 0) g.run(20ms);
        auto sent = g.actions<SendMessage>(1);
        for (; seen < sent.size(); ++seen)
            if (auto *h = std::get_if<Heartbeat>(&sent[seen].message); h && sent[seen].to == NodeIndex(3))
                under_way.emplace_back(g.now(), *h);
        for (; !under_way.empty() && g.now() - under_way.front().first >= 500ms;
             under_way.erase(under_way.begin())) {
            HeartbeatReply reply;
            reply.term = under_way.front().second.term;
            reply.sequence = under_way.front().second.sequence;
            reply.report.ready = true;
            g.feed(1, PeerMessage{NodeIndex(3), reply});
        }
    }
    BOOST_TEST(under_way.size() > 64u);
    BOOST_TEST(g.asked.empty());
    BOOST_TEST(g.count<Publish>(1) == 1u);
}

/// Slurm took the other one out, but its answer got lost; the other one says so when it leaves.
BOOST_AUTO_TEST_CASE(a_candidate_goes_on_when_the_only_other_one_says_that_it_is_out) {
    GroupConfig c = TestGroup::config(2, 1, 2);
    c.batch_host.reset();
    TestGroup g(c);
    g.job_nodes = nodes({0, 1});
    g.start();
    std::uint32_t left = 1 - g.leader();
    NodeIndex gone(g.leader());
    g.no_change = "it does not answer";
    g.cut(gone.value());
    g.run(4s);
    BOOST_REQUIRE((g.view(left).leader != NodeIndex(left)));
    g.feed(left, PeerMessage{gone, VoteRequest{Term(1), {}, {gone}}});
    BOOST_TEST((*g.view(left).leader == NodeIndex(left)));
}

BOOST_AUTO_TEST_CASE(a_lost_node_is_fenced_once_and_its_spare_takes_over) {
    TestGroup g(TestGroup::config(4, 2, 3));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    g.cut(2);
    g.run(4s);
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 3})));
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 3})));
    BOOST_TEST((g.world(3).nodes == nodes({0, 1, 3})));
}

/// A node that its peers do not hear, but Slurm does, had the job requeued under the others.
BOOST_AUTO_TEST_CASE(where_slurm_can_not_take_nodes_out_it_is_told_of_them) {
    TestGroup g(TestGroup::config(5, 2, 5));
    g.job_nodes = nodes({0, 1, 2, 3, 4});
    g.no_shrink = true;
    g.start();
    g.cut(3);
    g.cut(4);
    g.run(4s);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u);
    BOOST_TEST(g.count_asked(AskSlurm::What::leave_behind) == 1u);
    BOOST_TEST((g.left == nodes({3, 4})));
    g.run(100s);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 0u);
    BOOST_TEST(g.count<Publish>(1) == 2u);
    for (std::uint32_t node : {3u, 4u}) {
        BOOST_REQUIRE(g.count<End>(node) == 1u);
        BOOST_TEST(g.actions<End>(node)[0].evicted);
        BOOST_TEST(g.actions<End>(node)[0].exit_code == 0);
    }
    BOOST_TEST(g.count<End>(0) + g.count<End>(1) + g.count<End>(2) == 0u);
}

/// Each half could leave the other one behind.
BOOST_AUTO_TEST_CASE(half_of_the_nodes_leave_nobody_behind) {
    TestGroup g(TestGroup::config(4, 1, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.no_shrink = true;
    g.start();
    g.cut(0);
    g.cut(1);
    g.run(5s);
    BOOST_TEST(g.count<Publish>(2) == 1u);
    g.run(60s);
    BOOST_TEST(g.left.empty());
    BOOST_TEST(g.count<Publish>(2) == 1u);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 1u, "nothing else will bring it back");
}

/// Where it does not even take the mark, majorities go on, and nobody is out.
BOOST_AUTO_TEST_CASE(a_mark_that_slurm_refuses_takes_nobody_out) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.no_shrink = g.no_marks = true;
    g.start();
    g.cut(3);
    g.run(20s);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    BOOST_TEST(g.left.empty());
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 0u);
}

BOOST_AUTO_TEST_CASE(the_leaders_node_lost) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.cut(1);
    g.run(6s);
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u);
    BOOST_TEST((g.world(2).nodes == nodes({0, 2, 3})));
    BOOST_TEST(g.world(2).restart_count == 1u);
}

BOOST_AUTO_TEST_CASE(a_node_that_slurm_removed_stops) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.cut(3);
    g.run(4s);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2})));
    g.run(6s);
    BOOST_REQUIRE(g.count<End>(3) == 1u);
    BOOST_TEST(g.actions<End>(3)[0].evicted);
    BOOST_TEST(g.actions<End>(3)[0].exit_code == 0, "the job has not failed");
    BOOST_TEST(g.count<End>(1) == 0u);
    g.heal();
    g.run(3s);
    BOOST_TEST(g.count<End>(1) == 0u);
}

namespace {

/// The batch host of four nodes, three of which are enough, is cut off, and the others go on.
struct CutHost : TestGroup {
    CutHost() : TestGroup(config(4, 2, 3)) {
        job_nodes = nodes({0, 1, 2, 3});
        start();
        cut(0);
        run(6s);
        BOOST_REQUIRE(world(1).nodes.size() == 3u);
        BOOST_REQUIRE(std::ranges::count(world(1).nodes, NodeIndex(0)) == 0);
    }
    static constexpr auto requeue = AskSlurm::What::requeue;
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_batch_host_that_is_back_leaves_the_group_that_went_on, CutHost) {
    slurm = SlurmAnswer::Result::unreachable;  // for it, too
    run(10s);
    slurm = SlurmAnswer::Result::done;
    run(1s);
    BOOST_TEST(count_asked(requeue) == 0u);
    heal();
    run(20s);
    BOOST_TEST(count_asked(requeue) == 0u);
    BOOST_REQUIRE(count<End>(0) == 1u);
    BOOST_TEST(actions<End>(0)[0].evicted);
    BOOST_TEST(actions<End>(0)[0].exit_code == 0);
    BOOST_TEST(count<End>(1) == 0u);
}

BOOST_FIXTURE_TEST_CASE(a_batch_host_that_is_back_after_the_end_hears_of_it, CutHost) {
    left.clear();  // a site's program has written over the mark
    World w = world(1);
    for (std::uint32_t i = 0; i < 3; ++i) feed(w.nodes[i].value(), LocalFinished{w.id, Rank(i)});
    BOOST_REQUIRE(count<End>(1) == 1u);
    run(3s);  // nobody says it again by himself
    heal();
    run(20s);
    BOOST_TEST(count_asked(requeue) == 0u);
    BOOST_REQUIRE(count<End>(0) == 1u);
    BOOST_TEST(!actions<End>(0)[0].evicted);
    BOOST_TEST(actions<End>(0)[0].exit_code == 0);
}

BOOST_FIXTURE_TEST_CASE(a_batch_host_that_stays_alone_has_the_job_requeued, CutHost) {
    left.clear();
    for (std::uint32_t node : {1u, 2u, 3u}) crash(node);
    run(60s);  // so long the others may go on without Slurm's word
    BOOST_TEST(count_asked(requeue) == 0u);
    run(20s);
    BOOST_TEST(count_asked(requeue) >= 1u);
}

/// Else Slurm waits for SlurmdTimeout until the run is over, and starts the next one then anywhere, far from
/// the checkpoints in this node's memory (chaos 21083).
BOOST_AUTO_TEST_CASE(a_batch_host_that_is_left_alone_names_whom_the_next_run_is_not_to_have) {
    TestGroup g(TestGroup::config(2, 2, 2));
    g.job_nodes = nodes({0, 1});
    g.start();
    g.crash(1);
    g.run(30s);
    auto requeue = std::ranges::find(g.asked, AskSlurm::What::requeue, &AskSlurm::what);
    BOOST_REQUIRE((requeue != g.asked.end()));
    BOOST_TEST((requeue->nodes == nodes({1})));
    BOOST_REQUIRE(g.count<End>(0) == 1u);
    BOOST_TEST((g.actions<End>(0).front().excluded == nodes({1})));
}

BOOST_AUTO_TEST_CASE(too_few_nodes_are_requeued_once) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.job_nodes = nodes({0, 1, 2});
    g.start();
    g.cut(2);
    g.run(5s);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 1u);
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 0u);
    BOOST_TEST(g.count<End>(1) == 1u);
    // Whoever has to see to the next run knows which node it had better not start on.
    for (std::uint32_t i : {0, 1}) BOOST_TEST((g.actions<End>(i).front().excluded == nodes({2})));
}

BOOST_AUTO_TEST_CASE(half_of_the_nodes_wait_for_slurm) {
    TestGroup g(TestGroup::config(4, 1, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.cut(0);
    g.cut(1);
    g.slurm = SlurmAnswer::Result::unreachable;
    g.run(8s);
    BOOST_TEST(g.count<Publish>(2) == 1u);
    g.slurm = SlurmAnswer::Result::done;
    g.run(3s);
    BOOST_TEST(g.count<Publish>(2) == 2u);
    BOOST_TEST((g.world(2).nodes == nodes({2, 3})));
}

BOOST_AUTO_TEST_CASE(a_strict_majority_goes_on_when_slurm_is_down) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.slurm = SlurmAnswer::Result::unreachable;
    g.cut(3);
    g.run(3500ms);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    BOOST_TEST(g.count<Publish>(1) == 2u);
    g.fail(1, 1, 9, 4);
    g.run(10s);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    BOOST_TEST(g.count<Publish>(1) == 3u, "the restart alone");
    g.slurm = SlurmAnswer::Result::done;
    g.run(3s);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2})), "Slurm takes it out when it is back");
    BOOST_TEST(g.count<Publish>(1) == 3u);
}

/// Fewer than half of the nodes give the others time to be heard, who may have gone on meanwhile.
BOOST_AUTO_TEST_CASE(a_minority_requeues_nothing_as_soon_as_slurm_is_back) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.slurm = SlurmAnswer::Result::unreachable;
    g.cut(3);
    g.run(20s);
    for (std::uint32_t node : {0u, 1u, 2u}) g.crash(node);
    g.slurm = SlurmAnswer::Result::done;
    g.run(5s);
    BOOST_TEST(g.count_asked(AskSlurm::What::read_job) > 0u);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 0u);
    g.run(55s);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 1u);
}

/// The smaller side may hear Slurm, and have the job requeued then.
BOOST_AUTO_TEST_CASE(a_majority_that_does_not_hear_slurm_stops_after_a_while) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.slurm = SlurmAnswer::Result::unreachable;
    g.cut(3);
    g.run(50s);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    g.run(12s);
    auto renewed = g.count<RenewLease>(1), published = g.count<Publish>(1);
    g.run(20s);
    BOOST_TEST(g.count<RenewLease>(1) == renewed);
    BOOST_TEST(g.count<Publish>(1) == published);
    g.slurm = SlurmAnswer::Result::done;
    g.run(3s);
    BOOST_TEST(g.count<Publish>(1) == published + 1);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2})));
}

/// Slurm holds the question for long: a majority goes on meanwhile.
BOOST_AUTO_TEST_CASE(a_strict_majority_does_not_wait_for_a_late_answer) {
    TestGroup g(TestGroup::config(5, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3, 4});
    g.start();
    g.keeps_answers = true;
    g.cut(3);
    g.run(4s);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2, 4})));
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u);
    g.keeps_answers = false;
    g.give_answers();
    g.run(2s);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2, 4})));
    BOOST_TEST(g.count<Publish>(1) == 2u);
}

/// A node that is heard again before Slurm is stands by, and takes its place again.
BOOST_AUTO_TEST_CASE(a_node_that_comes_back_before_slurm_is_used_again) {
    TestGroup g(TestGroup::config(4, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3});
    g.start();
    g.slurm = SlurmAnswer::Result::unreachable;
    g.cut(3);
    g.run(8s);
    BOOST_TEST((g.world(1).nodes == nodes({0, 1, 2})));
    g.heal();
    g.run(2s);
    g.slurm = SlurmAnswer::Result::done;
    g.run(70s);
    BOOST_TEST((g.job_nodes == nodes({0, 1, 2, 3})));
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 0u);
    BOOST_TEST(g.world(1).nodes.size() == 4u);
}

/// Two of a world of three: one alone may not even know of a newer world.
BOOST_AUTO_TEST_CASE(less_than_half_of_the_world_waits_for_slurm) {
    TestGroup g(TestGroup::config(6, 1, 3));
    g.job_nodes = nodes({0, 1, 2, 3, 4, 5});
    g.start();
    g.slurm = SlurmAnswer::Result::unreachable;
    auto world = g.world(1).nodes;
    BOOST_REQUIRE(world.size() == 3u);
    g.cut(world[1].value());
    g.cut(world[2].value());
    g.run(6s);
    std::uint32_t witness = g.leader();
    BOOST_REQUIRE(witness < 6u);
    BOOST_TEST((g.view(witness).world->nodes == world));
    g.slurm = SlurmAnswer::Result::done;
    g.run(3s);
    BOOST_TEST(g.view(witness).world->nodes.size() == 3u);
    BOOST_TEST((g.view(witness).world->nodes != world));
}

/// Without slurmdbd the second loss of a job: Slurm itself gives the node up, much later.
BOOST_AUTO_TEST_CASE(slurm_is_waited_for_with_one_word_of_it) {
    TestGroup g(TestGroup::config(5, 2, 4));
    g.job_nodes = nodes({0, 1, 2, 3, 4});
    g.start();
    g.no_change = "not now";
    g.cut(3);
    g.run(20s);
    std::vector<std::string> said;
    for (const Note &n : g.actions<Note>(g.leader()))
        if (n.kind == Note::Kind::warning) said.push_back(n.text);
    std::vector<std::string> once = {
        "node 3 gone (nor do node 4, node 0, node 2 say that it answers them): Slurm is asked "
        "to take them out of the job",
        "waiting for Slurm: not now"};
    BOOST_TEST(said == once, boost::test_tools::per_element());
    BOOST_TEST(g.count_asked(AskSlurm::What::read_job) > 10u);
    g.job_nodes = nodes({0, 1, 2, 4});
    g.run(2s);
    BOOST_TEST((g.world(g.leader()).nodes == nodes({0, 1, 2, 4})));
}

BOOST_AUTO_TEST_CASE(a_lease_is_renewed_only_with_a_majority) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.slurm = SlurmAnswer::Result::unreachable;
    g.start();
    g.cut(0);
    g.cut(1);
    g.cut(2);
    g.run(1500ms);
    std::size_t before[3];
    for (std::uint32_t i = 0; i < 3; ++i) before[i] = g.count<RenewLease>(i);
    BOOST_TEST(before[1] > 0u);
    g.run(5s);
    for (std::uint32_t i = 0; i < 3; ++i) BOOST_TEST(g.count<RenewLease>(i) == before[i]);
}

BOOST_AUTO_TEST_CASE(a_signal_ends_the_group_without_a_restart) {
    for (std::uint32_t node : {0u, 1u}) {
        TestGroup g(TestGroup::config(2, 2, 2));
        g.start();
        g.feed(node, LocalSignal{SIGTERM});
        for (std::uint32_t i = 0; i < 2; ++i) {
            BOOST_REQUIRE(g.count<End>(i) == 1u);
            BOOST_TEST(g.actions<End>(i)[0].exit_code == 143);
            BOOST_TEST(g.count<Publish>(i) == 1u);
        }
    }
}

BOOST_AUTO_TEST_CASE(an_agent_that_goes_away_costs_its_node_the_place) {
    TestGroup g(TestGroup::config(3, 2, 2));
    g.job_nodes = nodes({0, 1, 2});
    g.start();
    g.feed(0, LocalReady{false, {}});
    g.run(65s);  // it may come back, until the others have waited long enough
    BOOST_TEST((g.world(1).nodes == nodes({2, 1})));
}

BOOST_AUTO_TEST_CASE(the_time_line_names_the_first_cause) {
    TestGroup g(TestGroup::config(2, 2, 2));
    g.start();
    g.fail(0, 0, SIGSEGV, 5);
    RankProgress p;
    p.rank = Rank(0);
    p.step = TrainStep(1);
    p.steps_done = 1;
    g.feed(0, LocalProgress{{p}});
    g.run(1s);
    std::vector<Note> closed;
    for (const Note &n : g.actions<Note>(1))
        if (n.kind == Note::Kind::incident_closed) closed.push_back(n);
    BOOST_REQUIRE(closed.size() == 1u);
    BOOST_TEST((closed[0].rank == Rank(0)));
    BOOST_TEST((closed[0].node == NodeIndex(0)));
    BOOST_TEST(closed[0].duration.has_value());
    BOOST_TEST(closed[0].text.find("signal 11") != std::string::npos, closed[0].text);
}

BOOST_AUTO_TEST_CASE(the_step_that_a_world_goes_on_from_may_be_saved_again) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.start();
    auto seal = [&](std::uint32_t rank, std::uint64_t step) {
        GenerationId id = g.world(0).id;
        g.feed(g.world(0).nodes[rank].value(), LocalSealed{Seal{TrainStep(step), Rank(rank), 3, id}});
    };
    auto told = [&] {
        std::vector<GenerationId> generations;
        for (const StepComplete &a : g.actions<StepComplete>(1)) generations.push_back(a.generation);
        return generations;
    };
    for (std::uint32_t rank : {0, 1, 2}) seal(rank, 40);
    GenerationId first = g.world(0).id;
    auto restart = [&](std::uint64_t signature) {
        GenerationId before = g.world(0).id;
        g.fail(g.world(0).nodes[0].value(), 0, 9, signature);
        g.run(1s);
        BOOST_REQUIRE((g.world(0).id > before));
        BOOST_REQUIRE((g.world(0).restore_step == TrainStep(40)));
    };
    restart(1);
    BOOST_TEST((g.world(0).restore_generation == first));
    GenerationId second = g.world(0).id;
    for (std::uint32_t rank : {0, 1}) seal(rank, 40);
    g.run(1s);
    BOOST_TEST((told() == std::vector{first}));
    restart(2);  // before the third has saved it again
    BOOST_TEST((g.world(0).restore_generation == first));
    for (std::uint32_t rank : {0, 1, 2}) seal(rank, 40);
    g.run(1s);
    GenerationId third = g.world(0).id;
    BOOST_TEST((third > second));
    BOOST_TEST((told() == std::vector{first, third}));
    restart(3);
    BOOST_TEST((g.world(0).restore_generation == third));
    std::size_t notes = 0;
    for (std::uint32_t node : {0, 1, 2})
        for (const Note &n : g.actions<Note>(node)) notes += n.kind == Note::Kind::checkpoint_complete;
    BOOST_TEST(notes == 1u);  // it is no newer checkpoint
}

BOOST_AUTO_TEST_CASE(a_leader_counts_the_single_seals_of_its_own_node) {
    auto config = TestGroup::config(2, 2, 2);
    for (auto &node : config.nodes) node.ranks = 2;
    TestGroup g(std::move(config));
    g.start();
    GenerationId id = g.world(0).id;
    std::uint32_t leader = g.leader(), other = 1 - leader;
    auto seal = [&](std::uint32_t node, std::uint64_t step, std::uint32_t local_rank) {
        std::uint32_t first = g.world(0).nodes.front() == NodeIndex(node) ? 0 : 2;
        g.feed(node, LocalSealed{Seal{TrainStep(step), Rank(first + local_rank), 4, id}});
    };
    // One rank of the leader's node went from step 1 to 2, the other skipped 2: neither will ever be
    // complete.
    for (std::uint64_t step : {1, 2}) seal(other, step, 0), seal(other, step, 1);
    seal(leader, 2, 0);
    seal(leader, 1, 1);
    g.run(200ms);
    auto told = g.actions<StepsVoid>(leader);
    BOOST_REQUIRE(!told.empty());
    BOOST_TEST((told.back().below == TrainStep(2)));
}

// ---- checkpoints on storage ----

namespace {

TestGroup::Storage stored(std::uint64_t high, std::uint64_t step, std::uint32_t world_size) {
    TestGroup::Storage s;
    s.ok = true;
    s.newest = CheckpointId{{Term((high << 32) | 4), 9}, TrainStep(step)};
    s.world_size = world_size;
    s.next_term = Term((high + 1) << 32);
    return s;
}

GroupConfig with_storage(std::uint32_t nodes) {
    GroupConfig c = TestGroup::config(nodes, nodes, nodes);
    c.storage = true;
    return c;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_run_goes_on_from_storage_above_its_terms) {
    TestGroup g(with_storage(3));
    g.storage = stored(7, 40, 5);
    g.start();
    for (std::uint32_t node : {0u, 1u, 2u}) {
        World w = g.world(node);
        BOOST_TEST((w.restore_step == TrainStep(40)));
        BOOST_TEST((w.restore_generation == g.storage->newest->generation));
        BOOST_TEST(w.stored_world_size == 5u);
        BOOST_TEST((w.id.term > Term(std::uint64_t{8} << 32)));
    }
}

BOOST_AUTO_TEST_CASE(memory_comes_before_storage_and_storage_is_looked_at_again) {
    TestGroup g(with_storage(2));
    g.storage = stored(0, 40, 2);
    g.start();
    // Nothing sealed yet, and what the first world went on from has turned out to be damaged meanwhile.
    g.storage->newest->step = TrainStep(30);
    g.fail(1, 1, 256, 7);
    g.run(3s);
    BOOST_TEST((g.world(0).restore_step == TrainStep(30)));
    BOOST_TEST(g.world(0).stored_world_size == 2u);
    GenerationId id = g.world(0).id;
    for (std::uint32_t rank : {0u, 1u}) g.feed(rank, LocalSealed{Seal{TrainStep(41), Rank(rank), 2, id}});
    std::size_t looked = g.count<LookAtStorage>(g.leader());
    g.fail(1, 1, 256, 8);
    g.run(3s);
    BOOST_TEST((g.world(0).restore_step == TrainStep(41)));
    BOOST_TEST(g.world(0).stored_world_size == 0u);
    BOOST_TEST(g.count<LookAtStorage>(g.leader()) == looked);
}

BOOST_AUTO_TEST_CASE(nobody_leads_before_storage_has_answered) {
    TestGroup g(with_storage(2));
    g.start();
    g.run(10s);
    BOOST_TEST(g.leader() == 2u);
    BOOST_TEST(g.count<LookAtStorage>(0) == 1u);
    auto answer = stored(1, 5, 2);
    answer.request = g.actions<LookAtStorage>(0).back().request;
    answer.request += 1;
    g.feed(0, answer);  // not the answer to what was asked
    g.run(1s);
    BOOST_TEST(g.leader() == 2u);
    g.storage = stored(1, 5, 2);
    g.answer_storage(0);
    g.answer_storage(1);
    g.run(3s);
    BOOST_TEST((g.world(1).restore_step == TrainStep(5)));
}

BOOST_AUTO_TEST_CASE(a_folder_that_can_not_be_used_ends_the_group_before_it_begins) {
    TestGroup g(with_storage(2));
    g.storage = TestGroup::Storage{};
    g.storage->text = "no permission to write there";
    g.start();
    g.run(3s);
    for (std::uint32_t node : {0u, 1u}) {
        BOOST_TEST(g.count<Publish>(node) == 0u);
        BOOST_REQUIRE(g.count<End>(node) == 1u);
        BOOST_TEST(g.actions<End>(node)[0].exit_code == 1);
        BOOST_TEST(g.actions<End>(node)[0].message == "no permission to write there");
    }
}

BOOST_AUTO_TEST_CASE(a_later_world_waits_for_storage_a_while) {
    auto config = with_storage(2);
    config.timings.join = 10s;
    TestGroup g(std::move(config));
    g.storage = stored(0, 40, 2);
    g.start();
    g.storage->ok = false;
    g.storage->text = "the disk is away";
    g.fail(1, 1, 256, 7);
    g.run(5s);
    BOOST_TEST(g.count<Publish>(0) == 1u);
    BOOST_TEST(g.count<End>(0) == 0u);
    g.storage->ok = true;
    g.run(3s);
    BOOST_TEST(g.count<Publish>(0) == 2u);
    g.storage->ok = false;
    g.fail(1, 1, 256, 8);
    g.run(15s);
    BOOST_REQUIRE(g.count<End>(0) == 1u);
    BOOST_TEST(g.actions<End>(0)[0].message == "the disk is away");
}

// ---- steps that are asked for on storage ----

namespace {

/// Every rank of a one-rank-a-node group seals; the node of rank `asker` wants the step on storage.
void seal_all(TestGroup &g, std::uint64_t step, std::optional<std::uint32_t> asker) {
    std::uint32_t somebody = g.leader();
    World w = g.world(somebody);
    auto ranks = static_cast<std::uint32_t>(w.nodes.size());
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
        g.feed(w.nodes[rank].value(),
               LocalSealed{Seal{TrainStep(step), Rank(rank), ranks, w.id, rank == asker}});
}

std::uint64_t asked_at(const TestGroup &g, std::uint32_t node) {
    auto told = g.actions<StorageAsked>(node);
    return told.empty() ? 0 : told.back().id.step.value();
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_node_hears_which_complete_step_is_wanted_on_storage) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.start();
    seal_all(g, 5, std::nullopt);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST(g.count<StorageAsked>(node) == 0u);
    seal_all(g, 6, 2);
    seal_all(g, 7, std::nullopt);
    g.run(1s);
    for (std::uint32_t node : {0u, 1u, 2u}) {
        BOOST_TEST(asked_at(g, node) == 6u);
        BOOST_TEST(g.count<StorageAsked>(node) == 1u);
    }
    // The same step again: in memory first, then on storage.
    seal_all(g, 7, 0);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST(asked_at(g, node) == 7u);
}

BOOST_AUTO_TEST_CASE(a_step_is_wanted_also_when_it_is_saved_once_more_without_a_word) {
    TestGroup g(TestGroup::config(2, 2, 2));
    g.start();
    World w = g.world(0);
    auto seal = [&](std::uint32_t rank, bool to_storage) {
        g.feed(w.nodes[rank].value(), LocalSealed{Seal{TrainStep(5), Rank(rank), 2, w.id, to_storage}});
    };
    seal(0, true);
    seal(0, false);
    seal(1, false);
    BOOST_TEST(asked_at(g, w.nodes[0].value()) == 5u);
}

BOOST_AUTO_TEST_CASE(what_is_wanted_on_storage_outlives_leaders_and_daemons) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.start();
    seal_all(g, 6, 1);
    seal_all(g, 7, std::nullopt);
    std::uint32_t leader = g.leader();
    GenerationId running = g.world(leader).id;
    g.job_nodes = nodes({0, 1, 2});
    // Step 6 is older than the newest complete one by now: nobody reports its seals any more.
    g.crash(leader);
    for (std::uint32_t node : {0u, 1u, 2u})
        if (node != leader) g.feed(node, PeerLink{NodeIndex(leader), true});
    g.run(3s);
    BOOST_REQUIRE(g.leader() != 3u);
    g.boot(leader);
    g.feed(leader, LocalReady{true, running});
    g.run(2s);
    BOOST_TEST(g.count<StorageAsked>(leader) == 2u);
    BOOST_TEST(asked_at(g, leader) == 6u);
    for (std::uint32_t node : {0u, 1u, 2u})
        if (node != leader) BOOST_TEST(g.count<StorageAsked>(node) == 1u);
}

/// The leader may have given the node up since, and wait for the end of leases that it knows of.
BOOST_AUTO_TEST_CASE(ranks_do_not_begin_on_an_old_word) {
    TestGroup g(TestGroup::config(3, 3, 3));
    g.start();
    World w = g.world(2);
    auto prepare = [&] {
        ++w.id.number;
        g.feed(2, PeerMessage{NodeIndex(1), Prepare{w.id.term, w.id, w.nodes, {}, "a test"}});
    };
    g.cut(2);
    prepare();
    g.run(1200ms);
    g.feed(2, PeerMessage{NodeIndex(1), Commit{w.id.term, w}});
    BOOST_TEST((g.view(2).generation == w.id));
    BOOST_TEST(g.count<Publish>(2) == 1u);
    prepare();
    g.feed(2, PeerMessage{NodeIndex(1), Commit{w.id.term, w}});
    BOOST_TEST(g.count<Publish>(2) == 2u);
}

/// A leader that has led for long, and has lost all nodes of its world at once: these go on beside it.
BOOST_AUTO_TEST_CASE(a_world_that_is_cut_off_whole_has_its_leases) {
    TestGroup g(TestGroup::config(5, 2, 2));
    g.job_nodes = nodes({0, 1, 2, 3, 4});
    g.start();
    GenerationId running = g.world(1).id;
    BOOST_REQUIRE((g.world(1).nodes == nodes({0, 1})));
    g.crash(1);
    for (std::uint32_t node : {0u, 2u, 3u, 4u}) g.feed(node, PeerLink{NodeIndex(1), true});
    g.run(3s);
    g.boot(1);
    g.feed(1, LocalReady{true, running});
    g.run(10s);
    BOOST_REQUIRE(g.leader() == 2u);
    BOOST_REQUIRE((g.view(2).generation == running));
    g.cut(0);
    g.cut(1);
    g.run(5s);
    BOOST_TEST((g.view(2).generation == running));
    g.run(3s);
    BOOST_TEST((g.world(2).nodes == nodes({2, 3})));
}

BOOST_AUTO_TEST_SUITE_END()
